"""The command that trains runs again: what differs from the preset of their task, as options."""

import itertools
import json
import shlex
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from birl.config import ConfigError, EnvConfig, Wrapper, from_json, from_stored, is_local
from birl.maths import schedules
from birl.presets import find_preset
from birl.presets.entry import core_of
from birl.registry import algorithm_named, name_of
from birl.run.directory import Fork, SettingsChange, flatten, settings_before
from birl.run.given import PASSED_IN
from birl.run.history import RunHistory
from birl.settings import flat_settings

OF_ONE_RUN = ("seed", "run_dir")  # runs that differ in these only are trained by one command
SAME_BITS = "The same seeds give the same runs, bit for bit, with the same versions on the same kind of CPU."
LONGEST = 2000  # characters of an option; a schedule may have a thousand points


class InexpressibleError(Exception):
    """A setting cannot be written as an option."""


def commands_for(runs: Sequence[RunHistory]) -> list[str]:
    """The commands that train these runs again, with the same settings and seeds.

    Where settings cannot be written as options, the command begins with --like and a run. Of runs
    that no command can train there is none (see limits_of). A fork has a command of its own, which
    begins with its parent. A run that was resumed with other settings is first trained with those
    that it had, and then resumed.
    """
    runs = [run for run in runs if not _no_command(run)]
    alike: dict[str, list[RunHistory]] = defaultdict(list)
    for run in runs:
        if run.fork is not None:
            continue
        settings = {key: value for key, value in run.settings.items() if key.removeprefix("run.") not in OF_ONE_RUN}
        alike[json.dumps(settings, sort_keys=True)].append(run)
    forks = [command for run in runs if run.fork is not None for command in _of_fork(run, run.fork)]
    return [command for same in alike.values() for command in _of_alike(same)] + forks


def limits_of(runs: Sequence[RunHistory]) -> list[str]:
    """The reasons why commands do not reproduce these runs bit for bit, as sentences."""
    found: dict[str, list[int]] = defaultdict(list)
    for run in runs:
        for reason in [f"{none}; no command trains it again"] if (none := _no_command(run)) else _inexact(run):
            found[reason].append(run.seed)
    return [
        f"{'Seed' if len(seeds) == 1 else 'Seeds'} {', '.join(map(str, sorted(set(seeds))))}: {reason}."
        for reason, seeds in found.items()
    ]


def _no_command(run: RunHistory) -> str:
    """The reason why no command trains this run again; "" if one does."""
    names = {"env.id": "make_env=", "encoder": "make_encoder="}
    given = {"envs=": run.settings["env.id"] == PASSED_IN} | {
        argument: is_local(str(run.settings.get(name, ""))) for name, argument in names.items()
    }
    passed_in = [argument for argument, was_given in given.items() if was_given]
    if passed_in:
        return f"it was passed an object of a Python program ({', '.join(passed_in)})"
    for change in _own_changes(run):
        if not _is_longer(change):
            return f"it was stopped at {change.env_steps:,} steps and resumed with other settings"
    return ""


def _is_longer(change: SettingsChange) -> bool:
    """True if a run that had ended was trained longer, as `birl resume` can do again."""
    match change.changed:
        case {"run.total_steps": (int(old), int()), **others} if not others:
            return change.env_steps >= old
        case {"run.total_steps": (int(), int()), "run.stop_at_return": (int() | float(), None), **others}:
            return not others  # it had reached this return
    return False


def _inexact(run: RunHistory) -> Iterator[str]:
    """The reasons why the same commands give other weights than this run has."""
    if run.settings.get("pool") in ("processes", "ray"):
        yield "its actor-learners write to the same parameters at the same time, so each run is another one"
    resumes = (run.summary or {}).get("inexact_resumes")
    if isinstance(resumes, list) and resumes:
        yield "it was resumed in new episodes, so a run that is not interrupted gives other weights"


def _own_changes(run: RunHistory) -> tuple[SettingsChange, ...]:
    """The changes by resumes; for a fork, without those of its parent before it."""
    return tuple(change for change in run.changes if run.fork is None or change.env_steps >= run.fork.env_steps)


def _at_first(run: RunHistory) -> RunHistory:
    """The run with the settings that it began with."""
    return replace(run, config=settings_before(run.config, _own_changes(run)))


def _again(path: Path, changes: Sequence[SettingsChange], command: list[str], ending: str = "") -> list[str]:
    """The command, and those that resume what it trained with the settings that changed."""
    if not changes:
        return [shlex.join(command)]
    place = near(path)
    place = f"again/{Path(place).name if Path(place).is_absolute() else place}{ending}"
    resumes = [
        ["birl", "resume", place, "--total-steps", str(change.changed["run.total_steps"][1])] for change in changes
    ]
    return [shlex.join(words) for words in [[*command, "--run-dir", place], *resumes]]


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
    first = _at_first(runs[0])
    changes = _own_changes(first)
    where = Path(first.run_dir)
    try:
        config = config_of(first)
        start = ["birl", "train", name_of(config), config.env.id, *option_words(config)]
    except (ConfigError, InexpressibleError):
        flat = flatten(first.config)
        changed = dict.fromkeys(name for change in changes for name in change.changed)
        start = ["birl", "train", "--like", str(where)]
        start += [word for name in changed for word in _words(name.rpartition(".")[2], flat[name])]
    commands = []
    where = where.parent if len({run.run_dir for run in runs}) > 1 else where
    for number, (seed, count) in enumerate(_stretches(sorted({run.seed for run in runs}))):
        words = [*start, *([] if count == 1 else ["--seeds", str(count)]), "--seed", str(seed)]
        ending = f"-{seed}" if number else ""
        commands += _again(where, changes, words, ending)
    return commands


def _of_fork(run: RunHistory, fork: Fork) -> list[str]:
    """The commands that make this fork again. What no option can write is left to the reader."""
    words = ["birl", "fork", near(fork.parent), "--at", str(fork.env_steps)]
    missing = []
    first = _at_first(run)
    for name, (_, after) in fork.changed.items():
        try:
            values = {"env.id": run.settings["env.id"]} | flat_settings(config_of(first))
            words += ["--env", _text(name, after)] if name == "env.id" else _changed_words(name, values)
        except (ConfigError, InexpressibleError):
            missing.append(name)
    rest = f"  # and {', '.join(missing)} as in {near(run.run_dir)}" if missing else ""
    command, *resumes = _again(Path(run.run_dir), _own_changes(run), words)
    return [command + " ".join(rest.split("\n")), *resumes]


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


def stored_text(value: Any) -> str:
    """A setting of a file, as JSON, as it is written on the command line."""
    match value:
        case {"kind": str(), "values": list(), "points": list()}:
            try:
                return schedules.shown(from_json(schedules.Schedule, value))
            except ConfigError:
                return str(value)
        case list() | tuple():
            return " ".join(map(stored_text, value)) or "none"
    return str(value)
