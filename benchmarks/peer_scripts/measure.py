"""What every contender measures of itself, in the same way.

It uses the standard library only, because it runs in both venvs.

A contender is started as `python SCRIPT SETTINGS`, SETTINGS being JSON in Birl's vocabulary, and
prints its report as one line of JSON. A schedule is a number, or [start, end] for a line between
the two over the run.
"""

import json
import resource
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

EPISODES = 20  # the return to reach is a mean over this many


class Stopwatch:
    """When each update ended, at how many steps, and when the wanted return was first reached."""

    def __init__(self, settings: dict[str, Any]):
        self.spawned_at, self.wanted_return = settings["spawned_at"], settings["wanted_return"]
        self.rate_from = settings["rate_from"]  # environment steps, in which code compiles or nothing is learned yet
        self.marks: list[tuple[float, int]] = []  # the first before training, one after each update
        self.reached: tuple[float, int] | None = None

    def mark(self, env_steps: int) -> None:
        self.marks.append((time.time(), env_steps))

    def see(self, mean_return: float, env_steps: int) -> None:
        if self.reached is None and self.wanted_return is not None and mean_return >= self.wanted_return:
            self.reached = (time.time(), env_steps)

    def report(self, packages: tuple[str, ...]) -> dict[str, Any]:
        """The contender's figures; a rate needs two updates, since the first one compiles."""
        (start, _), (end, env_steps) = self.marks[0], self.marks[-1]
        rate, counted = None, [mark for mark in self.marks[1:] if mark[1] >= self.rate_from]
        if len(counted) > 1:
            begin, steps_before = counted[0]
            rate = (env_steps - steps_before) / (end - begin)
        return {
            "env_steps": env_steps,
            "seconds_total": time.time() - self.spawned_at,
            "seconds_training": end - start,
            "seconds_to_first_update": self.marks[1][0] - self.spawned_at if len(self.marks) > 1 else None,
            "steps_per_second": rate,
            "seconds_to_return": None if self.reached is None else self.reached[0] - self.spawned_at,
            "steps_to_return": None if self.reached is None else self.reached[1],
            "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,  # Linux counts in KiB
            "versions": {name: version(name) for name in packages},
        }


def read_settings() -> dict[str, Any]:
    """The settings this process was started with."""
    if len(sys.argv) != 2:
        raise SystemExit(f"usage: {sys.argv[0]} SETTINGS, as JSON; benchmarks/speed.py is what calls this")
    return json.loads(sys.argv[1])


def sb3_schedule(value: float | list[float]) -> float | Callable[[float], float]:
    """A schedule as SB3 takes it: a function of the remaining progress, from 1 to 0."""
    if isinstance(value, float):
        return value
    start, end = value
    return lambda remaining: end + (start - end) * remaining
