"""The console output of a search: a table on a terminal, plain lines in a file."""

import math
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TextIO

from rich.live import Live
from rich.table import Table
from rich.text import Text

from birl.lab.tuning.halving import ranked, running, time_left
from birl.lab.tuning.result import trial_text
from birl.lab.tuning.state import SearchState, Trial
from birl.run.console import TextConsole, counted, duration, number

SHOWN = 8  # trials in the table
TABLE_SECONDS = 0.5
LINE_SECONDS = 10.0  # between two plain lines


class SearchConsole:
    """Shows a search. Call `close` in a `finally`: it restores the cursor."""

    def __init__(self, stream: TextIO | None, quiet: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = None if quiet else stream
        self._clock = clock
        self._is_live = self._stream is not None and self._stream.isatty()
        self._console = TextConsole(file=stream, highlight=False, markup=False, emoji=False)
        self._live = Live(console=self._console, auto_refresh=False, transient=True) if self._is_live else None
        self._next = -math.inf
        self._line = ""

    def show(self, state: SearchState, workers: int) -> None:
        """Show how far the search is, unless that was shown a moment ago."""
        now = self._clock()
        if self._stream is None or now < self._next:
            return
        self._next = now + (TABLE_SECONDS if self._is_live else LINE_SECONDS)
        with suppress(OSError):  # a closed terminal must not end a search
            if self._live is not None:
                if not self._live.is_started:
                    self._live.start()
                self._live.update(search_table(state, workers, time.time(), self._console.width), refresh=True)
            elif (line := search_line(state, workers, time.time())) != self._line:
                self._line = line
                self.message(line)

    def message(self, text: str) -> None:
        """Print a line that stays on the screen."""
        if self._stream is not None:
            with suppress(OSError):
                self._console.print(Text(text), soft_wrap=True)

    def close(self) -> None:
        """Restore the terminal."""
        if self._live is not None:
            with suppress(OSError):
                self._live.stop()


def search_line(state: SearchState, workers: int, now: float) -> str:
    """A search in one line."""
    return f"{state.plan.title()}: {', '.join(_numbers(state, workers, now))}"


def search_table(state: SearchState, workers: int, now: float, width: int) -> Table:
    """A search as a table: the best trials, and what runs now."""
    table = Table(title=search_line(state, workers, now), title_justify="left", title_style="bold", width=width)
    for name in ("trial", "rung", "score", "by"):
        table.add_column(name, justify="right" if name != "by" else "left", no_wrap=True)
    table.add_column("settings", overflow="ellipsis", no_wrap=True, ratio=1)
    for trial in ranked(state)[:SHOWN]:
        best = trial.best
        assert best is not None
        rung = f"{best[0] + 1}/{len(state.plan.rungs)}"
        table.add_row(str(trial.number), rung, number(best[1]), trial.how, _settings(state, trial))
    for group, seed, lane in running(state):
        table.add_row(
            group.removeprefix("trials/").lstrip("0") or "0", "", "", "", f"training, seed {seed}", style="dim"
        )
        del lane
    return table


def _numbers(state: SearchState, workers: int, now: float) -> list[str]:
    """How far the search is, most important first."""
    parts = [_best_text(state)]
    if state.winner is not None:
        lanes = [lane for lanes in state.finals.values() for lane in lanes.values()]
        ended = sum(lane.rung >= state.plan.last_rung or lane.problem is not None for lane in lanes)
        parts += [f"{ended} of {len(lanes)} final runs"] if lanes else []
    elif state.finalists is not None:
        parts.append(f"training the best {len(state.finalists)} to the end")
    counts = [sum(trial.rung >= rung for trial in state.trials) for rung in range(len(state.plan.rungs))]
    parts.append(f"{counted(len(state.trials), 'trial')}, at each rung {' '.join(map(str, counts))}")
    failed = sum(trial.problem is not None for trial in state.trials)
    parts += [f"{failed} failed"] if failed else []
    parts.append(f"{len(running(state))} running")
    left = time_left(state, now, workers)
    if math.isfinite(left) and state.finalists is None:
        parts.append(f"{duration(max(0.0, left))} left, then the final runs")
    return parts


def _best_text(state: SearchState) -> str:
    best = ranked(state)
    if not best or best[0].best is None:
        return "no score yet"
    rung, score = best[0].best
    return f"best {number(score)} (trial {best[0].number}, {state.plan.steps(best[0].candidate, rung):,} steps)"


def _settings(state: SearchState, trial: Trial) -> str:
    several = len({candidate.algorithm for candidate in state.plan.candidates}) > 1
    name = f"{state.plan.candidates[trial.candidate].algorithm}: " if several else ""
    return name + trial_text(trial.point)
