"""The console output of a run: a live bar on a terminal, plain lines anywhere else."""

import errno
import math
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import TextIO

from birl.run.display import NoDisplay, Status, choose_display, number
from birl.run.streams import silence

RATE_SAMPLES = 120  # updates of the bar, 15 s, over which the time left is estimated
GONE = (errno.EPIPE, errno.EIO, errno.EBADF)  # the reader left, like `head`; the terminal or the file was closed
SHARES = {"environment": "time/environment_share", "policy": "time/policy_share", "learning": "time/learning_share"}


class Console:
    """Shows the progress of a run. Call `close` in a `finally`: it restores the cursor."""

    def __init__(
        self,
        algorithm: str,
        env_id: str,
        total_steps: int,
        start_steps: int = 0,  # where a resumed run starts
        stream: TextIO | None = None,  # None: standard output
        clock: Callable[[], float] = time.monotonic,
        quiet: bool = False,  # show nothing but warnings, which go to standard error
    ) -> None:
        self._title = f"{algorithm} {env_id}"
        self._total_steps = total_steps
        self._start_steps = start_steps
        self._env_steps = start_steps
        self._seconds = 0.0
        self._metrics: dict[str, float] = {}  # the newest finite value of each
        self._lowest_return = math.inf  # of training
        self._clock = clock
        self._samples: deque[tuple[float, int]] = deque(maxlen=RATE_SAMPLES)  # begins after compilation
        self._next_show = -math.inf  # on the clock; infinity once closed
        self._shown_steps: int | None = None  # None: nothing was shown yet
        self._evaluated_steps: int | None = None  # of the newest evaluation
        self._stream = stream or sys.stdout or open(os.devnull, "w")  # noqa: SIM115  pythonw has no standard output
        self._display = NoDisplay() if quiet else choose_display(self._stream)

    def write(self, env_steps: int, seconds: float, metrics: Mapping[str, float]) -> None:
        """Take new metrics, and show them as `progress` does."""
        for name, value in metrics.items():
            if value == value:  # NaN: no episode ended in this update, so the last return is still shown
                self._metrics[name] = value
        if "eval/return_mean" in metrics:
            self._evaluated_steps = env_steps
        self._lowest_return = min(self._lowest_return, self._metrics.get("episode/return", math.inf))
        self.progress(env_steps, seconds)

    def progress(self, env_steps: int, seconds: float) -> None:
        """Show how far the run is, unless something was shown a moment ago."""
        self._env_steps = env_steps
        self._seconds = seconds
        now = self._clock()
        # The last step is shown before the final evaluation begins.
        at_end = env_steps >= self._total_steps and (self._shown_steps or 0) < self._total_steps
        if self._next_show < math.inf and (now >= self._next_show or at_end):
            self._next_show = now + self._display.interval
            self._show(now)

    def compiling(self) -> None:
        """Say that the first update is being compiled. Nothing else is shown until it is there."""
        if self._shown_steps is None:
            self._show_facts(["compiling"])

    def evaluating(self, ended: int, episodes: int, steps: int) -> None:
        """Show an evaluation's progress: finished episodes, and the steps of the longest other."""
        now = self._clock()
        begins = self._display.is_live and steps == 0 and ended == 0  # it may be compiled first, which takes long
        if self._next_show < math.inf and (now >= self._next_show or begins):
            self._next_show = now + self._display.interval
            self._show_facts([f"evaluating: {ended} of {episodes} episodes", f"step {steps:,}"])

    @property
    def training_returns(self) -> tuple[float, float]:
        """The newest training return, and the lowest that was shown; NaN if none is known."""
        newest = self._metrics.get("episode/return", math.nan)
        return newest, min(newest, self._lowest_return)

    def message(self, text: str) -> None:
        """Print a line that stays on the screen, above the bar."""
        self._try(partial(self._display.say, text))

    def warn(self, text: str) -> None:
        """Print a warning that stays on the screen, above the bar."""
        self._try(partial(self._display.warn, f"warning: {text}"))

    def close(self) -> None:
        """Show the last status and the final score, and restore the terminal."""
        if self._next_show == math.inf:
            return
        self._next_show = math.inf
        if self._shown_steps not in (None, self._env_steps):
            self._show(self._clock())
        self._try(self._display.close)
        if self._shown_steps is not None:
            self.message(self._summary())

    def _try(self, call: Callable[[], None]) -> None:
        """Call the display. A closed terminal must not end a run."""
        try:
            call()
        except OSError as problem:
            if problem.errno in GONE:
                silence(self._stream)

    def _show(self, now: float) -> None:
        self._samples.append((now, self._env_steps))
        self._shown_steps = self._env_steps
        self._try(partial(self._display.show, self._status()))

    def _show_facts(self, facts: list[str]) -> None:
        """Show what the run is doing, and how far it is."""
        self._try(partial(self._display.show, Status(self._title, self._fraction(), self._numbers(), facts)))

    def _status(self) -> Status:
        then, then_steps = self._samples[0]
        now, steps = self._samples[-1]
        rate = (steps - then_steps) / (now - then) if now > then else math.nan
        left = max(0, self._total_steps - steps) / rate if rate > 0 else math.nan
        speed = self._metrics.get("time/env_steps_per_second", rate)
        known = [("return {}", self._metrics.get("episode/return", math.nan)), ("{} steps/s", speed)]
        facts = [text.format(number(value)) for text, value in known if math.isfinite(value)]
        shares = [f"{name} {self._metrics[metric]:.0%}" for name, metric in SHARES.items() if metric in self._metrics]
        time_left = [f"{duration(left)} left"] if math.isfinite(left) else []
        return Status(self._title, self._fraction(), self._numbers() + time_left, facts + shares)

    def _fraction(self) -> float:
        return min(1.0, self._env_steps / self._total_steps) if self._total_steps > 0 else 1.0

    def _numbers(self) -> list[str]:
        return [f"{self._fraction():4.0%}", f"{self._env_steps:,} / {self._total_steps:,} steps"]

    def _summary(self) -> str:
        steps = f"{self._env_steps:,} steps"
        if self._env_steps < self._total_steps:
            steps = f"stopped at {self._env_steps:,} of {self._total_steps:,} steps"
        if self._start_steps:
            steps += f" (resumed at {self._start_steps:,})"
        if self._evaluated_steps == self._env_steps:
            found = (self._metrics.get(f"eval/{name}", math.nan) for name in ("return_mean", "return_std", "episodes"))
            score = f"evaluation {score_text(*found)}"
        else:
            score = f"training return {number(self._metrics.get('episode/return', math.nan))}, not evaluated"
        return f"{self._title}: {steps} in {duration(self._seconds)}, {score}"


def score_text(mean: float, deviation: float, episodes: float) -> str:
    """The result of an evaluation: "return 21.5 +/- 3.2 over 20 episodes"."""
    spread = f" +/- {number(deviation)}" if math.isfinite(deviation) else ""
    return f"return {number(mean)}{spread}" + (f" over {episodes:.0f} episodes" if math.isfinite(episodes) else "")


def memory_size(size: float) -> str:
    """A number of bytes in kB, MB or GB."""
    unit, name = next(((unit, name) for unit, name in ((1e9, "GB"), (1e6, "MB")) if size >= unit), (1e3, "kB"))
    return f"{size / unit:.1f} {name}"


def duration(seconds: float) -> str:
    """Seconds as text: 3.2 s, 4:05, 1:02:03."""
    if not math.isfinite(seconds):
        return "-"
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"
