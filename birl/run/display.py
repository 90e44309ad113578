"""The ways to show the status of a run: a live bar, plain lines, or nothing."""

import atexit
import errno
import math
import os
import sys
from dataclasses import dataclass
from typing import Protocol, TextIO

import rich.console
from rich.live import Live
from rich.text import Text

from birl.errors import printable, printable_lines

BAR_SECONDS = 1 / 8  # between two updates of the bar
LINE_SECONDS = 2.0  # between two plain lines


@dataclass(frozen=True)
class Status:
    """The state of a run at one moment, as text. A narrow terminal drops the last of each list."""

    title: str
    fraction: float  # of total_steps, 0 to 1
    numbers: list[str]  # how far the run is, most important first
    facts: list[str]  # how well it is doing, most important first


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
        self._live.update(draw(status, self._console.width, _is_unicode(self._console.encoding)), refresh=True)

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


def draw(status: Status, width: int, unicode: bool) -> Text:
    """Two lines of at most `width` characters; the bar fills the space that is left, if any."""
    title, *numbers = _fit([printable(status.title), *status.numbers], width)
    bar_width = min(40, width - len("  ".join([title, "", *numbers])))
    bar = _bar(status.fraction, bar_width, unicode) if bar_width >= 6 else Text()
    first = [part for part in (Text(title, "bold"), bar, Text("  ".join(numbers))) if part]
    facts = Text("  ".join(_fit(status.facts, width)), "dim")
    return Text("\n", no_wrap=True, overflow="crop").join([Text("  ").join(first), facts])


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


def choose_display(stream: TextIO) -> Display:
    # Not Rich's own test: FORCE_COLOR and TTY_COMPATIBLE would draw a bar into a file.
    has_cursor = stream.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")
    return LiveBar(stream) if has_cursor else PlainLines(stream)


def _is_unicode(encoding: str) -> bool:
    return encoding.lower().startswith("utf")


def number(value: float) -> str:
    """A number with four digits, or a larger one as a whole number."""
    if not math.isfinite(value):
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def counted(count: int, what: str) -> str:
    """A number of things in words: 1 seed, 2 seeds."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"
