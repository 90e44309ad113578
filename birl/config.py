"""Settings shared by every algorithm, their JSON form, and the error a bad setting raises."""

import dataclasses
import math
import os
import sys
import types
import typing
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, runtime_checkable

import tyro


class ConfigError(ValueError):
    """A setting cannot work; the message names the field, the value and what to use instead."""


@runtime_checkable
class HasToList(Protocol):
    """An array or a scalar of NumPy or JAX."""

    def tolist(self) -> Any: ...


@runtime_checkable
class ReadsText(Protocol):
    """A type of settings that may be written as one string."""

    TEXTS: ClassVar[str]  # examples of it

    def from_text(self, text: str) -> Any:
        """What the string stands for; ValueError if it stands for nothing."""


NOUNS = {int: "a whole number", float: "a number", bool: "True or False", str: "a string", type(None): "None"}


@dataclass(frozen=True)
class AtariConfig:
    """What is done to an Atari game, an id that begins with ALE/, before it is seen (Mnih et al.
    2015; Machado et al. 2018).
    """

    noop_max: int = 30  # a game begins with 1 to so many frames in which nothing is done
    frame_skip: int = 4  # frames that an action is held for; of the last two the brighter pixels are seen
    screen_size: int = 84  # pixels in height and width
    stacked_frames: int = 4  # the last so many pictures are an observation
    episodic_life: bool = (
        False  # a lost life ends the episode, and the game goes on in the next; returns are still of whole games
    )
    fire_reset: bool = True  # press fire at an episode's start, where the game has it: some do not begin before
    sticky_actions: float = 0.0  # chance that a frame repeats the action before instead; 0.25 in Machado et al.

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True)
class EnvConfig:
    """Which environment, and how many of it."""

    id: tyro.conf.Suppress[str] = "CartPole-v1"  # any Gymnasium id, or module:Id-v0 to import a module first
    num_envs: int = 8  # environments stepped together
    backend: Literal["gymnasium", "envpool"] = "gymnasium"
    workers: int = 0  # processes that step the environments; 0: this process
    ray_actors: int = 0  # Ray actors that collect rollouts, each with its share of the environments; 0: this process
    ray_address: str | None = None  # of a Ray cluster; None: one on this machine, started and ended by the run
    step_timeout: float = 60.0  # seconds a worker may take for a step before it is replaced
    hide_velocities: bool = False  # remove velocities from the observation: then memory is needed
    max_episode_steps: int | None = None  # None: the environment's own limit
    kwargs: dict[str, bool | int | float | str] = field(default_factory=dict, hash=False)  # for gymnasium.make
    atari: AtariConfig = field(default_factory=AtariConfig)

    TEXTS: ClassVar[str] = "'CartPole-v1'"

    def __post_init__(self) -> None:
        check_fields(self)

    @classmethod
    def from_text(cls, text: str) -> "EnvConfig":
        """The environment of that id."""
        return cls(text)


@dataclass(frozen=True)
class RunConfig:
    """How long to train, what to write, when to evaluate."""

    total_steps: int = 100_000  # environment steps; every schedule runs from 0 to here
    seed: int = 1
    run_dir: str | None = None  # None: runs/ALGORITHM-ENV-SEED, numbered if it is taken
    eval_every: int = 0  # environment steps between evaluations; 0: only at the end
    eval_episodes: int = 20
    eval_max_steps: int | None = (
        None  # cut evaluation episodes after so many steps; None: the environment's own limit, or 10,000
    )
    eval_deterministic: bool = True  # the mode of the policy, not a sample
    stop_at_return: float | None = None  # end the run once an evaluation reaches this mean return
    checkpoint_every: int = 50_000  # environment steps between checkpoints; 0: only at the end
    keep_checkpoints: int = 3  # the newest; the best is kept besides
    log_every: int = 1  # updates between log lines
    log_seconds: float = 0.1  # at least so many seconds between log lines; 0: as many as log_every asks for
    tensorboard: bool = False
    wandb: str | None = None  # a Weights & Biases project name
    metric_names: Literal["birl", "sb3", "cleanrl"] = "birl"

    def __post_init__(self) -> None:
        check_fields(self)


class Removed(NamedTuple):
    """A field that older versions had, and a stored config may still hold."""

    default: Any  # with this value it did nothing, and is ignored
    remedy: str  # for a config with another value


REMOVED_FIELDS: dict[type, dict[str, Removed]] = {
    EnvConfig: {
        "overlap": Removed(False, "load the run with the version of Birl that wrote it, or train again without it")
    },
}


def require(condition: bool, message: str) -> None:
    """Raise ConfigError with this message unless the condition holds."""
    if not condition:
        raise ConfigError(message)


def to_json(config: Any) -> Any:
    """A dataclass as plain JSON values; nested dataclasses become objects, tuples become lists."""
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        return {f.name: to_json(getattr(config, f.name)) for f in dataclasses.fields(config)}
    if isinstance(config, dict):
        return {key: to_json(value) for key, value in config.items()}
    if isinstance(config, list | tuple):
        return [to_json(value) for value in config]
    return str(config) if isinstance(config, Path) else config


def check_fields(config: Any) -> None:
    """The `__post_init__` of every Config: each field becomes what its annotation says;
    ConfigError, by its name, if it cannot.
    """
    hints = _hints_of(config.__class__)
    for known in dataclasses.fields(config):
        object.__setattr__(config, known.name, from_json(hints[known.name], getattr(config, known.name), known.name))


def from_json(kind: Any, value: Any, where: str = "config") -> Any:
    """What is meant by a value, from Python or JSON, where this type is needed; ConfigError with
    its path for what cannot be.

    Whole floats become ints, lists and arrays tuples, NumPy's and JAX's numbers Python's, and a
    text what the type reads from it.
    """
    origin = typing.get_origin(kind)
    value = value.tolist() if isinstance(value, HasToList) else value
    if origin in (typing.Union, types.UnionType):
        return _first_match(kind, value, where)
    if origin is Literal:
        options = typing.get_args(kind)
        require(type(value) is str and value in options, f"{where} {value!r} is not one of {', '.join(options)}")
        return value
    if origin is tuple:
        require(isinstance(value, list | tuple), f"{where} must be a list, not {value!r}")
        return tuple(from_json(typing.get_args(kind)[0], item, f"{where}[{i}]") for i, item in enumerate(value))
    if origin is dict:
        require(isinstance(value, dict), f"{where} must be an object, not {value!r}")
        for key in value:
            require(isinstance(key, str), f"{where} has the key {key!r}; use strings")
        return {key: from_json(typing.get_args(kind)[1], item, f"{where}.{key}") for key, item in value.items()}
    if dataclasses.is_dataclass(kind):
        return _dataclass_of(kind, value, where)
    return _plain_value(kind, value, where)


def _plain_value(kind: type, value: Any, where: str) -> Any:
    """A number, a truth value or a string; of a number what the others would lose is kept, so a
    float for an int must be whole.
    """
    if kind is float and type(value) in (int, float):
        require(-sys.float_info.max <= value <= sys.float_info.max, f"{where} {value} must be a finite number")
        return float(value)
    if kind is int and type(value) is float and value.is_integer():
        return int(value)
    if kind is str and isinstance(value, os.PathLike):
        return os.fspath(value)
    require(type(value) is kind, f"{where} must be {_noun(kind)}, not {_shown(kind, value)}")
    return value


def _dataclass_of(kind: Any, value: Any, where: str) -> Any:
    if type(value) is kind:
        return value
    if isinstance(kind, ReadsText) and isinstance(value, str):
        try:
            return kind.from_text(value)
        except ValueError as problem:
            raise ConfigError(f"{where}: {problem}") from problem
    require(isinstance(value, dict), f"{where} must be {_noun(kind)}, not {_shown(kind, value)}")
    value = _without_removed(kind, value, where)
    hints = _hints_of(kind)
    names = {f.name for f in dataclasses.fields(kind)}
    unknown = sorted(set(value) - names)
    require(not unknown, f"{where} has no field {', '.join(unknown)}; it has {', '.join(sorted(names))}")
    given = {name: from_json(hints[name], item, f"{where}.{name}") for name, item in value.items()}
    try:
        return kind(**given)
    except (TypeError, ValueError) as problem:  # one without a default is missing, or they do not fit together
        raise ConfigError(f"{where} {value!r} does not fit: {problem}") from problem


def _without_removed(kind: type, value: dict[str, Any], where: str) -> dict[str, Any]:
    """The value without fields that older versions had; ConfigError if one of them was in use."""
    removed = REMOVED_FIELDS.get(kind, {})
    for name in removed.keys() & value.keys():
        default, remedy = removed[name]
        require(value[name] == default, f"{where}.{name} is {value[name]!r}: this option is gone; {remedy}")
    return {name: item for name, item in value.items() if name not in removed}


def _first_match(kind: Any, value: Any, where: str) -> Any:
    if value is None and type(None) in typing.get_args(kind):
        return None
    options = [option for option in typing.get_args(kind) if option is not type(None)]
    exact = [option for option in options if type(value) is option]
    problem = None
    for option in exact or options:
        try:
            return from_json(option, value, where)
        except ConfigError as error:
            reads = dataclasses.is_dataclass(option) and isinstance(value, str | dict)
            problem = error if reads or exact else problem  # it came near: it says more than a list of types
    raise problem or ConfigError(f"{where} must be {_noun(kind)}, not {_shown(kind, value)}")


def _noun(kind: Any) -> str:
    """What a value of this type is called in a message."""
    if options := [_noun(option) for option in typing.get_args(kind)]:
        return " or ".join([", ".join(options[:-1]), options[-1]] if len(options) > 1 else options)
    return NOUNS.get(kind) or f"{'an' if kind.__name__[0] in 'AEIOU' else 'a'} {kind.__name__}"


def _shown(kind: Any, value: Any) -> str:
    """A value that does not fit, why a function never does, and how it may be written where there
    is such a way.
    """
    texts = [option.TEXTS for option in (typing.get_args(kind) or (kind,)) if isinstance(option, ReadsText)]
    function = (
        ", a function, which can be neither saved nor compiled"
        if callable(value) and not isinstance(value, type)
        else ""
    )
    return f"{value!r}{function}" + "".join(f"; write it like {text}" for text in texts)


@cache
def _hints_of(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind)
