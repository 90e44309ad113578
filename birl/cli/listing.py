"""The tables of `birl list`: what each algorithm supports, and the presets with their scores."""

from collections.abc import Sequence

from rich.table import Table

from birl import ALGORITHMS
from birl.cli.numbers import short_number
from birl.config import require
from birl.presets import all_presets
from birl.presets.entry import Measured, Preset
from birl.registry import EVERY_ACTION, Supports, algorithm_named, supports

ABOUT_ALGORITHMS = f"Algorithms. any: {', '.join(EVERY_ACTION)}"
ABOUT_PRESETS = """\
Presets. Score: interquartile mean of 5 seeds, or of as many as are named, and
its 95 % interval. -: published settings, not measured here."""
COLUMNS = 80
GAP = 2  # between two columns
USUAL_SEEDS = 5  # that a score was measured with


def listed(algorithm: str | None = None, env: str | None = None) -> list[str | Table]:
    """What algorithms support, and the presets: all, or those of an algorithm and of environments.

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
    table = _table("algorithm", "actions", "masks", "recurrent", "Ray", "compiled")
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
    table = _table()
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


def _row(preset: Preset) -> tuple[str, str, str, str]:
    words = " ".join([preset.config.env.id, *preset.switches])
    return words, short_number(preset.config.run.total_steps), *_score(preset.measured)


def _matches(preset: Preset, env: str | None) -> bool:
    return env is None or env.casefold() in preset.config.env.id.casefold()


def _table(*columns: str) -> Table:
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
