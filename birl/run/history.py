"""The settings, metrics and summary in a run's directory, and groups of runs by settings."""

import json
import os
import warnings
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np

from birl.config import ConfigError, require
from birl.errors import CheckpointError
from birl.run.directory import (
    METRICS,
    Fork,
    SettingsChange,
    StoredSettings,
    flatten,
    holds_run,
    read_fork,
    read_settings,
    runs_below,
    settings_before,
)
from birl.run.files import require_memory
from birl.run.groups.lane import lane_problem, lane_summary
from birl.run.logging import Row, read_metrics
from birl.workers.child import free_memory

FORKED = "fork"  # a setting of forks: where they branched off
FORK_BEFORE = "fork.before"  # ... and what they changed
RESUMED = "resume.before"  # a setting of runs that were resumed with other settings: what these were before
ROW_TIMES = 17  # as rows in memory, a file of short lines takes so many times its size
MOST_SHOWN = 3  # if groups differ in more settings, a label names only as many as needed
# Settings that do not change what is learned: runs that differ only in these are one group.
BOOKKEEPING = frozenset(
    f"run.{name}"
    for name in (
        "seed", "run_dir", "eval_every", "eval_episodes", "eval_deterministic", "checkpoint_every", "keep_checkpoints",
        "keep_every", "log_every", "log_seconds", "tensorboard", "wandb", "trackio", "metric_names", "video_every",
    )
)  # fmt: skip
SAME_RESULT = BOOKKEEPING | {"env.workers"}  # runs with other numbers of workers are equal, bit for bit


class HasSettings(Protocol):
    """Anything with the settings that runs are grouped by."""

    @property
    def settings(self) -> dict[str, Any]: ...


Settled = TypeVar("Settled", bound=HasSettings)


@dataclass(frozen=True)
class RunHistory:
    """A run, as its directory has it now; it may still be training."""

    run_dir: Path
    settings: dict[str, Any]  # flat: "algorithm", "env.id", "run.seed", "learning_rate", ...
    rows: list[Row]  # of metrics.jsonl; none if it has not been written yet
    summary: dict[str, Any] | None  # of summary.json; None: the run has not ended
    problem: str | None = None  # why it failed, as the summary of its group says
    config: dict[str, Any] = field(default_factory=dict)  # the settings as config.json has them, nested
    fork: Fork | None = None  # the checkpoint of another run that it began with; None: it is no fork
    changes: tuple[SettingsChange, ...] = ()  # of the settings, by resumes: of those that change what is learned

    @property
    def seed(self) -> int:
        return int(self.settings["run.seed"])

    @cached_property
    def _metric_names(self) -> frozenset[str]:
        return frozenset(name for row in self.rows for name, value in row.items() if value is not None)

    @cached_property
    def _curves(self) -> dict[tuple[str, str], tuple[np.ndarray, np.ndarray]]:
        """The curves that were asked for: to read one takes a walk over all rows."""
        return {}

    @cached_property
    def last_step(self) -> int:
        """The largest number of environment steps of a row; 0 if there is none."""
        return max((int(row["env_steps"] or 0) for row in self.rows), default=0)

    def metric_names(self) -> frozenset[str]:
        """The metrics that have a value in some row."""
        return self._metric_names

    def curve(self, metric: str, x: str = "env_steps") -> tuple[np.ndarray, np.ndarray]:
        """The metric over steps or seconds, in their order; rows without it are left out.

        Of several rows at one place the last counts. The arrays are read-only.
        """
        if (metric, x) not in self._curves:
            self._curves[metric, x] = self._read_curve(metric, x)
        return self._curves[metric, x]

    def _read_curve(self, metric: str, x: str) -> tuple[np.ndarray, np.ndarray]:
        rows = [row for row in self.rows if row.get(x) is not None and row.get(metric) is not None]
        at, values = (np.array([row[name] for row in rows], float) for name in (x, metric))
        order = np.argsort(at, kind="stable")
        at, values = at[order], values[order]
        last = np.append(np.diff(at) > 0, True)[: len(at)]
        at, values = at[last], values[last]
        at.flags.writeable = values.flags.writeable = False  # all callers share them
        return at, values


@dataclass(frozen=True)
class SeedGroup:
    """Runs that differ only in their seed."""

    label: str  # the algorithm, and what differs from the other groups
    settings: dict[str, Any]  # the flat settings that they share
    runs: list[RunHistory]


def comparable_settings(algorithm: str, config: dict[str, Any]) -> dict[str, Any]:
    """The settings of a Config, as JSON, by dotted name; a schedule is one text."""
    return flatten({"algorithm": algorithm} | _schedules_as_text(config))


def read_history(run_dir: Path) -> RunHistory:
    """The run in this directory; ConfigError or CheckpointError if it holds none."""
    stored = read_settings(run_dir)
    settings = comparable_settings(stored.algorithm, stored.values)
    require(isinstance(settings.get("env.id"), str), f"{run_dir / 'config.json'} is damaged: it must name an env.id")
    whole = type(settings.get("run.seed")) is int
    require(whole, f"{run_dir / 'config.json'} is damaged: run.seed {settings.get('run.seed')!r} is not a whole number")
    fork = _fork_of(run_dir)
    settings |= {} if fork is None else _fork_settings(fork, settings)
    changes = _of_learning(stored.changes)
    settings |= {RESUMED: _changes_text(stored, changes)} if changes else {}
    path = run_dir / METRICS
    rows = _read_rows(path) if os.path.lexists(path) else []
    ended = lane_summary(run_dir), lane_problem(run_dir)
    return RunHistory(run_dir, settings, rows, *ended, stored.values, fork, changes)


def _read_rows(path: Path) -> list[Row]:
    """The rows of a metrics.jsonl; UnreadableError if they might not fit in the memory."""
    require_memory(path, ROW_TIMES, free_memory())
    return list(read_metrics(path))


def _fork_of(run_dir: Path) -> Fork | None:
    """The content of fork.json. A damaged one is reported and ignored."""
    try:
        return read_fork(run_dir)
    except CheckpointError as problem:
        warnings.warn(str(problem), stacklevel=3)
        return None


def read_histories(directory: Path) -> list[RunHistory]:
    """The run in this directory, or else the runs below it, in the order of their names.

    Of several, those that cannot be read are left out with a warning.
    """
    below = [] if holds_run(directory) else runs_below(directory)
    if not below:
        return [read_history(directory)]
    found = []
    for run_dir in below:
        try:
            found.append(read_history(run_dir))
        except (ConfigError, CheckpointError) as problem:
            warnings.warn(f"left out: {problem}", stacklevel=2)
    require(len(found) > 0, f"no run below {directory} can be read")
    return found


def by_settings(runs: Iterable[RunHistory]) -> list[SeedGroup]:
    """One group for all runs that differ only in their seed, labelled by what tells it apart."""
    return [SeedGroup(*group) for group in split_by_settings(runs)]


def split_by_settings(runs: Iterable[Settled]) -> list[tuple[str, dict[str, Any], list[Settled]]]:
    """As `by_settings`, for anything with settings: label, settings, members of each group."""
    groups: dict[str, list[Settled]] = defaultdict(list)
    for run in runs:
        relevant = {name: value for name, value in run.settings.items() if name not in BOOKKEEPING}
        groups[json.dumps(relevant, sort_keys=True)].append(run)
    settings = [json.loads(key) for key in groups]
    members = zip(settings, groups.values(), strict=True)
    return [(label(one, settings), one, runs) for one, runs in members]


def label(one: dict[str, Any], others: Sequence[dict[str, Any]]) -> str:
    """The text of a legend for these settings: the algorithm, and what differs from others.

    The environment is named if there are several.
    """
    siblings = [other for other in others if all(other[name] == one[name] for name in ("algorithm", "env.id"))]
    different = differing(siblings)
    several_envs = any(other["env.id"] != one["env.id"] for other in others)
    words = [one["algorithm"], *([one["env.id"]] if several_envs else [])]
    without = [name for name in different if name != FORK_BEFORE]
    if _distinct(without, siblings) == _distinct(different, siblings):
        different = without  # what was before a fork is only named if nothing else tells them apart
    shown = different if len(different) <= MOST_SHOWN else _distinguishing(different, siblings)
    more = [f"and {len(different) - len(shown)} more settings"] if len(shown) < len(different) else []
    return ", ".join([" ".join(words), *filter(None, (_setting_text(name, one) for name in shown)), *more])


def differing(settings: Sequence[dict[str, Any]]) -> list[str]:
    """The names of the settings that are not the same in all of these, in alphabetic order."""
    names = sorted({name for one in settings for name in one})
    return [name for name in names if any(one.get(name) != settings[0].get(name) for one in settings)]


def _schedules_as_text(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings in which a schedule is one value: the exact text that its option takes."""
    return {name: _schedule_as_text(value) for name, value in settings.items()}


def _schedule_as_text(value: Any) -> Any:
    match value:
        case {"kind": "piecewise", "values": list(values), "points": list(points)} if len(values) == len(points):
            return "piecewise:" + ",".join(f"{at!r}={one!r}" for at, one in zip(points, values, strict=True))
        case {"kind": str(kind), "values": list(values), "points": list(points)}:
            return ":".join([kind, *map(repr, values if points == [1.0] else [*values, *points])])
        case dict():
            return _schedules_as_text(value)
    return value


def _distinguishing(different: list[str], siblings: Sequence[dict[str, Any]]) -> list[str]:
    """A small set of settings, chosen greedily, that tells siblings apart as well as all of them.

    Runs of two directories may have equal settings: nothing tells these apart.
    """
    shown: list[str] = []
    while _distinct(shown, siblings) < _distinct(different, siblings):
        shown.append(max(different, key=lambda name: _distinct([*shown, name], siblings)))
    return shown


def _distinct(names: Sequence[str], siblings: Sequence[dict[str, Any]]) -> int:
    """The number of siblings that these settings tell apart."""
    return len({json.dumps([sibling.get(name) for name in names]) for sibling in siblings})


def _setting_text(name: str, one: dict[str, Any]) -> str:
    """A setting in a label; "" for what a run has not that is no fork."""
    if name in (FORKED, FORK_BEFORE, RESUMED):
        return one.get(name, "")
    return f"{name.removeprefix('run.')}={one.get(name, 'unset')}"


def _fork_settings(fork: Fork, settings: dict[str, Any]) -> dict[str, str]:
    """Two more settings: a fork is not grouped with runs that had its settings all along."""
    parent = settings | {name: old for name, (old, _) in fork.changed.items()}
    place = _rounded_steps(fork.env_steps, parent)
    before = {name: _schedule_as_text(old) for name, (old, _) in fork.changed.items() if name not in BOOKKEEPING}
    text = ", ".join(f"{name.removeprefix('run.')}={old}" for name, old in sorted(before.items()))
    return {FORKED: f"fork at {place}", FORK_BEFORE: f"before: {text or 'the same'}"}


def _of_learning(changes: Sequence[SettingsChange]) -> tuple[SettingsChange, ...]:
    """The changes without settings that do not change what is learned."""
    kept = [
        replace(change, changed={name: pair for name, pair in change.changed.items() if name not in SAME_RESULT})
        for change in changes
    ]
    return tuple(change for change in kept if change.changed)


def _changes_text(stored: StoredSettings, changes: Sequence[SettingsChange]) -> str:
    """The settings that a run had before it was resumed with others, and until when."""
    texts = []
    for number, change in enumerate(changes):
        before = comparable_settings(stored.algorithm, settings_before(stored.values, changes[number:]))
        old = ", ".join(f"{name.removeprefix('run.')}={before.get(name)}" for name in sorted(change.changed))
        texts.append(f"{old} until {_rounded_steps(change.env_steps, before)}")
    return "; ".join(texts)


def _rounded_steps(env_steps: int, parent: dict[str, Any]) -> str:
    """The steps of a checkpoint, the same text for several seeds.

    Their checkpoints are the first after the same steps, but not at exactly the same ones.
    """
    for name in ("run.keep_every", "run.checkpoint_every"):
        every = parent.get(name)
        if type(every) is int and env_steps >= every > 0 and env_steps % every <= every / 10:
            return f"{env_steps // every * every:,} steps"
    total = parent.get("run.total_steps")
    if type(total) is int and env_steps >= total:
        return f"{total:,} steps"
    return f"{100 * env_steps / total:.0f} %" if type(total) is int and total > 0 else f"{env_steps:,} steps"
