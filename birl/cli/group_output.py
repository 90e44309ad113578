"""What `birl eval` prints of a group: a line for each run, and one for each swept combination."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from birl.run.console import score_text
from birl.run.display import number


def range_text(evaluation: Any) -> str:
    """The score of an evaluation, with the lowest and the highest return."""
    returns = evaluation.returns
    score = score_text(returns.mean(), returns.std(), len(returns))
    return f"{score} (min {number(returns.min())}, max {number(returns.max())})"


def show_group_evaluation(
    directory: Path,
    evaluate: Callable[[Path], Any] | None,
    say: Callable[[str], None],
    steps: Mapping[Path, int | None],  # of the checkpoint that `evaluate` has used for a run
) -> int:
    """Evaluate each run of a group, say its score and the statistics over seeds; the exit code.

    Without `evaluate`, the scores are those of the final evaluations, as everywhere else. The code
    is 1 if a run has no score.
    """
    from birl.run.group_console import point_text, settings_text
    from birl.run.group_evaluate import evaluate_group, final_evaluation

    def report(name: str, found: Any) -> None:
        at = steps.get(directory / name)
        which = "" if at is None else f", policy at {at:,} steps"
        say(f"{name}: {found if isinstance(found, str) else range_text(found) + which}")

    points = evaluate_group(directory, evaluate or final_evaluation, report)
    for point in points:
        settings = settings_text(point["settings"])
        say(f"{settings}{': ' if settings else ''}{point_text(point)}")
    if evaluate is None:
        fresh = f"birl eval {directory} --episodes 20 plays the best checkpoint of each run again"
        say(f"these are the final evaluations, of the policies at the end of training; {fresh}")
    else:
        say(f"the scores of the final evaluations, which birl compare takes: birl eval {directory}")
    return 1 if any(lane["problem"] for point in points for lane in point["lanes"]) else 0
