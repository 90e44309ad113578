"""Logging during a run: what a line has, and where it goes. Which updates get one: see due.py."""

from collections.abc import Mapping, Sequence
from typing import Any

from birl.config import RunConfig
from birl.run.console import Console
from birl.run.open_directory import OpenDirectory
from birl.run.progress import RunProgress
from birl.run.track import Sink
from birl.types import Metrics, Update

PARTS = ("environment", "policy", "learning", "program")  # of the time that training takes; program: all in one


class RunLog:
    """Sends metrics to the sinks and the console."""

    def __init__(
        self,
        run: RunConfig,
        directory: OpenDirectory,
        sinks: Sequence[Sink],
        console: Console,
        progress: RunProgress,
    ) -> None:
        self._run = run
        self._directory = directory
        self._sinks = sinks
        self._console = console
        self._progress = progress
        self._last = {"seconds": progress.start_seconds, "env_steps": float(progress.start_steps)}  # at the last line
        self._failures: dict[Sink, str] = {}  # why the last metrics were not written; reported once

    def write_update(self, update: Update) -> None:
        """Log the metrics of an update, with how fast it was."""
        seconds = self._progress.wall_seconds()
        env_steps = int(update.state.env_steps)
        times = {name: update.metrics.get(f"time/{name}_seconds") for name in PARTS}
        spent = {name: float(seconds) for name, seconds in times.items() if seconds is not None}
        elapsed = max(seconds - self._last["seconds"], 1e-9)
        metrics = {name: float(value) for name, value in update.metrics.items()}
        if self._last.keys() >= spent.keys():  # the first line has nothing to compare with
            metrics |= {f"time/{name}_share": (value - self._last[name]) / elapsed for name, value in spent.items()}
        metrics["time/env_steps_per_second"] = (env_steps - self._last["env_steps"]) / elapsed
        metrics["time/cpu_seconds"] = self._progress.cpu_seconds()
        self._last = {"seconds": seconds, "env_steps": float(env_steps)} | spent
        self.write(env_steps, metrics)

    def write_own(self, metrics: Mapping[str, Any]) -> None:
        """Log numbers that the user computed."""
        self.write(self._progress.steps, {name: _number(name, value) for name, value in metrics.items()})

    def write(self, env_steps: int, metrics: Metrics) -> None:
        """Send metrics to every sink and to the console."""
        self._directory.require_in_place(self._progress.steps)
        for sink in self._sinks:
            try:
                sink.write(env_steps, self._progress.wall_seconds(), metrics)
                self._failures.pop(sink, None)
            except OSError as problem:  # a full disk; the sink keeps the line, and writes it once there is room
                if str(problem) != self._failures.get(sink):
                    self._console.message(f"metrics not written, training goes on: {problem}")
                self._failures[sink] = str(problem)
        self.show(env_steps, metrics)

    def show(self, env_steps: int, metrics: Metrics) -> None:
        """Send metrics to the console only."""
        self._console.write(env_steps, self._progress.wall_seconds(), metrics)


def _number(name: str, value: Any) -> float:
    """A number to log; an error names it if it is none."""
    wrong = f"run.log got {name!r}: {value!r}"
    if not isinstance(name, str) or name in ("env_steps", "seconds"):
        raise ValueError(f"{wrong}; choose another name")
    try:
        return float(value)
    except (TypeError, ValueError) as problem:
        raise ValueError(f"{wrong}; give a number") from problem
