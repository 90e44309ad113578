"""The provenance of results: settings, commands, runs, branches, versions, the machine."""

from collections.abc import Sequence
from typing import Any

from birl.config import ConfigError, EnvConfig
from birl.lab.report.page import (
    Content,
    Html,
    Section,
    block,
    element,
    folded,
    join,
    named,
    paragraph,
    sentences,
    small,
    table,
)
from birl.lab.report.results import NOTHING, number_text, references, summary_number
from birl.lab.reproduce import SAME_BITS, commands_for, config_of, limits_of, near, stored_text
from birl.lab.scores import final_evaluation, trained_steps
from birl.registry import algorithm_named
from birl.run.configure import value_text
from birl.run.directory import Fork
from birl.run.history import RESUMED, RunHistory, SeedGroup
from birl.settings import flat_settings

CHANGED = "settings changed while it trained"
OF_ONE_RUN = ("seed", "run_dir")
MOST_RUNS = 500  # rows of the table of runs


def settings_section(groups: Sequence[SeedGroup]) -> Section:
    """Settings that differ between groups; of one group, those that differ from its preset."""
    columns = [texts_of(group) for group in groups]
    heads: list[Content] = [named(group.label, place) for place, group in enumerate(groups)]
    if len(groups) > 1:
        return Section("Settings", _tables(heads, columns, "Settings that differ", "in all groups"))
    preset, source = texts_before(groups[0])
    if preset is None:
        names = sorted(columns[0])
        return Section("Settings", table(["setting", "value"], [[name, columns[0][name]] for name in names], texts=2))
    columns = [*columns, {name: preset.get(name, NOTHING) for name in columns[0]}]
    return Section(
        "Settings", _tables(["value", source], columns, f"Settings that differ from the {source}", "as there")
    )


def texts_of(group: SeedGroup) -> dict[str, str]:
    """Each setting of a group as text, by its flat name, or its dotted one if unknown here."""
    try:
        settings = flat_settings(config_of(group.runs[0]))
    except ConfigError:
        return {name: str(value) for name, value in group.settings.items()}
    found = {name: value_text(value) or "none" for name, value in settings.items() if name not in OF_ONE_RUN}
    task = {"algorithm": str(group.settings["algorithm"]), "env": str(group.settings["env.id"])}
    return task | found | {CHANGED: str(group.settings.get(RESUMED, "never"))}


def texts_before(group: SeedGroup) -> tuple[dict[str, str] | None, str]:
    """The preset's settings, or else the algorithm's defaults, as texts; and which they are."""
    try:
        preset, _ = references(group.runs[0])
        algorithm = algorithm_named(group.settings["algorithm"])
        config = preset.config if preset else algorithm.Config(env=EnvConfig(group.settings["env.id"]))
    except ConfigError:
        return None, ""
    found = {name: value_text(value) or "none" for name, value in flat_settings(config).items()}
    task = {"algorithm": str(group.settings["algorithm"]), "env": config.env.id}
    return task | found | {CHANGED: "never"}, "preset" if preset else "defaults"


def _tables(heads: Sequence[Content], columns: Sequence[dict[str, str]], title: str, same_where: str) -> Html:
    """Tables of settings that differ, that only some groups have, and that are the same."""
    names = list(dict.fromkeys(name for column in columns for name in column))
    values = {name: [column.get(name) for column in columns] for name in names}
    same = [name for name in names if len(set(values[name])) == 1]
    partial = [name for name in names if None in values[name] and len(set(values[name]) - {None}) < 2]
    different = [name for name in names if name not in same and name not in partial]

    def rows(chosen: Sequence[str]) -> Html:
        cells = [[name, *(value or NOTHING for value in values[name])] for name in chosen]
        return table(["setting", *heads], cells, texts=1 + len(heads))

    parts: list[Content] = [rows(different) if different else paragraph("None differs.")]
    if partial:
        parts.append(folded(f"{len(partial)} settings that not every algorithm has", rows(partial)))
    if same:
        one = table(["setting", "value"], [[name, values[name][0] or ""] for name in same], texts=2)
        parts.append(folded(f"{len(same)} settings that are the same {same_where}", one))
    return join([paragraph(f"{title}:"), *parts])


def reproduce_section(groups: Sequence[SeedGroup]) -> Section:
    """The commands that train these runs again."""
    parts: list[Content] = []
    for place, group in enumerate(groups):
        commands = commands_for(group.runs)
        limits = limits_of(group.runs)
        parts.append(element("h3", named(group.label, place)))
        parts += [block("\n".join(commands))] if commands else []
        parts += [paragraph(limit) for limit in limits] or [small(SAME_BITS)]
    return Section("How to reproduce it", join(parts))


def branches_section(groups: Sequence[SeedGroup]) -> Section | None:
    """The forks among the runs: their parents and their changes; None if there are none."""
    rows: list[list[Content]] = [
        [element("code", near(run.run_dir)), named(group.label, place), element("code", near(fork.parent)),
         _changes(fork), f"{fork.env_steps:,}"]
        for place, group in enumerate(groups)
        for run in group.runs
        if (fork := run.fork) is not None
    ]  # fmt: skip
    if not rows:
        return None
    about = "A fork begins with a checkpoint of its parent: the same networks, optimiser, environments and replay."
    head = ["fork", "group", "parent", "changed", "at step"]
    return Section("Branches", join([table(head, rows[:MOST_RUNS], texts=4), small(about)]))


def runs_section(groups: Sequence[SeedGroup]) -> Section:
    """Each run with its directory, state and score; and the software and machines they had."""
    rows: list[list[Content]] = [
        [element("code", str(run.run_dir)), named(group.label, place), run.seed, _state(run), f"{trained_steps(run):,}",
         number_text(final_evaluation(run)), number_text(summary_number(run, "wall_seconds"))]
        for place, group in enumerate(groups)
        for run in group.runs
    ]  # fmt: skip
    head = ["directory", "group", "seed", "state", "steps", "evaluation", "wall s"]
    cut = [] if len(rows) <= MOST_RUNS else [paragraph(f"{len(rows) - MOST_RUNS} more runs are not listed.")]
    runs = [run for group in groups for run in group.runs]
    parts = [
        folded(f"{len(rows)} runs", join([table(head, rows[:MOST_RUNS], texts=2), *cut])),
        _facts("Versions", [summary_texts(run, "versions") for run in runs]),
        _facts("Machine", [summary_texts(run, "machine") for run in runs]),
    ]
    return Section("Runs and versions", join(parts))


def _changes(fork: Fork) -> Html:
    """The settings that a fork changed, each with both values."""
    pairs = [(name.rpartition(".")[2], *map(stored_text, pair)) for name, pair in fork.changed.items()]
    return sentences("; ".join(f"{name} {old} → {new}" for name, old, new in pairs) or "nothing")


def _state(run: RunHistory) -> str:
    if run.problem is not None:
        return f"failed: {run.problem}"
    if run.summary is not None:
        return "ended"
    total = run.settings.get("run.total_steps")
    return f"at {trained_steps(run) / total:.0%}" if type(total) is int and total > 0 else "not ended"


def summary_texts(run: RunHistory, name: str) -> dict[str, str]:
    """A part of the summary that has texts by name; empty if there is none."""
    found: Any = (run.summary or {}).get(name)
    if not isinstance(found, dict):
        return {}
    return {key: str(value) for key, value in found.items() if isinstance(value, str | int)}


def _facts(title: str, found: Sequence[dict[str, str]]) -> Content:
    """Facts about the runs, one line for each name; several values if they disagree."""
    names = list(dict.fromkeys(name for one in found for name in one))
    lines = [f"{name} {', '.join(sorted({one[name] for one in found if name in one}))}" for name in names[:50]]
    if not lines:
        return paragraph(f"{title}: not known before a run has ended.") if title == "Versions" else ""
    return join([element("h3", title), paragraph(", ".join(lines))])
