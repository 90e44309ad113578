"""The search space of a task: what the settings declare, without what the task does not use.

A user narrows and widens it: `--search NAME=LOW:HIGH`, `--search NAME=VALUE,VALUE`,
`--search NAME`, `--fix NAME` and `--fix NAME=VALUE`.
"""

import dataclasses
import json
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import gymnasium as gym
from gymnasium import spaces

from birl.config import ConfigError, from_json, hints_of, is_compiled, require
from birl.envs.spaces import holds_pixels, is_image, walk
from birl.errors import suggest_setting
from birl.registry import name_of
from birl.run.configure import with_settings
from birl.search import EITHER, Choices, Dimension, LogRange, Range, SearchSpace
from birl.settings import declared_search, flat_settings, places_of, replaced

NUMBER = r"[-+]?(?:\d+(?:_\d+)*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
BETWEEN = re.compile(rf"\s*({NUMBER})\s*:\s*({NUMBER})\s*")  # LOW:HIGH
WIDE = 50  # a range whose ends are this many times apart is searched by its logarithm

Leaves = list[gym.Space]
Unused = Callable[[Any, Leaves, Leaves], bool]  # of a Config and of the leaves of its observations and actions

# When a setting of a table does nothing, or is refused.
UNUSED: dict[str, Unused] = {
    "num_envs": lambda config, _, __: is_compiled(config.env),  # there they are many, and a matter of speed
    "log_std": lambda config, _, actions: not _any_box(actions) or _has_own_std(config),
    "squash_actions": lambda _, __, actions: len(actions) != 1 or not _bounded(actions[0]),
    "gsde": lambda config, _, actions: not _any_box(actions) or _has_own_std(config),
    "normalize_observations": lambda _, observations, __: (
        not any(isinstance(leaf, spaces.Box) and not holds_pixels(leaf) for leaf in observations)
    ),
    "hidden_sizes": lambda config, observations, _: _only_convolutions(config, observations),
    "core_size": lambda config, _, __: not _recurrent(config),
    "prioritized": lambda config, _, __: _recurrent(config),  # it samples single steps
    "replay_size": lambda _, observations, __: any(map(is_image, observations)),  # a matter of memory there
    "clip_range": lambda config, _, __: flat_settings(config).get("objective") == "kl",
}


def search_space(
    config: Any,
    observation_space: gym.Space,
    action_space: gym.Space,
    search: Iterable[str] = (),
    fix: Iterable[str] = (),
) -> tuple[SearchSpace, Any]:
    """The space to search around this Config, and the Config with the settings that are fixed.

    `search` and `fix` are the user's changes, written as on the command line.
    """
    given = {"observation": observation_space, "action": action_space}
    leaves = [[leaf for _, leaf in walk(space, role)] for role, space in given.items()]
    table = declared_search(type(config))
    space = {name: found for name, found in table.items() if not (name in UNUSED and UNUSED[name](config, *leaves))}
    fixed: dict[str, Any] = {}
    for text in fix:
        name, equals, value = _named(config, text, "--fix")
        space.pop(name, None)
        if equals:
            fixed[name] = read_value(config, name, value)
    for text in search:
        name, equals, values = _named(config, text, "--search")
        require(name not in fixed, f"--search {name} and --fix {name} contradict each other; leave one out")
        space[name] = _read_dimension(config, name, values, table.get(name)) if equals else _usual(config, name, table)
    require(bool(space), "no setting is left to search; leave out a --fix, or add --search NAME=LOW:HIGH")
    return space, with_settings(config, fixed)


def at_point(config: Any, point: Mapping[str, Any]) -> Any:
    """The Config at a point of its search space, made valid.

    A number for a setting that is a schedule scales it: the schedule then begins at that number.
    """
    own = flat_settings(config)
    values = {name: _scaled(own.get(name), value) for name, value in point.items()}
    return repaired(with_settings(config, values))


def repaired(config: Any) -> Any:
    """The Config with settings that do not go together changed to the nearest that do.

    Minibatches divide a rollout, learning starts before the end, gSDE's settings need gSDE.
    """
    own = flat_settings(config)
    changed: dict[str, Any] = {}
    if "minibatches" in own:
        whole = config.env.num_envs * (1 if _recurrent(config) else config.rollout_length)
        changed["minibatches"] = max(n for n in range(1, min(config.minibatches, whole) + 1) if whole % n == 0)
    if own.get("learning_starts", 0) >= config.run.total_steps:
        changed["learning_starts"] = config.run.total_steps // 10
    if own.get("gsde_every") is not None:
        changed["gsde_every"] = min(own["gsde_every"], config.rollout_length) if own["gsde"] else None
    if own.get("batch_size") and own.get("replay_size"):
        changed["batch_size"] = min(own["batch_size"], own["replay_size"])
    return replaced(config, changed)


def read_value(config: Any, name: str, text: str) -> Any:
    """The value of a setting that this text stands for, as its type demands."""
    hint = _hints(config)[name]
    if _is_tuple(hint) and text.strip().casefold() != "none":
        return from_json(hint, [_plain(word) for word in text.split()], name)
    return from_json(hint, _plain(text.strip()), name)


def _read_dimension(config: Any, name: str, text: str, table: Dimension | None) -> Dimension:
    """LOW:HIGH as a range, by logarithm where the table has one or the ends are far apart."""
    ends = BETWEEN.fullmatch(text)
    if ends is None:
        # A comma before KEY= is part of a value, as in piecewise:0=1,0.5=0.1.
        return Choices(tuple(read_value(config, name, value) for value in re.split(r",(?!\s*[\w.]+=)", text)))
    low, high = (float(end) for end in ends.groups())
    kinds = _kinds(_hints(config)[name])
    wrong = f"--search {name}={text}: {name} is not a number"
    require(int in kinds or float in kinds, f"{wrong}; name its values: --search {name}=VALUE,VALUE")
    if float not in kinds:
        wrong = f"--search {name}={text}: {name} is a whole number"
        require(low.is_integer() and high.is_integer(), f"{wrong}; use whole numbers")
        low, high = int(low), int(high)
    by_logarithm = isinstance(table, LogRange) or (low > 0 and high / low >= WIDE)
    return LogRange(low, high) if by_logarithm else Range(low, high)


def _usual(config: Any, name: str, table: SearchSpace) -> Dimension:
    """The values to try for a setting that was named without any."""
    kinds = _kinds(_hints(config)[name])
    named = [option for kind in kinds if typing.get_origin(kind) is Literal for option in typing.get_args(kind)]
    if name in table:
        return table[name]
    if bool in kinds:
        return EITHER
    require(bool(named), f"--search {name} names no values; write --search {name}=LOW:HIGH, or {name}=VALUE,VALUE")
    return Choices(tuple(named))


def _named(config: Any, text: str, option: str) -> tuple[str, bool, str]:
    """The setting that a text names, whether values follow, and their text."""
    given, equals, values = text.partition("=")
    name = given.strip().lstrip("-").replace("-", "_")
    known = _hints(config)
    if name not in known:
        remedy = suggest_setting(name, set(known)) or f"birl train {name_of(config)} --help lists them"
        raise ConfigError(f"{option} {text!r}: {name_of(config)} has no setting {name!r} to search; {remedy}")
    require(not equals or bool(values.strip()), f"{option} {text!r} names no values; write {option} {name}=VALUE")
    return name, bool(equals), values


def _hints(config: Any) -> dict[str, Any]:
    """The annotations of the settings that can be searched, by flat name: not those of the run."""
    return {
        name: hints_of(place.kind)[name]
        for name, place in places_of(config.__class__).items()
        if name != "id" and place.path not in (("run",), ("env", "atari"))
    }


def _kinds(hint: Any) -> tuple[Any, ...]:
    """The types of a union; the type itself if it is none."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return tuple(kind for part in typing.get_args(hint) for kind in _kinds(part))
    return (hint,)


def _is_tuple(hint: Any) -> bool:
    return any(typing.get_origin(kind) is tuple for kind in _kinds(hint))


def _plain(text: str) -> Any:
    """The JSON value in a text, or True, False or None as Python writes them; else the text."""
    words = {"true": True, "false": False, "none": None}
    try:
        return words[text.casefold()] if text.casefold() in words else json.loads(text)
    except ValueError:
        return text


def _scaled(before: Any, value: Any) -> Any:
    """The schedule `before`, scaled so that it begins at this number; else the value itself."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (is_number and dataclasses.is_dataclass(before)) or before.values[0] == 0:  # type: ignore[union-attr]
        return value
    factor = value / before.values[0]  # type: ignore[union-attr]
    return dataclasses.replace(before, values=tuple(old * factor for old in before.values))  # type: ignore


def _recurrent(config: Any) -> bool:
    return flat_settings(config).get("core", "feedforward") != "feedforward"


def _has_own_std(config: Any) -> bool:
    return flat_settings(config).get("state_dependent_std", False)


def _bounded(leaf: gym.Space) -> bool:
    return isinstance(leaf, spaces.Box) and leaf.is_bounded()


def _any_box(actions: Leaves) -> bool:
    return any(isinstance(leaf, spaces.Box) for leaf in actions)


def _only_convolutions(config: Any, observations: Leaves) -> bool:
    """True if the observation is one image, whose encoder has layers of its own."""
    return len(observations) == 1 and is_image(observations[0]) and flat_settings(config).get("encoder", "mlp") != "mlp"
