"""Logging during a run: metrics.jsonl always, the console, and trackers if asked for.

metrics.jsonl always has Birl's names, so that `birl plot` can read every run. Trackers get the
names of `metric_names` (see trackers.py).
"""

import json
import math
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

from birl.config import ConfigError, RunConfig
from birl.run.directory import METRICS
from birl.run.files import NO_FOLLOW, open_to_read, replacing, require_size
from birl.run.trackers import Aliases, TensorBoardSink, TrackioSink, WandbSink, aliases_of, rename
from birl.types import Metrics, Update

if TYPE_CHECKING:
    from birl.run.saving import OpenRun  # imports JAX, which plotting does not need

Row = dict[str, float | None]
APPEND = os.O_WRONLY | os.O_APPEND | NO_FOLLOW
LINE_BYTES = 1 << 20  # the longest line that is read
FILE_BYTES = 1 << 33  # the largest file that is read; by default a run writes less than 100 MB
MOST_WAITING = 10_000  # lines kept in memory while the disk is full, about 10 MB
PARTS = ("environment", "policy", "learning", "program")  # of the time that training takes; program: all in one


class Sink(Protocol):
    """A place that metrics are written to."""

    def write(self, env_steps: int, seconds: float, metrics: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


class RunLog:
    """Sends metrics to the sinks and the console."""

    def __init__(self, run: "OpenRun", sinks: Sequence[Sink]) -> None:
        self._run = run
        self._sinks = sinks
        # At the last line.
        self._last = {"seconds": run.progress.start_seconds, "env_steps": float(run.progress.start_steps)}
        self._failures: dict[Sink, str] = {}  # why the last metrics were not written; reported once

    def write_update(self, update: Update) -> None:
        """Log the metrics of an update, with how fast it was."""
        progress = self._run.progress
        seconds = progress.wall_seconds()
        env_steps = int(update.state.env_steps)
        times = {name: update.metrics.get(f"time/{name}_seconds") for name in PARTS}
        spent = {name: float(seconds) for name, seconds in times.items() if seconds is not None}
        elapsed = max(seconds - self._last["seconds"], 1e-9)
        metrics = {name: float(value) for name, value in update.metrics.items()}
        if self._last.keys() >= spent.keys():  # the first line has nothing to compare with
            metrics |= {f"time/{name}_share": (value - self._last[name]) / elapsed for name, value in spent.items()}
        metrics["time/env_steps_per_second"] = (env_steps - self._last["env_steps"]) / elapsed
        metrics["time/cpu_seconds"] = progress.cpu_seconds()
        self._last = {"seconds": seconds, "env_steps": float(env_steps)} | spent
        self.write(env_steps, metrics)

    def write_own(self, metrics: Mapping[str, Any]) -> None:
        """Log numbers that the user computed."""
        self.write(self._run.progress.steps, {name: _number(name, value) for name, value in metrics.items()})

    def write(self, env_steps: int, metrics: Metrics) -> None:
        """Send metrics to every sink and to the console."""
        progress = self._run.progress
        self._run.directory.require_in_place(progress.steps)
        for sink in self._sinks:
            try:
                sink.write(env_steps, progress.wall_seconds(), metrics)
                self._failures.pop(sink, None)
            except OSError as problem:  # a full disk; the sink keeps the line, and writes it once there is room
                if str(problem) != self._failures.get(sink):
                    self._run.console.message(f"metrics not written, training goes on: {problem}")
                self._failures[sink] = str(problem)
        self.show(env_steps, metrics)

    def show(self, env_steps: int, metrics: Metrics) -> None:
        """Send metrics to the console only."""
        self._run.console.write(env_steps, self._run.progress.wall_seconds(), metrics)


def open_sinks(run: RunConfig, run_dir: Path, config_json: dict[str, Any], resume_at: int | None = None) -> list[Sink]:
    """The sinks that a run asks for; lines beyond `resume_at` environment steps are removed."""
    path = run_dir / METRICS
    sinks: list[Sink] = []
    # metrics.jsonl is made last: if something fails before it, the same command can be run again.
    if run.wandb is not None:
        sinks.append(WandbSink(run.wandb, run_dir, config_json))
    if run.trackio is not None:
        rows = read_metrics(path) if resume_at is not None else ()
        logged = max((int(row["env_steps"] or 0) for row in rows), default=-1)
        sinks.append(TrackioSink(run.trackio, run_dir, config_json, logged))
    if run.tensorboard:
        sinks.append(TensorBoardSink(run_dir / "tensorboard", config_json, resume_at))
    aliases = aliases_of(config_json.get("algorithm", ""), run.metric_names)
    return [JsonlSink(path, resume_at), *(RenamedSink(sink, aliases) for sink in sinks)]


class JsonlSink:
    """metrics.jsonl: one strict JSON object per line, written without buffering.

    Lines that do not fit on a full disk are kept, and written before the next one.
    """

    def __init__(self, path: Path, resume_at: int | None = None) -> None:
        self._path = path
        self._descriptor = _create(path) if resume_at is None else _reopen(path, resume_at)
        self._waiting: list[bytes] = []  # lines to write; the first may be partly written
        self._lost = 0  # lines that were dropped because too many were waiting

    def write(self, env_steps: int, seconds: float, metrics: Mapping[str, float]) -> None:
        row = {"env_steps": env_steps, "seconds": round(seconds, 3)}
        self._waiting.append(_to_line(row | {name: float(value) for name, value in metrics.items()}))
        if len(self._waiting) > MOST_WAITING:
            del self._waiting[1]
            self._lost += 1
        self._flush()

    def close(self) -> None:
        """Write the waiting lines; warn of those that could not be written."""
        try:
            self._flush()
        except OSError as problem:
            self._lost += len(self._waiting)
            warnings.warn(f"{self._path}: {self._lost} lines were not written: {problem}", stacklevel=2)
        else:
            if self._lost:
                lost = f"{self._path}: {self._lost} lines were not written"
                warnings.warn(f"{lost}: the disk was full for too long", stacklevel=2)
        os.close(self._descriptor)

    def _flush(self) -> None:
        while self._waiting:
            line = self._waiting[0]
            written = os.write(self._descriptor, line)
            if written < len(line):  # the disk is full
                self._waiting[0] = line[written:]
            else:
                del self._waiting[0]


class RenamedSink:
    """Passes metrics to another sink under another library's names."""

    def __init__(self, sink: Sink, aliases: Aliases) -> None:
        self._sink = sink
        self._aliases = aliases

    def write(self, env_steps: int, seconds: float, metrics: Mapping[str, float]) -> None:
        self._sink.write(env_steps, seconds, rename(metrics, self._aliases))

    def close(self) -> None:
        self._sink.close()


def read_metrics(path: Path) -> Iterator[Row]:
    """The rows of a metrics.jsonl, one at a time; null is None.

    Damaged lines are skipped with a warning; a cut last line is skipped silently.
    """
    return (row for row, _ in _rows(path))


def parse_row(line: bytes) -> Row | None:
    """The row in this line: env_steps, and numbers or nulls by name; None if it is no row."""
    try:
        row = json.loads(line.decode())
    except (ValueError, RecursionError):
        return None
    if not isinstance(row, dict) or type(row.get("env_steps")) is not int or not 0 <= row["env_steps"] < 2**63:
        return None
    numbers = (value for value in row.values() if value is not None)
    return row if all(type(value) in (int, float) and abs(value) < 1e300 for value in numbers) else None


def _number(name: str, value: Any) -> float:
    """The value as a number to log; ValueError names the metric if it is not a number."""
    wrong = f"run.log got {name!r}: {value!r}"
    if not isinstance(name, str) or name in ("env_steps", "seconds"):
        raise ValueError(f"{wrong}; choose another name")
    try:
        return float(value)
    except (TypeError, ValueError) as problem:
        raise ValueError(f"{wrong}; give a number") from problem


def _rows(path: Path) -> Iterator[tuple[Row, bytes]]:
    """Each row, and the line that it was read from."""
    damaged: list[int] = []
    number = 0
    with open_to_read(path) as file:
        require_size(file, path, FILE_BYTES)
        for number, line in enumerate(_lines(file), start=1):
            row = parse_row(line)
            if row is None:
                damaged.append(number)
            else:
                yield row, line
    if damaged and damaged[-1] == number:  # cut while it was written
        damaged.pop()
    if damaged:
        warnings.warn(
            f"{path}: {len(damaged)} lines are not rows of metrics and are skipped; the first is line {damaged[0]}",
            stacklevel=2,
        )


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """The lines without line breaks, each cut after LINE_BYTES."""
    while line := file.readline(LINE_BYTES):
        rest = line
        while len(rest) == LINE_BYTES and not rest.endswith(b"\n"):
            rest = file.readline(LINE_BYTES)
        yield line.rstrip(b"\r\n")


def _create(path: Path) -> int:
    try:
        return os.open(path, APPEND | os.O_CREAT | os.O_EXCL, 0o666)
    except FileExistsError as problem:
        raise ConfigError(
            f"run_dir {path.parent} already holds {path.name}; resume that run or choose another run_dir"
        ) from problem


def _reopen(path: Path, resume_at: int) -> int:
    with replacing(path) as file:
        file.writelines(line + b"\n" for row, line in _rows(path) if (row["env_steps"] or 0) <= resume_at)
    return os.open(path, APPEND)


def _to_line(row: Mapping[str, float | None]) -> bytes:
    # JSON has no NaN or infinity, and most readers reject the way Python writes them.
    finite = {name: value if value is not None and math.isfinite(value) else None for name, value in row.items()}
    return f"{json.dumps(finite, allow_nan=False)}\n".encode()
