"""The console output of a group: how many lanes have ended, their mean, spread and worst return."""

import math
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TextIO

from birl.run.console import duration
from birl.run.display import NoDisplay, Status, choose_display, number
from birl.run.group_progress import GroupStatus


class GroupConsole:
    """Shows the progress of a group. Call `close` in a `finally`: it restores the cursor."""

    def __init__(
        self,
        title: str,
        lanes: int,
        stream: TextIO | None = None,  # None: standard output
        clock: Callable[[], float] = time.monotonic,
        quiet: bool = False,  # show nothing but warnings, which go to standard error
    ) -> None:
        self._title = title
        self._lanes = lanes
        self._clock = clock
        self._next_show = -math.inf
        stream = stream or sys.stdout
        self._display = NoDisplay() if quiet or stream is None else choose_display(stream)

    def show(self, read: Callable[[], GroupStatus], finished: int, running: int, failed: int) -> None:
        """Show how far the group is, unless that was shown a moment ago."""
        now = self._clock()
        if now >= self._next_show:
            self._next_show = now + self._display.interval
            with suppress(OSError):  # a closed terminal must not end a group
                self._display.show(self._status(read(), finished, running, failed))

    def message(self, text: str) -> None:
        """Print a line that stays on the screen."""
        with suppress(OSError):
            self._display.say(text)

    def warn(self, text: str) -> None:
        """Print a warning that stays on the screen."""
        with suppress(OSError):
            self._display.warn(text)

    def close(self) -> None:
        """Restore the terminal."""
        with suppress(OSError):
            self._display.close()

    def _status(self, found: GroupStatus, finished: int, running: int, failed: int) -> Status:
        lanes = f"{finished} of {self._lanes} lanes done, {running} running" + (f", {failed} failed" if failed else "")
        numbers = [f"{found.fraction:4.0%}", lanes, f"{found.env_steps:,} / {found.total_steps:,} steps"]
        if found.steps_per_second > 0:
            left = (1 - found.fraction) * found.total_steps / found.steps_per_second
            numbers.append(f"{duration(left)} left")
        facts = []
        if (worst := found.worst) is not None:
            mean, deviation = found.mean_and_deviation()
            facts = [f"return {number(mean)} +/- {number(deviation)}", f"worst {number(worst[1])} ({worst[0]})"]
        if found.steps_per_second > 0:
            facts.append(f"{number(found.steps_per_second)} steps/s")
        return Status(self._title, found.fraction, numbers, facts)


def point_text(point: dict[str, Any]) -> str:
    """The result of one point of a summary: its IQM, interval, mean, spread and worst lane."""
    count = len(point["lanes"])
    scored = [lane for lane in point["lanes"] if lane["return_mean"] is not None]
    seeds = f"{count} seed{'s' if count > 1 else ''}"
    of_how_many = seeds if len(scored) == count else f"{len(scored)} of {seeds}: the others have no result"
    if not scored:
        return f"no result of {seeds}"
    interval = point["interval"]
    between = f" (95 % interval {number(interval[0])} to {number(interval[1])})" if interval else ""
    spread = f"mean {number(point['mean'])} +/- {number(point['std'])}"
    worst = f"worst {number(point['worst']['return_mean'])} ({point['worst']['directory']})"
    return f"IQM {number(point['iqm'])}{between} over {of_how_many}, {spread}, {worst}"


def settings_text(settings: dict[str, Any]) -> str:
    """Swept settings, as JSON, for a line of the console; "" if there are none."""
    return ", ".join(f"{name}={json_text(value)}" for name, value in settings.items())


def json_text(value: Any) -> str:
    """The value of a setting, as JSON, for people: a schedule as linear:0.001:0."""
    match value:
        case {"kind": str(kind), "values": list(values), "points": list(points)}:  # a schedule
            return ":".join([kind, *(f"{one:g}" for one in (values if points == [1.0] else [*values, *points]))])
        case float():
            return f"{value:g}"
        case list():
            return " ".join(map(json_text, value))
    return str(value)


def lane_text(name: str, summary: dict[str, Any] | None) -> str:
    """The result of a lane that has finished."""
    if summary is None:
        return f"{name}: finished"
    found = summary["evaluation"]
    score = f", evaluation return {number(found['return_mean'])}" if found is not None else ", not evaluated"
    return f"{name}: {summary['env_steps']:,} steps{score}"


def lanes_text(names: Sequence[str]) -> str:
    """The names of lanes, or how many there are of many."""
    return ", ".join(names) if len(names) <= 4 else f"{len(names)} lanes"
