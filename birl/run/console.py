"""The console output of a run: a live bar on a terminal, plain lines anywhere else, or nothing."""

import atexit
import errno
import math
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TextIO

import rich.console
from rich.live import Live
from rich.text import Text

from birl.errors import printable, printable_lines
from birl.run.signals import silence

BAR_SECONDS = 1 / 8  # between two updates of the bar
LINE_SECONDS = 2.0  # between two plain lines
RATE_SAMPLES = 120  # updates of the bar, 15 s, over which the time left is estimated
GONE = (errno.EPIPE, errno.EIO, errno.EBADF)  # the reader left, like `head`; the terminal or the file was closed
SHARES = {"environment": "time/environment_share", "policy": "time/policy_share", "learning": "time/learning_share"}


@dataclass(frozen=True)
class Status:
    """The state of a run at one moment, as text. A narrow terminal drops the last of each list."""

    title: str
    fraction: float  # of total_steps, 0 to 1
    numbers: list[str]  # how far the run is, most important first
    facts: list[str]  # how well it is doing, most important first


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


class Display(Protocol):
    """A way to show the status of a run."""

    interval: float  # seconds between two calls of `show`
    is_live: bool  # each status replaces the one before

    def show(self, status: Status) -> None: ...

    def say(self, text: str) -> None: ...

    def warn(self, text: str) -> None: ...

    def close(self) -> None: ...


class TextConsole(rich.console.Console):
    """Rich's console, without an exit of its own where the reader has gone: that is an OSError."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


class LiveBar:
    """Two lines at the bottom of a terminal. No thread draws them, so training is not disturbed."""

    interval = BAR_SECONDS
    is_live = True

    def __init__(self, stream: TextIO) -> None:
        self._console = TextConsole(file=stream, force_terminal=True, highlight=False, markup=False, emoji=False)
        # What other code prints goes above the bar, unless it is redirected to a file.
        outs, errors = (stream is not None and stream.isatty() for stream in (sys.stdout, sys.stderr))
        self._live = Live(
            console=self._console, auto_refresh=False, transient=True, redirect_stdout=outs, redirect_stderr=errors
        )

    def show(self, status: Status) -> None:
        if not self._live.is_started:
            atexit.register(self._live.stop)  # restores the cursor even if `close` is not called
            self._live.start()
        self._live.update(two_lines(status, self._console.width, _is_unicode(self._console.encoding)), refresh=True)

    def say(self, text: str) -> None:
        self._console.print(printable_lines(text), soft_wrap=True)

    warn = say

    def close(self) -> None:
        self._live.stop()
        atexit.unregister(self._live.stop)


class PlainLines:
    """Lines for a file or a pipe: no control characters, few enough to read, no status twice."""

    interval = LINE_SECONDS
    is_live = False

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._shown: Status | None = None

    def show(self, status: Status) -> None:
        if status != self._shown:
            self._shown = status
            self.say(f"{status.title}: {', '.join(status.numbers + status.facts)}")

    def say(self, text: str) -> None:
        encoding = self._stream.encoding or "utf-8"
        text = printable_lines(text)
        self._stream.write(text.encode(encoding, "replace").decode(encoding) + "\n")  # no character may end a run
        self._stream.flush()

    warn = say

    def close(self) -> None:
        pass


class NoDisplay:
    """Shows nothing but warnings, on standard error."""

    interval = LINE_SECONDS
    is_live = False

    def show(self, status: Status) -> None:
        pass

    def say(self, text: str) -> None:
        pass

    def warn(self, text: str) -> None:
        if sys.stderr is not None:
            sys.stderr.write(f"birl: {printable_lines(text)}\n")

    def close(self) -> None:
        pass


def choose_display(stream: TextIO) -> Display:
    # Not Rich's own test: FORCE_COLOR and TTY_COMPATIBLE would draw a bar into a file.
    has_cursor = stream.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")
    return LiveBar(stream) if has_cursor else PlainLines(stream)


def two_lines(status: Status, width: int, unicode: bool) -> Text:
    """Two lines of at most `width` characters; the bar fills the space that is left, if any."""
    title, *numbers = _fit([printable(status.title), *status.numbers], width)
    bar_width = min(40, width - len("  ".join([title, "", *numbers])))
    bar = _bar(status.fraction, bar_width, unicode) if bar_width >= 6 else Text()
    first = [part for part in (Text(title, "bold"), bar, Text("  ".join(numbers))) if part]
    facts = Text("  ".join(_fit(status.facts, width)), "dim")
    return Text("\n", no_wrap=True, overflow="crop").join([Text("  ").join(first), facts])


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


def number(value: float) -> str:
    """A number with four digits, or a larger one as a whole number."""
    if not math.isfinite(value):
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def counted(count: int, what: str) -> str:
    """A number of things in words: 1 seed, 2 seeds."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _bar(fraction: float, width: int, unicode: bool) -> Text:
    full, empty = ("━", "─") if unicode else ("#", "-")
    filled = int(fraction * width)
    return Text.assemble((full * filled, "green"), (empty * (width - filled), "bright_black"))


def _fit(parts: list[str], width: int) -> list[str]:
    """As many of the parts as fit into this width; the first is shortened if it does not."""
    kept = len(parts)
    while kept > 1 and len("  ".join(parts[:kept])) > width:
        kept -= 1
    return [part[:width] for part in parts[:kept]]


def _is_unicode(encoding: str) -> bool:
    return encoding.lower().startswith("utf")
