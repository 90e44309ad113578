"""The command that trains runs again: what differs from the preset of their task, as options."""

import itertools
import json
import shlex
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from birl.config import ConfigError, EnvConfig, Wrapper
from birl.config_json import from_stored
from birl.maths import schedules
from birl.presets import find_preset
from birl.presets.entry import core_of
from birl.registry import algorithm_named, name_of
from birl.run.evaluate import PASSED_IN
from birl.run.fork_file import Fork
from birl.run.history import RunHistory
from birl.run.sources import flat_settings

OF_ONE_RUN = ("seed", "run_dir")  # runs that differ in these only are trained by one command
LONGEST = 2000  # characters of an option; a schedule may have a thousand points


class InexpressibleError(Exception):
    """A setting cannot be written as an option."""


def commands_for(runs: Sequence[RunHistory]) -> list[str]:
    """The commands that train these runs again, with the same settings and seeds.

    Where settings cannot be written as options, the command begins with --like and a run. Of a run
    on environments that were passed in from Python there is none. A fork has a command of its own,
    which begins with its parent.
    """
    alike: dict[str, list[RunHistory]] = defaultdict(list)
    for run in runs:
        if run.fork is not None:
            continue
        settings = {key: value for key, value in run.settings.items() if key.removeprefix("run.") not in OF_ONE_RUN}
        alike[json.dumps(settings, sort_keys=True)].append(run)
    forks = [_of_fork(run, run.fork) for run in runs if run.fork is not None]
    return [command for same in alike.values() for command in _of_alike(same)] + forks


def config_of(run: RunHistory) -> Any:
    """The Config of a run; ConfigError if its settings are not those of this version."""
    return from_stored(algorithm_named(run.settings["algorithm"]).Config, run.config)


def option_words(config: Any) -> list[str]:
    """The words after `birl train ALGORITHM ENV` that give this Config, but for seed and run_dir.

    InexpressibleError if there are none.
    """
    name, env, core = name_of(config), config.env, core_of(config)
    plain = find_preset(name, env.id)
    preset = find_preset(name, env.id, env.hide_velocities, core)
    chosen = preset or plain
    base = chosen.config if chosen else algorithm_named(name).Config(env=EnvConfig(env.id))
    before, wanted = flat_settings(base), flat_settings(config)
    # Hidden velocities and a core select the preset, so they are written although it has them.
    selecting = {"hide_velocities", "core"} if preset is not None and preset != plain else set()
    default = flat_settings(plain.config if plain else algorithm_named(name).Config(env=EnvConfig(env.id)))
    changed = [
        key
        for key in wanted
        if key not in OF_ONE_RUN and (wanted[key] != before[key] or (key in selecting and wanted[key] != default[key]))
    ]
    return [word for key in changed for word in _words(key, wanted[key])]


def _of_alike(runs: Sequence[RunHistory]) -> list[str]:
    """The commands for runs with the same settings: one for each stretch of seeds in a row."""
    first = runs[0]
    if first.settings["env.id"] == PASSED_IN:
        return []
    try:
        config = config_of(first)
        start = ["birl", "train", name_of(config), config.env.id, *option_words(config)]
    except (ConfigError, InexpressibleError):
        start = ["birl", "train", "--like", str(Path(first.run_dir))]
    seeds = sorted({run.seed for run in runs})
    return [
        shlex.join([*start, *([] if count == 1 else ["--seeds", str(count)]), "--seed", str(seed)])
        for seed, count in _stretches(seeds)
    ]


def _of_fork(run: RunHistory, fork: Fork) -> str:
    """The command that makes this fork again. What no option can write is left to the reader."""
    words = ["birl", "fork", near(fork.parent), "--at", str(fork.env_steps)]
    missing = []
    for name, (_, after) in fork.changed.items():
        try:
            values = {"env.id": run.settings["env.id"]} | flat_settings(config_of(run))
            words += ["--env", _text(name, after)] if name == "env.id" else _changed_words(name, values)
        except (ConfigError, InexpressibleError):
            missing.append(name)
    rest = f"  # and {', '.join(missing)} as in {near(run.run_dir)}" if missing else ""
    return shlex.join(words) + " ".join(rest.split("\n"))


def near(path: Path) -> str:
    """The path as it is written from here: relative if it is below the current directory."""
    whole, here = path.resolve(), Path.cwd()
    return str(whole.relative_to(here)) if whole.is_relative_to(here) else str(whole)


def _changed_words(name: str, values: dict[str, Any]) -> list[str]:
    flat = name.rpartition(".")[2]
    if flat not in values:
        raise InexpressibleError(f"{name} is not a setting of this version")
    return _words(flat, values[flat])


def _stretches(seeds: Iterable[int]) -> Iterator[tuple[int, int]]:
    """The first seed and the length of each stretch of seeds that follow each other."""
    for _, stretch in itertools.groupby(enumerate(seeds), lambda pair: pair[1] - pair[0]):
        found = [seed for _, seed in stretch]
        yield found[0], len(found)


def _words(name: str, value: Any) -> list[str]:
    """The option that sets this value, as words."""
    option = "--" + name.replace("_", "-")
    match value:
        case bool():
            return [option if value else option.replace("--", "--no-", 1)]
        case None:
            return [option, "None"]
        case tuple() if any(isinstance(item, Wrapper) for item in value):
            return [word for item in value for word in ("--wrapper", _short(item.text()))]
        case tuple() if name == "wrappers":
            raise InexpressibleError(f"{name}: no option removes the preset's")
        case tuple():
            return [option, *(_text(name, item) for item in value)]
        case dict():
            return [option, *(word for key, item in value.items() for word in (_text(name, key), _pair(name, item)))]
    return [option, _text(name, value)]


def _text(name: str, value: Any) -> str:
    """A value as one word. A word that begins with a dash would be read as an option."""
    text = schedules.format(value) if isinstance(value, schedules.Schedule) else str(value)
    is_number = isinstance(value, int | float)
    if (text.startswith("-") and not is_number) or (isinstance(value, str) and text in ("", "None")):
        raise InexpressibleError(f"{name}: {text!r} would not be read as a text")
    return _short(text)


def _pair(name: str, value: Any) -> str:
    """The value of a keyword argument; its type is read from the word."""
    read = value
    if isinstance(value, str):
        looks = [kind for kind in (int, float) if _reads(kind, value)]
        read = None if looks or value in ("True", "False") else value
    if type(read) not in (bool, int, float, str):
        raise InexpressibleError(f"{name}: {value!r} would be read as another type")
    return _text(name, value)


def _reads(kind: type, text: str) -> bool:
    try:
        kind(text)
    except ValueError:
        return False
    return True


def _short(text: str) -> str:
    if len(text) > LONGEST:
        raise InexpressibleError(f"{len(text)} characters are too long for an option")
    return text
