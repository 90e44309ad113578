"""The journal of a search, and its state: trials with lanes, workers and a winner.

A journal has a JSON object a line, and all workers append to it. Who writes holds the lock of the
directory, so that machines on one file system share a journal. A line that a killed process left
half written is skipped.
"""

import json
import os
import random
import re
import socket
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from birl.config import ConfigError
from birl.errors import CheckpointError
from birl.lab.tuning.plan import TunePlan, is_in
from birl.run.files import open_to_append, open_to_read, parse_json
from birl.run.lock import locked

JOURNAL = "journal.jsonl"
MOST_BYTES = 1 << 28
LINE_BYTES = 1 << 16
LOCK_SECONDS = 120.0  # how long to wait for another worker, which holds the lock for a moment
Event = dict[str, Any]
FINAL = "final"  # directory of the winner's final runs
FINAL_DEFAULT = "final-default"  # of those with the settings to begin with
TRIAL_NAME = re.compile(r"trials/(\d{4,9})")
MOST_LOSSES = 3  # a run whose process died this often at the same steps has failed


class Journal:
    """The events of a search. `read` gives those that are new since the last call."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._path = directory / JOURNAL
        self._offset = 0

    def read(self) -> list[Event]:
        """The events that were appended since the last call."""
        try:
            with open_to_read(self._path) as file:
                if os.fstat(file.fileno()).st_size > MOST_BYTES:
                    raise CheckpointError(f"{self._path} has more than {MOST_BYTES:,} bytes")
                file.seek(self._offset)
                content = file.read()
        except FileNotFoundError:
            return []
        whole, newline, _ = content.rpartition(b"\n")
        self._offset += len(whole) + len(newline)
        return [event for line in whole.splitlines() if (event := self._parse(line)) is not None]

    def append(self, *events: Event) -> None:
        """Add events, in one write; call it with the lock."""
        lines = [json.dumps(event | {"at": time.time()}, allow_nan=False) + "\n" for event in events]
        with open_to_append(self._path) as file:
            start = "\n" if self._is_cut() else ""
            file.write((start + "".join(lines)).encode())
            os.fsync(file.fileno())

    def _is_cut(self) -> bool:
        """True if the last line has no end, because its writer was killed."""
        with open_to_read(self._path) as file:
            size = os.fstat(file.fileno()).st_size
            if size == 0:
                return False
            file.seek(size - 1)
            return file.read(1) != b"\n"

    def _parse(self, line: bytes) -> Event | None:
        if len(line) > LINE_BYTES:
            return None
        try:
            event = parse_json(line, self._path)
        except CheckpointError:
            return None
        return event if isinstance(event, dict) and isinstance(event.get("event"), str) else None


def process_name(pid: int) -> str:
    """The beginning of the name of the worker in this process of this machine."""
    return f"{socket.gethostname()}-{pid}-"


@contextmanager
def waiting_for(directory: Path) -> Iterator[None]:
    """Hold the lock of a directory; waits until its holder lets go of it."""
    last = time.monotonic() + LOCK_SECONDS
    while True:
        held = locked(directory)
        try:
            held.__enter__()
        except ConfigError:  # in use
            if time.monotonic() > last:
                raise
            time.sleep(random.uniform(0.01, 0.05))
            continue
        break
    try:
        yield
    finally:
        held.__exit__(None, None, None)


@dataclass
class LaneState:
    """One run of a trial, or a final one."""

    rung: int = -1  # the highest that it has reached
    scores: dict[int, float] = field(default_factory=dict)  # by rung
    env_steps: int = 0
    seconds: float = 0.0  # of wall clock, of all its processes
    rate: float | None = None  # seconds a step of training alone, as measured last
    overhead: float | None = None  # seconds of its quickest job beside training: starting, compiling, evaluating
    holder: str | None = None  # the worker that trains it now
    worker: str | None = None  # the one that trained it last
    losses: int = 0  # how often its process died at `lost_at` steps
    lost_at: int = -1
    problem: str | None = None  # why it failed

    def note_steps(self, saved: Any) -> None:
        """Count the steps of its newest checkpoint, if this is a number of them."""
        if isinstance(saved, int):
            self.env_steps = max(self.env_steps, saved)


@dataclass
class Trial:
    """Settings that are tried."""

    number: int
    candidate: int
    point: dict[str, Any] | None  # as JSON; None: the settings to begin with
    how: str  # who chose it: default, random or tpe
    lanes: dict[int, LaneState]  # by seed
    target: int = 0  # the rung that it is to be trained to

    @property
    def name(self) -> str:
        return trial_name(self.number)

    @property
    def problem(self) -> str | None:
        return next((lane.problem for lane in self.lanes.values() if lane.problem is not None), None)

    @property
    def rung(self) -> int:
        """The highest rung that all its seeds have reached; -1: none."""
        return min(lane.rung for lane in self.lanes.values())

    def score(self, rung: int) -> float | None:
        """The mean of its seeds' scores at a rung; None before all have one."""
        scores = [lane.scores.get(rung) for lane in self.lanes.values()]
        known = [score for score in scores if score is not None]
        return float(np.mean(known)) if len(known) == len(scores) else None

    @property
    def best(self) -> tuple[int, float] | None:
        """Its highest rung and the score there; None if it has none, or failed."""
        if self.problem is not None or self.rung < 0 or (score := self.score(self.rung)) is None:
            return None
        return self.rung, score


@dataclass
class WorkerState:
    """A worker process, as far as the journal knows."""

    first: float  # time of its process's start, or else of its first event
    last: float  # of its latest one
    ended: bool = False


@dataclass
class SearchState:
    """The state of a search."""

    plan: TunePlan
    trials: list[Trial] = field(default_factory=list)
    finals: dict[str, dict[int, LaneState]] = field(default_factory=dict)  # by directory and seed
    finalists: list[int] | None = None  # numbers of trials; None: the search goes on
    winner: int | None = None
    workers: dict[str, WorkerState] = field(default_factory=dict)
    crashed: set[str] = field(default_factory=set)  # beginnings of the names of workers that died alone
    losses: dict[str, tuple[LaneState, int]] = field(default_factory=dict)  # by worker: what it held, saved steps

    def add(self, events: Iterable[Event]) -> None:
        """Take new events; those that make no sense are skipped."""
        for event in events:
            self._note_worker(event)
            match event:
                case {"event": "trial", "trial": int(number), "candidate": int(one), "how": str(how)}:
                    self._add_trial(number, one, event.get("point"), how)
                case {"event": "promote", "trial": int(number), "rung": int(rung)} if self._has(number):
                    trial = self.trials[number]
                    trial.target = max(trial.target, min(rung, self.plan.last_rung))
                case {"event": "finalists", "trials": list(numbers)}:
                    self.finalists = [n for n in numbers if isinstance(n, int) and self._has(n)]
                    for number in self.finalists:
                        self.trials[number].target = self.plan.last_rung
                case {"event": "winner", "trial": int(number), "groups": list(groups)} if self._has(number):
                    self.winner = number
                    known = [name for name in groups if name in (FINAL, FINAL_DEFAULT)]
                    self.finals = {name: {seed: LaneState() for seed in self.plan.final_seeds} for name in known}
                case {"event": "lost", "worker": str(worker), "env_steps": int(steps)}:
                    self._lose(worker, steps)
                case {"event": "crashed", "process": str(process)}:
                    self.crashed.add(process)
                    for worker in list(self.losses):
                        self._count_loss(worker)
                case {"group": str(group), "seed": int(seed)} if (lane := self.lane(group, seed)) is not None:
                    self._change(lane, event)

    def lane(self, group: str, seed: int) -> LaneState | None:
        """The run of a trial or a final one, by its directory; None if there is none."""
        if group in self.finals:
            return self.finals[group].get(seed)
        found = TRIAL_NAME.fullmatch(group)
        number = int(found.group(1)) if found else -1
        return self.trials[number].lanes.get(seed) if self._has(number) else None

    def steps(self, group: str, rung: int) -> int:
        """The environment steps of a rung, for the runs in this directory."""
        found = TRIAL_NAME.fullmatch(group)
        number = int(found.group(1)) if found else self.winner
        assert number is not None
        return self.plan.steps(self.trials[number].candidate, rung)

    def total_steps(self, trial: Trial) -> int:
        """The environment steps of a trial that is trained to the end."""
        return self.plan.steps(trial.candidate, self.plan.last_rung)

    def groups(self) -> list[tuple[str, dict[int, LaneState]]]:
        """The lanes of each trial and of the final runs, by directory."""
        return [*((trial.name, trial.lanes) for trial in self.trials), *self.finals.items()]

    def used_seconds(self, now: float) -> float:
        """The time in which at least one worker was at work; those that did not end still are."""
        spans = sorted((one.first, one.last if one.ended else max(one.last, now)) for one in self.workers.values())
        used, end = 0.0, -np.inf
        for first, last in spans:
            used += max(0.0, last - max(first, end))
            end = max(end, last)
        return float(used)

    def env_steps(self) -> int:
        """The steps of the search, without the final runs."""
        return sum(lane.env_steps for trial in self.trials for lane in trial.lanes.values())

    def _has(self, number: int) -> bool:
        return 0 <= number < len(self.trials)

    def _add_trial(self, number: int, candidate: int, point: Any, how: str) -> None:
        if number != len(self.trials) or not 0 <= candidate < len(self.plan.candidates):
            return
        if point is not None and not (isinstance(point, dict) and is_in(self.plan.candidates[candidate].space, point)):
            return
        lanes = {seed: LaneState() for seed in self.plan.seeds}
        self.trials.append(Trial(number, candidate, point, how, lanes))

    def _note_worker(self, event: Event) -> None:
        match event:
            case {"worker": str(name), "at": int() | float() as at}:
                if event["event"] == "lost":  # told by another worker
                    if name in self.workers:
                        self.workers[name].ended = True
                    return
                started = event.get("started")
                first = min(at, started) if isinstance(started, int | float) else at
                one = self.workers.setdefault(name, WorkerState(first, at))
                one.last = max(one.last, at)
                one.ended = event["event"] == "left"

    def _lose(self, worker: str, steps: int) -> None:
        """Free what a worker that died has held."""
        for _, lanes in self.groups():
            for lane in lanes.values():
                if lane.holder == worker:
                    lane.holder = None
                    lane.note_steps(steps)
                    self.losses[worker] = lane, steps
                    self._count_loss(worker)

    def _count_loss(self, worker: str) -> None:
        """Count a death against the run that was trained, if nothing but the worker died."""
        if worker not in self.losses or not any(worker.startswith(process) for process in self.crashed):
            return
        lane, steps = self.losses.pop(worker)
        lane.losses = lane.losses + 1 if steps <= lane.lost_at else 1
        lane.lost_at = max(steps, lane.lost_at)
        if lane.losses >= MOST_LOSSES:
            lane.problem = f"its process died {lane.losses} times after {max(steps, 0):,} steps"

    def _change(self, lane: LaneState, event: Event) -> None:
        match event:
            case {"event": "claim", "worker": str(worker)}:
                lane.holder = lane.worker = worker
            case {"event": "stopped", "seconds": int() | float() as seconds}:
                lane.holder = None
                lane.seconds += seconds
                lane.note_steps(event.get("env_steps"))
            case {"event": "failed", "problem": str(problem)}:
                lane.holder = None
                lane.problem = problem
                lane.note_steps(event.get("env_steps"))
            case {
                "event": "done",
                "rung": int(rung),
                "score": int() | float() as score,
                "env_steps": int(steps),
                "seconds": int() | float() as seconds,
            }:
                rate = event.get("rate")
                if isinstance(rate, int | float) and rate >= 0:
                    rest = max(0.0, seconds - rate * (steps - lane.env_steps))
                    lane.rate = float(rate)
                    lane.overhead = rest if lane.overhead is None else min(rest, lane.overhead)
                lane.holder = None
                lane.rung = max(lane.rung, rung)
                lane.scores[rung] = float(score)
                lane.env_steps = steps
                lane.seconds += seconds


def trial_name(number: int) -> str:
    """The directory of a trial."""
    return f"trials/{number:04d}"
