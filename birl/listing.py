"""The tables of `birl list`: what each algorithm supports, and the presets with their scores."""

from rich.table import Table

from birl import ALGORITHMS
from birl.presets import all_presets
from birl.presets.entry import Preset
from birl.registry import EVERY_ACTION, Supports, supports


def support_table() -> Table:
    """One row for each algorithm: which actions it takes, and what else it supports."""
    title = f"Algorithms. any: {', '.join(EVERY_ACTION)}"
    table = _table(title, "algorithm", "actions", "action masks", "recurrent", "Ray")
    for name in ALGORITHMS:
        declared = supports(name)
        table.add_row(name, _actions(declared), _mark(declared.masks), _mark(declared.recurrent), _ray(declared))
    return table


def preset_table() -> Table:
    """One row for each preset: the words that select it, its steps and its score."""
    title = (
        "Presets. Score: interquartile mean of 5 seeds, or of as many as are named, and its 95 % interval; "
        "-: published settings, not measured here"
    )
    table = _table(title)
    table.add_column("birl train", no_wrap=True)  # to be copied, so it is never cut
    for column in ("steps", "score"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("95 %", justify="right")  # may wrap on a narrow screen
    for preset in all_presets():
        words = " ".join([preset.algorithm, preset.config.env.id, *preset.switches])
        score = "-" if preset.score is None else f"{preset.score:g}"
        table.add_row(words, f"{preset.config.run.total_steps:,}", score, _interval(preset))
    return table


def _table(title: str, *columns: str) -> Table:
    return Table(*columns, title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 1))


def _actions(declared: Supports) -> str:
    if declared.actions == EVERY_ACTION:
        return "any"
    return ", ".join(declared.actions) + (" with finite bounds" if declared.bounded else "")


def _ray(declared: Supports) -> str:
    if declared.ray_rollouts:
        return "rollouts"
    return "actor-learners" if declared.actor_learners else "-"


def _mark(supported: bool) -> str:
    return "yes" if supported else "-"


def _interval(preset: Preset) -> str:
    interval = "-" if preset.interval is None else f"{preset.interval[0]:g} to {preset.interval[1]:g}"
    if preset.score is None or preset.seeds == 5:
        return interval
    return f"{interval}, {preset.seeds} seeds" if preset.seeds > 1 else "1 seed"
