"""The results of a group: on the console, in its summary.json, and evaluated again."""

import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from birl.errors import CheckpointError, ConfigError
from birl.maths.statistics import bootstrap_interval, iqm
from birl.run.console import NoDisplay, Status, choose_display, duration, number
from birl.run.evaluating import Evaluation
from birl.run.groups.group_plan import Group, StoredLane, read_group
from birl.run.groups.lane import GroupStatus, lane_summary
from birl.run.versions import versions


class GroupConsole:
    """Shows the progress of a group. Call `close` in a `finally`: it restores the cursor."""

    def __init__(
        self,
        title: str,
        lanes: int,
        stream: TextIO | None = None,  # None: standard output
        clock: Callable[[], float] = time.monotonic,
        quiet: bool = False,  # show nothing but warnings, which go to standard error
    ) -> None:
        self._title = title
        self._lanes = lanes
        self._clock = clock
        self._next_show = -math.inf
        stream = stream or sys.stdout
        self._display = NoDisplay() if quiet or stream is None else choose_display(stream)

    def show(self, read: Callable[[], GroupStatus], finished: int, running: int, failed: int) -> None:
        """Show how far the group is, unless that was shown a moment ago."""
        now = self._clock()
        if now >= self._next_show:
            self._next_show = now + self._display.interval
            with suppress(OSError):  # a closed terminal must not end a group
                self._display.show(self._status(read(), finished, running, failed))

    def message(self, text: str) -> None:
        """Print a line that stays on the screen."""
        with suppress(OSError):
            self._display.say(text)

    def warn(self, text: str) -> None:
        """Print a warning that stays on the screen."""
        with suppress(OSError):
            self._display.warn(text)

    def close(self) -> None:
        """Restore the terminal."""
        with suppress(OSError):
            self._display.close()

    def _status(self, found: GroupStatus, finished: int, running: int, failed: int) -> Status:
        lanes = f"{finished} of {self._lanes} lanes done, {running} running" + (f", {failed} failed" if failed else "")
        numbers = [f"{found.fraction:4.0%}", lanes, f"{found.env_steps:,} / {found.total_steps:,} steps"]
        if found.steps_per_second > 0:
            left = (1 - found.fraction) * found.total_steps / found.steps_per_second
            numbers.append(f"{duration(left)} left")
        facts = []
        if (worst := found.worst) is not None:
            mean, deviation = found.mean_and_deviation()
            facts = [f"return {number(mean)} +/- {number(deviation)}", f"worst {number(worst[1])} ({worst[0]})"]
        if found.steps_per_second > 0:
            facts.append(f"{number(found.steps_per_second)} steps/s")
        return Status(self._title, found.fraction, numbers, facts)


def make_group_summary(group: Group, problems: Mapping[str, str]) -> dict[str, Any]:
    """The content of summary.json; `problems` says by name why lanes failed."""
    points = [
        _point(settings, [_summary_of(lane, problems.get(lane.name)) for lane in lanes])
        for settings, lanes in group.points()
    ]
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

    def of_lane(lane: StoredLane) -> dict[str, Any]:
        score, problem = found.get(lane.name), problems.get(lane.name)
        return {"directory": lane.name, "seed": lane.seed, "return_mean": score, "problem": problem}

    return [_point(settings, list(map(of_lane, lanes))) for settings, lanes in group.points()]


def stored_evaluation(run_dir: Path) -> Evaluation:
    """The evaluation that ended a run, as its summary has it; ConfigError if there is none."""
    match lane_summary(run_dir):
        case {"evaluation": {"returns": list(returns), "length_mean": int() | float() as length}} if returns and all(
            type(one) in (int, float) for one in returns
        ):
            return Evaluation(np.array(returns, float), np.full(len(returns), length))
    raise ConfigError(f"it has no final evaluation; birl eval {run_dir} plays episodes with its newest policy")


def point_text(point: dict[str, Any]) -> str:
    """The result of one point of a summary: its IQM, interval, mean, spread and worst lane."""
    count = len(point["lanes"])
    scored = [lane for lane in point["lanes"] if lane["return_mean"] is not None]
    seeds = f"{count} seed{'s' if count > 1 else ''}"
    of_how_many = seeds if len(scored) == count else f"{len(scored)} of {seeds}: the others have no result"
    if not scored:
        return f"no result of {seeds}"
    interval = point["interval"]
    between = f" (95 % interval {number(interval[0])} to {number(interval[1])})" if interval else ""
    spread = f"mean {number(point['mean'])} +/- {number(point['std'])}"
    worst = f"worst {number(point['worst']['return_mean'])} ({point['worst']['directory']})"
    return f"IQM {number(point['iqm'])}{between} over {of_how_many}, {spread}, {worst}"


def settings_text(settings: dict[str, Any]) -> str:
    """Swept settings, as JSON, for a line of the console; "" if there are none."""
    return ", ".join(f"{name}={json_text(value)}" for name, value in settings.items())


def json_text(value: Any) -> str:
    """The value of a setting, as JSON, for people: a schedule as linear:0.001:0."""
    match value:
        case {"kind": str(kind), "values": list(values), "points": list(points)}:  # a schedule
            return ":".join([kind, *(f"{one:g}" for one in (values if points == [1.0] else [*values, *points]))])
        case float():
            return f"{value:g}"
        case list():
            return " ".join(map(json_text, value))
    return str(value)


def lane_text(name: str, summary: dict[str, Any] | None) -> str:
    """The result of a lane that has finished."""
    if summary is None:
        return f"{name}: finished"
    found = summary["evaluation"]
    score = f", evaluation return {number(found['return_mean'])}" if found is not None else ", not evaluated"
    return f"{name}: {summary['env_steps']:,} steps{score}"


def lanes_text(names: Sequence[str]) -> str:
    """The names of lanes, or how many there are of many."""
    return ", ".join(names) if len(names) <= 4 else f"{len(names)} lanes"


def _point(settings: dict[str, Any], lanes: list[dict[str, Any]]) -> dict[str, Any]:
    """A combination of swept settings, with the statistics of its lanes."""
    returns = {lane["directory"]: lane["return_mean"] for lane in lanes if lane["return_mean"] is not None}
    return {"settings": settings, **score_statistics(returns), "lanes": lanes}


def _summary_of(lane: StoredLane, problem: str | None) -> dict[str, Any]:
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
