"""summary.json of a group: the scores of each combination of swept settings over its seeds."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from birl.maths.statistics import bootstrap_interval, iqm
from birl.run.group_file import Group
from birl.run.lane import lane_summary
from birl.run.versions import versions


def make_group_summary(group: Group, problems: Mapping[str, str]) -> dict[str, Any]:
    """The content of summary.json; `problems` says by name why lanes failed."""
    points = [_point(settings, lanes, problems) for settings, lanes in group.points()]
    return {
        "group_dir": str(group.directory),
        "algorithm": group.algorithm,
        "env": group.env_id,
        "points": points,
        "failed": dict(problems),
        "versions": versions(),
    }


def score_statistics(returns: Mapping[str, float]) -> dict[str, Any]:
    """IQM with its 95 % interval, mean, deviation and worst of the returns of lanes, by name.

    One lane has no interval, and without lanes all are None.
    """
    scores = np.array(list(returns.values()))
    if not len(scores):
        return dict.fromkeys(("iqm", "interval", "mean", "std", "worst"))
    name, lowest = min(returns.items(), key=lambda item: item[1])
    return {
        "iqm": iqm(scores),
        "interval": list(bootstrap_interval(scores[:, None])) if len(scores) > 1 else None,
        "mean": float(scores.mean()),
        "std": float(scores.std()),
        "worst": {"directory": name, "return_mean": lowest},
    }


def _point(settings: dict[str, Any], lanes: Sequence[Any], problems: Mapping[str, str]) -> dict[str, Any]:
    found = [_lane(lane, problems.get(lane.name)) for lane in lanes]
    returns = {lane["directory"]: lane["return_mean"] for lane in found if lane["return_mean"] is not None}
    return {"settings": settings, **score_statistics(returns), "lanes": found}


def _lane(lane: Any, problem: str | None) -> dict[str, Any]:
    summary = lane_summary(lane.run_dir) if problem is None else None
    evaluation = summary["evaluation"] if summary is not None else None
    return {
        "directory": lane.name,
        "seed": lane.seed,
        "env_steps": None if summary is None else summary["env_steps"],
        "return_mean": None if evaluation is None else evaluation["return_mean"],
        "wall_seconds": None if summary is None else summary.get("wall_seconds"),
        "problem": problem,
    }
