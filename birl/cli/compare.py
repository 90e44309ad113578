"""`birl compare`: groups of seeds side by side, as tables and sentences."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from birl.cli.options import RunDirs
from birl.cli.parsing import parse
from birl.errors import printable
from birl.run.display import TextConsole, number
from birl.run.signals import starting

if TYPE_CHECKING:
    from birl.lab.comparison import Comparison, GroupResult, Interval

WIDTH = 110  # of the tables where the output is no terminal
MOST_SETTINGS = 12  # different settings of a pair that are printed
LONGEST_VALUE = 40  # of a setting


def compare(words: list[str]) -> int:
    def arguments(
        run_dirs: RunDirs,
        /,
        target: float | None = None,
        at: int | None = None,
        all: bool = False,
        env: str | None = None,
        json: Path | None = None,
    ) -> tuple[tuple[Path, ...], dict[str, Any], Path | None]:
        """Compare groups of seeds: scores, learning curves, and which group is better.

        Args:
            run_dirs: runs, groups, or directories with runs below
            target: the training return whose first time is asked for; None: chosen from the curves
            at: compare at this many environment steps; None: at the end of the runs
            all: compare each group with every other, not only with the first
            env: only groups of this environment; None: all, which must be of one
            json: write everything to this file
        """
        return run_dirs, {"target": target, "at": at, "all_pairs": all, "env": env}, json

    run_dirs, options, out = parse(arguments, words, "birl compare")
    with starting():
        from birl.lab.comparison import compare as run_compare
        from birl.run.files import write_json

    comparison = run_compare(*run_dirs, **options)
    if out is not None:  # before anything is printed: `head` may have read enough
        out.parent.mkdir(parents=True, exist_ok=True)
        write_json(out, comparison.to_json())
    console = TextConsole(highlight=False, markup=False, emoji=False)
    console = console if console.is_terminal else TextConsole(highlight=False, markup=False, emoji=False, width=WIDTH)
    for part in shown(comparison):
        console.print(part)
    if out is not None:
        console.print(f"\n{printable(str(out))}")
    return 0


def shown(comparison: "Comparison") -> Iterator[RenderableType]:
    """The tables and sentences of a comparison, in their order."""
    from birl.lab.comparison import verdict_text  # imports JAX

    letters = _letters(comparison)
    yield Text(f"{printable(comparison.env_id)}: {comparison.score}", style="bold")
    yield from (f"{letter}: {printable(label)}" for label, letter in letters.items())
    yield ""
    yield _groups_table(comparison, letters)
    yield from map(printable, _legend(comparison))
    if comparison.pairs:
        yield ""
        yield _pairs_table(comparison, letters)
        if correction := comparison.correction():
            more = "" if comparison.has_every_pair else "; --all counts all pairs, as birl report does up to 4 groups"
            yield printable(f"{correction}{more}")
        yield ""
        yield from (verdict_text(pair, letters[pair.first], letters[pair.second]) for pair in comparison.pairs)
    yield from _settings_lines(comparison, letters)
    if comparison.notices:
        yield ""
        yield from (f"note: {printable(notice)}" for notice in comparison.notices)


def _letters(comparison: "Comparison") -> dict[str, str]:
    """A short name of each group, by its label: A to Z, then 27, 28 and so on."""
    return {
        group.label: chr(ord("A") + place) if place < 26 else str(place + 1)
        for place, group in enumerate(comparison.groups)
    }


def _groups_table(comparison: "Comparison", letters: dict[str, str]) -> Table:
    table = _table("", "seeds", "IQM (95 %)", "area (95 %)")
    if comparison.target is not None:
        for name in (f"reached {number(comparison.target)}", "steps", "CPU s", "wall s"):
            table.add_column(name, justify="right")
    for group in comparison.groups:
        spreads = [_with_interval(spread.iqm, spread.interval) for spread in (group.score, group.area)]
        table.add_row(letters[group.label], _seeds(group), *spreads, *_reached(comparison, group))
    return table


def _reached(comparison: "Comparison", group: "GroupResult") -> list[str]:
    if comparison.target is None:
        return []
    if (reached := group.reached) is None:
        return ["-"] * 4
    times = (reached.env_steps, reached.cpu_seconds, reached.wall_seconds)
    texts = ["-" if time is None else f"{time:,.0f}" if time >= 100 else f"{time:.3g}" for time in times]
    return [f"{reached.seeds} of {len(group.score.values)}", *texts]


def _seeds(group: "GroupResult") -> str:
    scored, failed = len(group.score.values), len(group.failed)
    left_out = len(group.directories) - scored - failed
    rest = [f"{count} {what}" for count, what in ((failed, "failed"), (left_out, "left out")) if count]
    return ", ".join([str(scored), *rest])


def _legend(comparison: "Comparison") -> Iterator[str]:
    """What the columns mean."""
    if comparison.scored_policy:
        yield f"score: of {comparison.scored_policy}"
    if comparison.step_range is not None:
        start, end = comparison.step_range
        yield f"area: mean training return from {start:,.0f} to {end:,.0f} steps, which all runs have"
    if comparison.target is None:
        yield f"no time to a return: {comparison.target_reason}; --target RETURN sets one"
        return
    chosen = "" if comparison.target_reason == "given" else f", {comparison.target_reason}; --target sets another"
    yield f"reached: the training return {number(comparison.target)}{chosen}"
    yield "steps, seconds: medians over all seeds; one that does not reach it counts as never"


def _pairs_table(comparison: "Comparison", letters: dict[str, str]) -> Table:
    adjusted = " (Holm)" if len(comparison.pairs) > 1 else ""
    table = _table("", "first wins (95 %)", "difference of IQMs (95 %)", f"p{adjusted}")
    for pair in comparison.pairs:
        wins = _with_interval(pair.probability, pair.probability_interval, "{:.2f}".format)
        difference = _with_interval(pair.iqm_difference, pair.difference_interval)
        p_value = "-" if pair.adjusted_p_value is None else f"{pair.adjusted_p_value:.2g}"
        table.add_row(f"{letters[pair.first]} over {letters[pair.second]}", wins, difference, p_value)
    return table


def _settings_lines(comparison: "Comparison", letters: dict[str, str]) -> Iterator[str]:
    """The settings that differ, of each pair."""
    for pair in comparison.pairs:
        first, second = letters[pair.first], letters[pair.second]
        yield ""
        if not pair.differing:
            yield f"{first} and {second} have equal settings"
            continue
        yield f"settings of {first} and of {second}:"
        for name, values in list(pair.differing.items())[:MOST_SETTINGS]:
            yield printable(f"  {name}: {_value(values[0])}, {_value(values[1])}")
        if (more := len(pair.differing) - MOST_SETTINGS) > 0:
            yield f"  and {more} more; --json FILE has all"


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for place, column in enumerate(columns):
        table.add_column(column, justify="left" if place == 0 else "right")
    return table


def _with_interval(value: float | None, interval: "Interval | None", text: Any = number) -> str:
    if value is None:
        return "-"
    return text(value) if interval is None else f"{text(value)} ({text(interval[0])} to {text(interval[1])})"


def _value(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 3]}..."
