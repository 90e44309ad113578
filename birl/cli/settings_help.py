"""The settings of an algorithm as options of `birl train`: their sections, texts and values."""

import textwrap
import types
import typing
from typing import Any, Literal, NamedTuple

from birl.cli.options import text_of
from birl.config import Wrapper, is_atari
from birl.maths import schedules
from birl.run.configure import value_text
from birl.settings import places_of, plain

OPTION_NAMES = {"wrappers": "wrapper"}  # each use of the option adds one
METAVARS = {int: "INT", float: "NUMBER", Wrapper: "MODULE:CLASS[,KEY=VALUE...]"}
SECTIONS = {
    "start": "where the settings come from, and how many runs to train",
    "algorithm": "how it learns",
    "network": "what the policy and the values are computed with",
    "environment": "which environments, how many, and where they run",
    "Atari": "preprocessing of the games",
    "run": "how long to train, what to write, and when to evaluate",
}
FOOTER = f"""In brackets: the value without the option.
INT and NUMBER: 50000, 50k, 5e4 or 0.05M.
SCHEDULE: a NUMBER, or one over the run:
  {schedules.EXAMPLES.partition(", ")[2]}"""
NAME_COLUMNS = 28  # of 80; a longer option has its text in the next line
MOST_COLUMNS = 100  # longer lines are hard to read


class Setting(NamedTuple):
    """A setting as an option of the command line."""

    name: str  # flat: num_envs, not env.num_envs
    section: str
    hint: Any  # its annotation
    value: Any  # the preset's or the default
    text: str

    @property
    def option(self) -> str:
        return "--" + OPTION_NAMES.get(self.name, self.name).replace("_", "-")


def settings_of(config: Any) -> list[Setting]:
    """Every setting of a Config, in the order of the sections. Atari's only for an Atari game."""
    found = []
    for name, place in places_of(config.__class__).items():
        if name != "id" and (place.section != "Atari" or is_atari(config.env.id)):
            value = getattr(place.part_of(config), name)
            found.append(Setting(name, place.section, plain(place.hint), value, text_of(place.kind, name)))
    return sorted(found, key=lambda setting: list(SECTIONS).index(setting.section))


def help_text(prog: str, about: str, config: Any, start_options: list[tuple[str, str]], columns: int = 80) -> str:
    """The help of `birl train`: each option in its section, with its text and its value.

    `start_options` are those that are no settings, and their texts.
    """
    settings = settings_of(config)
    lines = [f"usage: {prog} [options]", "", *textwrap.wrap(about, columns)]
    for title, about_section in SECTIONS.items():
        entries = [_entry(setting) for setting in settings if setting.section == title]
        entries = entries if title != "start" else start_options
        if entries:
            lines += ["", f"{title}: {about_section}"]
            lines += [line for name, text in entries for line in _option_lines(name, text, columns)]
    return "\n".join([*lines, "", FOOTER])


def _entry(setting: Setting) -> tuple[str, str]:
    """An option with a word for its type, and its text with its value."""
    choices, metavar = _values(setting.hint, setting.name in OPTION_NAMES)
    texts = [setting.text, f"one of {', '.join(choices)}" if choices else ""]
    repeat = "; may be repeated" if setting.name in OPTION_NAMES else ""
    text = f"{'; '.join(filter(None, texts))}{repeat} [{value_text(setting.value)}]"
    if setting.hint is bool:
        return setting.option.replace("--", "--[no-]", 1), text
    return f"{setting.option} {metavar}", text


def _option_lines(name: str, text: str, columns: int) -> list[str]:
    """An option and its text in two columns; the text of a long name begins in the next line."""
    wrapped = textwrap.wrap(text, min(columns, MOST_COLUMNS) - NAME_COLUMNS, break_on_hyphens=False)
    beside = len(name) + 4 <= NAME_COLUMNS
    first = [f"  {name}".ljust(NAME_COLUMNS) + wrapped.pop(0)] if beside else [f"  {name}"]
    return first + [" " * NAME_COLUMNS + line for line in wrapped]


def _values(hint: Any, is_repeated: bool = False) -> tuple[list[str], str]:
    """The words that a setting may have, if they are few; and a word for its type."""
    origin = typing.get_origin(hint)
    parts = typing.get_args(hint)
    if origin is Literal:
        return list(parts), "NAME"
    if origin in (typing.Union, types.UnionType):
        if schedules.Schedule in parts:
            return [], "SCHEDULE"
        found = [_values(part) for part in parts if part is not types.NoneType]
        return [word for words, _ in found for word in words], "|".join(dict.fromkeys(name for _, name in found))
    if origin is tuple:
        metavar = _values(parts[0])[1]
        return [], metavar if is_repeated else f"{metavar} ..."
    if origin is dict:
        return [], "NAME VALUE ..."
    return [], METAVARS.get(hint, "TEXT")
