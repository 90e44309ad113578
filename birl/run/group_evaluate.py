"""Evaluation of a group: the best policy of each lane, and statistics over the seeds."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from birl.errors import CheckpointError, ConfigError
from birl.run.evaluate import Evaluation
from birl.run.group_file import StoredLane, read_group
from birl.run.group_summary import score_statistics
from birl.run.lane import lane_summary


def evaluate_group(
    directory: Path, evaluate: Callable[[Path], Evaluation], report: Callable[[str, Evaluation | str], None]
) -> list[dict[str, Any]]:
    """The statistics of each combination of swept settings, in the form of a group's summary.

    `evaluate` scores the run in a directory. Each lane's name and score are reported as soon as
    they are known, or why it has none.
    """
    group = read_group(directory)
    found: dict[str, float] = {}
    problems: dict[str, str] = {}
    for lane in group.lanes:
        try:
            evaluation = evaluate(lane.run_dir)
        except (ConfigError, CheckpointError) as problem:  # it has no checkpoint yet, for instance
            problems[lane.name] = str(problem)
            report(lane.name, str(problem))
        else:
            found[lane.name] = float(evaluation.returns.mean())
            report(lane.name, evaluation)
    return [_point(settings, lanes, found, problems) for settings, lanes in group.points()]


def final_evaluation(run_dir: Path) -> Evaluation:
    """The evaluation that ended a run, as its summary has it; ConfigError if there is none."""
    match lane_summary(run_dir):
        case {"evaluation": {"returns": list(returns), "length_mean": int() | float() as length}} if returns and all(
            type(one) in (int, float) for one in returns
        ):
            return Evaluation(np.array(returns, float), np.full(len(returns), length))
    raise ConfigError(f"it has no final evaluation; birl eval {run_dir} plays episodes with its newest policy")


def _point(
    settings: dict[str, Any], lanes: list[StoredLane], found: Mapping[str, float], problems: Mapping[str, str]
) -> dict[str, Any]:
    own = {lane.name: found[lane.name] for lane in lanes if lane.name in found}
    listed = [
        {
            "directory": lane.name,
            "seed": lane.seed,
            "return_mean": found.get(lane.name),
            "problem": problems.get(lane.name),
        }
        for lane in lanes
    ]
    return {"settings": settings, **score_statistics(own), "lanes": listed}
