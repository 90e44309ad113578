"""What `birl eval` prints of a group: a line for each run, and one for each swept combination."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from birl.run.console import score_text
from birl.run.display import number


def range_text(evaluation: Any) -> str:
    """The score of an evaluation, with the lowest and the highest return."""
    returns = evaluation.returns
    score = score_text(returns.mean(), returns.std(), len(returns))
    return f"{score} (min {number(returns.min())}, max {number(returns.max())})"


def show_group_evaluation(directory: Path, evaluate: Callable[[Path], Any], say: Callable[[str], None]) -> int:
    """Evaluate each run of a group, say its score and the statistics over seeds; the exit code.

    It is 1 if a run could not be evaluated.
    """
    from birl.run.group_console import point_text, settings_text
    from birl.run.group_evaluate import evaluate_group

    def report(name: str, found: Any) -> None:
        say(f"{name}: {found if isinstance(found, str) else range_text(found)}")

    points = evaluate_group(directory, evaluate, report)
    for point in points:
        settings = settings_text(point["settings"])
        say(f"{settings}{': ' if settings else ''}{point_text(point)}")
    return 1 if any(lane["problem"] for point in points for lane in point["lanes"]) else 0
