"""The section on settings: first what differs, then, folded, all others."""

from collections.abc import Sequence

from birl.config import ConfigError, EnvConfig
from birl.lab.report.elements import Content, Html, Section, folded, join, named, paragraph, table
from birl.lab.report.results import NOTHING, preset_for
from birl.lab.reproduce import config_of
from birl.registry import algorithm_named
from birl.run.configure import value_text
from birl.run.history import RESUMED, SeedGroup
from birl.settings import flat_settings

CHANGED = "settings changed while it trained"
OF_ONE_RUN = ("seed", "run_dir")


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
        preset = preset_for(group.runs[0])
        algorithm = algorithm_named(group.settings["algorithm"])
        config = preset.config if preset else algorithm.Config(env=EnvConfig(group.settings["env.id"]))
    except ConfigError:
        return None, ""
    found = {name: value_text(value) or "none" for name, value in flat_settings(config).items()}
    task = {"algorithm": str(group.settings["algorithm"]), "env": config.env.id}
    return task | found | {CHANGED: "never"}, "preset" if preset else "defaults"


def _tables(heads: Sequence[Content], columns: Sequence[dict[str, str]], title: str, same_where: str) -> Html:
    """What differs, what only some have, and what is the same."""
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
