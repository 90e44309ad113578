"""A lane, one run of a group: its options, how far it is, how it ended.

It is read from the files in its directory, so it does not matter where the lane trains. A lane
whose directory is not seen from here sends LaneNews.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from birl.config import EnvConfig
from birl.errors import CheckpointError
from birl.run.directory import CHECKPOINTS, CONFIG, GROUP, METRICS, SUMMARY
from birl.run.files import open_to_read, read_json
from birl.run.logging import parse_row

LOG = "console.log"  # what a lane prints
SPEED = "time/env_steps_per_second"
MOST_BYTES = 1 << 16  # that are read at once; a row has about 1 kB


class LaneOptions(NamedTuple):
    """The options of `birl resume` that each lane is continued with."""

    total_steps: int | None = None
    workers: int | None = None
    trust: bool = False
    env: str | None = None

    def words(self) -> list[str]:
        """As words of the command line."""
        given = {"--total-steps": self.total_steps, "--workers": self.workers, "--env": self.env}
        words = [word for name, value in given.items() if value is not None for word in (name, str(value))]
        return [*words, "--trust"] if self.trust else words

    def of(self, run_dir: Path) -> Self:
        """For the lane in this directory: one that has passed the new end ends where it is."""
        if self.total_steps is None:
            return self
        from birl.run.checkpoint import checkpoints_in  # which imports JAX, and plots read lanes, too

        done = max((int(path.name) for path in checkpoints_in(run_dir / CHECKPOINTS)), default=0)
        return self._replace(total_steps=max(self.total_steps, done))


class LaneEnd(NamedTuple):
    """The end of a lane's training in this process."""

    run_dir: Path
    problem: str | None = None  # why it failed; None: it did not
    stopped: bool = False  # by a signal, before its end: it can be continued


class LaneNews(NamedTuple):
    """The progress of a lane whose files are not seen from here yet."""

    run_dir: Path
    env_steps: int
    values: dict[str, float]  # the newest finite value of each metric


class LaneMetrics:
    """The newest metrics of one lane."""

    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir / METRICS
        self._file: tuple[int, int] | None = None  # its inode, and how much of it was read
        self.env_steps = 0
        self.values: dict[str, float] = {}  # the newest finite value of each

    def read(self) -> None:
        """Read the rows that were written since the last time, or the last ones of many."""
        try:
            with open_to_read(self._path) as file:
                found = os.fstat(file.fileno())
                inode, begin = self._file or (-1, 0)
                begin = begin if inode == found.st_ino and begin <= found.st_size else 0  # a resume writes another one
                file.seek(max(begin, found.st_size - MOST_BYTES))
                content = file.read(MOST_BYTES)
                end = file.tell()
        except (FileNotFoundError, CheckpointError):  # it is not there yet; the lane reports a damaged one
            return
        whole, _, cut = content.rpartition(b"\n")  # the last row may be half written
        self._file = found.st_ino, end - len(cut)
        for line in whole.splitlines():
            if (row := parse_row(line)) is not None:
                self.env_steps = int(row["env_steps"] or 0)
                self.values |= {name: value for name, value in row.items() if value is not None}


class GroupStatus(NamedTuple):
    """The progress of a group."""

    fraction: float  # of the whole group, 0 to 1
    env_steps: int  # of all lanes
    total_steps: int
    steps_per_second: float  # of the lanes that run now, together
    returns: dict[str, float]  # the training return of each lane that has one, by name

    @property
    def worst(self) -> tuple[str, float] | None:
        """The lane with the lowest return."""
        return min(self.returns.items(), key=lambda item: item[1], default=None)

    def mean_and_deviation(self) -> tuple[float, float]:
        """Of the lanes' returns; NaN if there are none."""
        values = np.array(list(self.returns.values()))
        return (float(values.mean()), float(values.std())) if len(values) else (np.nan, np.nan)


class GroupProgress:
    """The newest metrics of all lanes of a group."""

    def __init__(self, lanes: Iterable[tuple[str, Path]], total_steps: int | None = None) -> None:
        self._lanes = dict(lanes)
        self._metrics = {name: LaneMetrics(run_dir) for name, run_dir in self._lanes.items()}
        self._totals = {name: total_steps_of(run_dir, total_steps) for name, run_dir in self._lanes.items()}
        self._finished: dict[str, int] = {}  # the steps of lanes that have finished
        self._ended: set[str] = set()
        for metrics in self._metrics.values():
            metrics.read()
            metrics.values.pop(SPEED, None)  # of an earlier process

    def take(self, name: str, news: LaneNews) -> None:
        """Use what a lane tells that trains where its files are not seen from here."""
        if name not in self._ended:
            self._metrics[name].env_steps = news.env_steps
            self._metrics[name].values |= news.values

    def end(self, name: str, finished: bool) -> None:
        """Count a lane as ended. One that finished counts as whole, however many steps it took."""
        self._metrics[name].read()
        self._ended.add(name)
        if finished:
            summary = lane_summary(self._lanes[name])
            self._finished[name] = self._metrics[name].env_steps if summary is None else summary["env_steps"]

    def status(self) -> GroupStatus:
        """The progress of all lanes now."""
        for name in self._lanes.keys() - self._ended:
            self._metrics[name].read()
        steps = {name: self._finished.get(name, metrics.env_steps) for name, metrics in self._metrics.items()}
        fractions = [
            1.0 if name in self._finished else min(1.0, steps[name] / max(1, total))
            for name, total in self._totals.items()
        ]
        speeds = (metrics.values.get(SPEED, 0.0) for name, metrics in self._metrics.items() if name not in self._ended)
        returns = {
            name: metrics.values["episode/return"]
            for name, metrics in self._metrics.items()
            if "episode/return" in metrics.values
        }
        total = sum(self._totals.values())
        return GroupStatus(sum(fractions) / len(fractions), sum(steps.values()), total, sum(speeds), returns)


def lane_summary(run_dir: Path) -> dict[str, Any] | None:
    """The summary of a lane; None if it has none, or a damaged one."""
    match _json_of(run_dir / SUMMARY):
        case {"env_steps": int(), "evaluation": dict() | None} as summary:
            return summary
    return None


def lane_problem(run_dir: Path) -> str | None:
    """The reason of a lane's failure in its group's summary; None if it did not fail."""
    if lane_summary(run_dir) is not None:
        return None  # it was continued by itself
    for above in (run_dir.parent, run_dir.parent.parent):  # a sweep has a folder for each combination
        match _json_of(above / SUMMARY) if os.path.lexists(above / GROUP) else None:
            case {"failed": dict(failed)}:
                problem = failed.get(run_dir.relative_to(above).as_posix())
                return None if problem is None else str(problem)
    return None


def total_steps_of(run_dir: Path, given: int | None = None) -> int:
    """The environment steps that a lane is to train for; 0 if its settings cannot be read."""
    if given is not None:
        return given
    match _json_of(run_dir / CONFIG):
        case {"config": {"run": {"total_steps": int(steps)}}}:
            return steps
    return 0


def env_of(run_dir: Path) -> EnvConfig:
    """The id and the backend of a lane's environment; the default's if they cannot be read."""
    match _json_of(run_dir / CONFIG):
        case {"config": {"env": {"id": str(env_id), "backend": ("gymnasium" | "envpool" | "compiled") as backend}}}:
            return EnvConfig(env_id, backend=backend)
    return EnvConfig()


def is_finished(run_dir: Path, total_steps: int | None = None) -> bool:
    """True if a lane has its summary, with the steps or the return that it trains for."""
    summary = lane_summary(run_dir)
    if summary is None:
        return False
    goal, best = _goal_of(run_dir), summary.get("best_return")
    reached = goal is not None and isinstance(best, int | float) and best >= goal
    total = total_steps_of(run_dir, total_steps)
    return 0 < total <= summary["env_steps"] or (reached and total_steps is None)


def _goal_of(run_dir: Path) -> float | None:
    match _json_of(run_dir / CONFIG):
        case {"config": {"run": {"stop_at_return": int() | float() as goal}}}:
            return goal
    return None


def _json_of(path: Path) -> Any:
    """The content of a JSON file; None if it is missing, or damaged: the lane itself says so."""
    try:
        return read_json(path) if os.path.lexists(path) else None
    except CheckpointError:
        return None
