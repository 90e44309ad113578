"""Where metrics go: metrics.jsonl always, TensorBoard, Weights & Biases and Trackio if asked for.

metrics.jsonl always has Birl's names, so that `birl plot` can read every run. The others get the
names of `metric_names` (see metric_names.py).
"""

import json
import math
import os
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from birl.config import ConfigError, RunConfig
from birl.run.files import NO_FOLLOW, open_to_read, replacing, require_size
from birl.run.metric_names import Aliases, aliases_of, rename

Row = dict[str, float | None]
APPEND = os.O_WRONLY | os.O_APPEND | NO_FOLLOW
LINE_BYTES = 1 << 20  # the longest line that is read
FILE_BYTES = 1 << 33  # the largest file that is read; by default a run writes less than 100 MB
MOST_WAITING = 10_000  # lines kept in memory while the disk is full, about 10 MB


class Sink(Protocol):
    """A place that metrics are written to."""

    def write(self, env_steps: int, seconds: float, metrics: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


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


def open_sinks(run: RunConfig, run_dir: Path, config_json: dict[str, Any], resume_at: int | None = None) -> list[Sink]:
    """The sinks that a run asks for; lines beyond `resume_at` environment steps are removed."""
    sinks: list[Sink] = []
    aliases = aliases_of(config_json.get("algorithm", ""), run.metric_names)
    # metrics.jsonl is made last: if something fails before it, the same command can be run again.
    if run.wandb is not None:
        from birl.run.wandb import WandbSink  # slow to import and not always installed

        sinks.append(RenamedSink(WandbSink(run.wandb, run_dir, config_json), aliases))
    if run.trackio is not None:
        from birl.run.trackio import TrackioSink  # slow to import and not always installed

        logged = _last_step(run_dir / "metrics.jsonl") if resume_at is not None else -1
        sinks.append(RenamedSink(TrackioSink(run.trackio, run_dir, config_json, logged), aliases))
    if run.tensorboard:
        from birl.run.tensorboard import TensorBoardSink  # slow to import

        sinks.append(RenamedSink(TensorBoardSink(run_dir / "tensorboard", config_json, resume_at), aliases))
    return [JsonlSink(run_dir / "metrics.jsonl", resume_at), *sinks]


def read_metrics(path: Path) -> Iterator[Row]:
    """The rows of a metrics.jsonl, one at a time; null is None.

    Damaged lines are skipped with a warning; a cut last line is skipped silently.
    """
    return (row for row, _ in _rows(path))


def _last_step(path: Path) -> int:
    """The largest number of environment steps in the rows; -1 if there are none."""
    return max((int(row["env_steps"] or 0) for row in read_metrics(path)), default=-1)


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
