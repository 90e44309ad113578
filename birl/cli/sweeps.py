"""`--sweep NAME=VALUE,VALUE` of `birl train`: the values as texts, and as words of options."""

import re
import typing
from collections.abc import Iterable
from typing import Any

from birl.cli.settings_help import OPTION_NAMES, Setting
from birl.config import ConfigError, require

EXAMPLE = "--sweep learning_rate=1e-4,3e-4,1e-3"


def read_sweeps(texts: Iterable[str], settings: Iterable[Setting]) -> dict[str, list[str]]:
    """The texts of the values of each swept setting, by its flat name.

    A comma before KEY= is part of a value: piecewise:0=1,0.5=0.1 is one, and so is a wrapper with
    arguments.
    """
    names = {name: setting.name for setting in settings for name in (setting.name, _plain(setting.option))}
    found: dict[str, list[str]] = {}
    for text in texts:
        given, equals, values = text.partition("=")
        require(bool(equals and values), f"--sweep {text!r} names no values; write it like {EXAMPLE}")
        name = names.get(_plain(given), _plain(given))
        require(name not in found, f"--sweep {name} is given twice; write all its values in one: {EXAMPLE}")
        found[name] = [value.strip() for value in re.split(r",(?!\s*[\w.]+=)", values)]
        require(all(found[name]), f"--sweep {text!r} has an empty value; write it like {EXAMPLE}")
    return found


def require_not_set(swept: Iterable[str], settings: Iterable[Setting], words: list[str]) -> None:
    """Raise ConfigError if a swept setting is also an option."""
    used = {_plain(word.partition("=")[0]).removeprefix("no_") for word in words if word.startswith("--")}
    for setting in settings:
        is_set = setting.name in swept and used & {setting.name, _plain(setting.option)}
        require(not is_set, f"{setting.option} and --sweep {setting.name} set the same setting; leave one out")


def as_words(point: dict[str, str], settings: Iterable[Setting]) -> list[str]:
    """The options that set these values: hidden_sizes=64 64 is --hidden-sizes 64 64."""
    by_name = {setting.name: setting for setting in settings}
    for name in point:
        require(name in by_name, f"{name} is for Atari games, whose ids begin with ALE/")
    return [word for name, text in point.items() for word in _option_words(by_name[name], text)]


def _option_words(setting: Setting, text: str) -> list[str]:
    if setting.hint is bool:
        if text.casefold() not in ("true", "false"):
            raise ConfigError(f"{setting.name} {text!r} is not True or False")
        return [setting.option if text.casefold() == "true" else setting.option.replace("--", "--no-", 1)]
    one = setting.name in OPTION_NAMES or not _has_several(setting.hint)
    return [setting.option, *([text] if one else text.split())]


def _has_several(hint: Any) -> bool:
    """Whether a setting with this annotation takes several words: hidden_sizes, kwargs."""
    return typing.get_origin(hint) in (tuple, dict) or any(map(_has_several, typing.get_args(hint)))


def _plain(name: str) -> str:
    return name.strip().lstrip("-").replace("-", "_")
