"""The tables of `birl list` and of `birl compare`."""

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from birl import ALGORITHMS
from birl.cli.options import short_number
from birl.config import require
from birl.errors import printable
from birl.presets import all_presets
from birl.presets.entry import Measured, Preset
from birl.registry import EVERY_ACTION, Supports, algorithm_named, supports
from birl.run.console import number

if TYPE_CHECKING:
    from birl.lab.comparison import Comparison, GroupResult, Interval

ABOUT_ALGORITHMS = f"Algorithms. any: {', '.join(EVERY_ACTION)}"
ABOUT_PRESETS = """\
Presets. Score: interquartile mean of 5 seeds, or of as many as are named, and
its 95 % interval. -: published settings, not measured here."""
COLUMNS = 80
GAP = 2  # between two columns
USUAL_SEEDS = 5  # that a score was measured with
WIDTH = 110  # of the tables where the output is no terminal
MOST_SETTINGS = 12  # different settings of a pair that are printed
LONGEST_VALUE = 40  # of a setting


def listed(algorithm: str | None = None, env: str | None = None) -> list[str | Table]:
    """The tables of algorithms and presets: all, or those of an algorithm and of environments.

    `env` is a part of an environment's id, in small or capital letters. With it, only presets are
    listed.
    """
    if algorithm is not None:
        algorithm_named(algorithm)  # refuses an unknown one
    names = [algorithm] if algorithm else list(ALGORITHMS)
    presets = [preset for preset in all_presets() if preset.algorithm in names and _matches(preset, env)]
    who = f"{algorithm} has no preset" if algorithm else "there is no preset"
    wrong = f"{who} for an environment with {env!r} in its id"
    require(env is None or len(presets) > 0, f"{wrong}; any Gymnasium id can be trained without one")
    found: list[str | Table] = [] if env else [ABOUT_ALGORITHMS, support_table(names), ""]
    return [*found, ABOUT_PRESETS, preset_table(presets)] if presets else found


def support_table(algorithms: Sequence[str]) -> Table:
    """One row for each algorithm: which actions it takes, and what else it supports."""
    table = _list_table("algorithm", "actions", "masks", "recurrent", "Ray", "compiled")
    for name in algorithms:
        declared = supports(name)
        marks = [_mark(declared.masks), _mark(declared.recurrent), _ray(declared), _mark(declared.compiled)]
        table.add_row(name, _actions(declared), *marks)
    return table


def preset_table(presets: Sequence[Preset]) -> Table:
    """One row for each preset: its words, its steps and its score.

    If a row would be too long, the algorithm stands above its presets instead.
    """
    rows = [_row(preset) for preset in presets]
    widths = [max(map(len, column)) + GAP for column in zip(*rows, strict=True)]
    is_wide = sum(widths) + max(len(preset.algorithm) for preset in presets) + 1 > COLUMNS
    table = _list_table()
    table.add_column("birl train", no_wrap=True)  # to be copied, so it is never cut
    for column in ("steps", "score", "95 %"):
        table.add_column(column, justify="right", no_wrap=True)
    ordered = sorted(zip(presets, rows, strict=True), key=lambda pair: list(ALGORITHMS).index(pair[0].algorithm))
    above = ""
    for preset, (words, *numbers) in ordered:
        name = preset.algorithm
        if is_wide and name != above:
            table.add_row(above := name, style="bold")
        table.add_row(f" {words}" if is_wide else f"{name} {words}", *numbers)
    return table


def comparison_lines(comparison: "Comparison") -> Iterator[RenderableType]:
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


def _row(preset: Preset) -> tuple[str, str, str, str]:
    words = " ".join([preset.config.env.id, *preset.switches])
    return words, short_number(preset.config.run.total_steps), *_score(preset.measured)


def _matches(preset: Preset, env: str | None) -> bool:
    return env is None or env.casefold() in preset.config.env.id.casefold()


def _list_table(*columns: str) -> Table:
    return Table(*columns, box=None, pad_edge=False, padding=(0, GAP // 2), header_style="bold")


def _actions(declared: Supports) -> str:
    if declared.actions == EVERY_ACTION:
        return "any"
    return ", ".join(declared.actions) + (" with bounds" if declared.bounded else "")


def _ray(declared: Supports) -> str:
    if declared.ray_rollouts:
        return "rollouts"
    return "actor-learners" if declared.actor_learners else "-"


def _mark(supported: bool) -> str:
    return "yes" if supported else "-"


def _number(score: float) -> str:
    """A score with four digits."""
    return f"{score:.4g}"


def _score(measured: Measured | None) -> tuple[str, str]:
    """A measured score and its interval."""
    if measured is None:
        return "-", "-"
    if measured.interval is None:
        return _number(measured.score), "1 seed"
    low, high = map(_number, measured.interval)
    seeds = f", {measured.seeds} seeds" if measured.seeds != USUAL_SEEDS else ""
    return _number(measured.score), f"{low} to {high}{seeds}"


def _letters(comparison: "Comparison") -> dict[str, str]:
    """A short name of each group, by its label: A to Z, then 27, 28 and so on."""
    return {
        group.label: chr(ord("A") + place) if place < 26 else str(place + 1)
        for place, group in enumerate(comparison.groups)
    }


def _groups_table(comparison: "Comparison", letters: dict[str, str]) -> Table:
    table = _comparison_table("", "seeds", "IQM (95 %)", "area (95 %)")
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
    """The meanings of the columns."""
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
    table = _comparison_table("", "first wins (95 %)", "difference of IQMs (95 %)", f"p{adjusted}")
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


def _with_interval(value: float | None, interval: "Interval | None", text: Any = number) -> str:
    if value is None:
        return "-"
    return text(value) if interval is None else f"{text(value)} ({text(interval[0])} to {text(interval[1])})"


def _value(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 3]}..."


def _comparison_table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for place, column in enumerate(columns):
        table.add_column(column, justify="left" if place == 0 else "right")
    return table
