"""The output of a search: a console while it lasts, and a page about its result."""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

from rich.live import Live
from rich.table import Table
from rich.text import Text

from birl.config import ConfigError
from birl.errors import CheckpointError
from birl.lab.report.page import (
    Content,
    Section,
    bars,
    block,
    folded,
    join,
    paragraph,
    sentences,
    small,
    table,
    write_report,
)
from birl.lab.report.sections import read_groups, run_sections
from birl.lab.tuning.halving import ranked, running, time_left
from birl.lab.tuning.journal import FINAL, FINAL_DEFAULT, SearchState, Trial
from birl.lab.tuning.result import result_texts, trial_text
from birl.run.console import TextConsole, counted, duration, number
from birl.run.groups.group_results import json_text

SHOWN = 8  # trials in the table
TABLE_SECONDS = 0.5
LINE_SECONDS = 10.0  # between two plain lines
REPORT = "report.html"
LABELS = {FINAL: "the winner", FINAL_DEFAULT: "the settings to begin with"}
UNFOLDED = 10  # trials of the page


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
    """The progress of the search, most important first."""
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


def write_page(directory: Path, result: dict[str, Any], title: str, first: Sequence[Section] = ()) -> Path:
    """Write report.html about a search that is over, beginning with these sections; its path."""
    sections = [*first, _result_section(directory, result), _trials_section(result)]
    sections += [_importance_section(result)] if result["importance"] else []
    finals = {label: directory / name for name, label in LABELS.items() if (directory / name).is_dir()}
    if not finals and result["winner"] is not None:  # nothing was trained again
        finals = {LABELS[FINAL]: directory / result["trials"][result["winner"]]["directory"]}
    with suppress(ConfigError, CheckpointError):  # no final run has begun
        groups = [replace(group, label=label) for label, path in finals.items() for group in read_groups([path])]
        sections += run_sections(groups) if groups else []
    about = f"{len(result['trials'])} trials, {result['env_steps']:,} environment steps"
    return write_report(directory / REPORT, title, sections, about)


def _result_section(directory: Path, result: dict[str, Any]) -> Section:
    *texts, last = result_texts(directory, result)
    flattered = "The best of many trials is flattered by luck, so its score in the search is not its score."
    body = [*(paragraph(sentences(f"{text[:1].upper()}{text[1:]}")) for text in texts)]
    command = block(last.partition(": ")[2]) if result["winner"] is not None else paragraph(last)
    return Section("Result of the search", join([*body, command, small(flattered)]))


def _trials_section(result: dict[str, Any]) -> Section:
    """All trials, best first: a higher rung counts more than a higher score."""
    trials = sorted(enumerate(result["trials"]), key=lambda one: _rank(one[1]), reverse=True)
    several = len({trial["algorithm"] for _, trial in trials}) > 1  # each with its own steps
    rungs = [f"rung {rung}" if several else f"{steps:,} steps" for rung, steps in enumerate(result["rungs"], 1)]
    names = [] if several else list(dict.fromkeys(name for _, trial in trials for name in trial["settings"] or {}))
    head = ["trial", *([] if names else ["settings"]), *rungs, "environment steps", *names]
    rows = [_row(index, trial, names, several) for index, trial in trials]
    texts = 1 if names else 2
    parts = [table(head, rows[:UNFOLDED], texts)]
    if len(rows) > UNFOLDED:
        parts.append(folded(f"{len(rows) - UNFOLDED} more", table(head, rows[UNFOLDED:], texts)))
    about = "Scores are means over the seeds of a trial, at the steps of each rung."
    parts.append(small(f"{about} The trial called default has the settings to begin with."))
    return Section("Trials", join(parts))


def _row(index: int, trial: dict[str, Any], names: list[str], several: bool) -> list[Content]:
    """The cells of a trial: its settings in one cell, or in columns by these names."""
    scores: list[Content] = ["" if score is None else number(score) for score in trial["scores"]]
    results = [*scores, f"{trial['env_steps']:,}"]
    problem, own = trial["problem"], trial["settings"] or {}
    if names:
        about = "" if problem is None else f", failed: {problem}"
        values = [json_text(own[name]) if name in own else "" for name in names]
        return [f"{index} ({trial['how']}{about})", *results, *values]
    shown = f"failed: {problem}" if problem is not None else trial_text(trial["settings"])
    return [f"{index} ({trial['how']})", f"{trial['algorithm']}: {shown}" if several else shown, *results]


def _rank(trial: dict[str, Any]) -> tuple[int, float]:
    known = [(rung, score) for rung, score in enumerate(trial["scores"]) if score is not None]
    return max(known) if known and trial["problem"] is None else (-1, 0.0)


def _importance_section(result: dict[str, Any]) -> Section:
    rows = [(name, share, f"{share:.0%}") for name, share in result["importance"].items()]
    about = (
        "How much of what sets the best trials apart is due to each setting (PED-ANOVA, Watanabe et al. 2023), as far "
        "as these trials show. It is of the ranges that were searched, and with few trials it is a hint."
    )
    return Section("Importance of settings", join([bars(rows), small(about)]))
