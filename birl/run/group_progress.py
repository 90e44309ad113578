"""How far the lanes of a group are, read from their metrics.jsonl while they train.

So it does not matter where a lane runs, as long as its directory is seen from here. If it is not,
the lane tells (LaneNews).
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from birl.errors import CheckpointError
from birl.run.directory import METRICS
from birl.run.files import open_to_read
from birl.run.lane import LaneNews, lane_summary, total_steps_of
from birl.run.track import parse_row

SPEED = "time/env_steps_per_second"
MOST_BYTES = 1 << 16  # that are read at once; a row has about 1 kB


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
    """How far a group is."""

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
        """How far the lanes are now."""
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
