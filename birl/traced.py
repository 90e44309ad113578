"""The decorator of Configs, which makes them pytrees: one program serves all values of floats.

In a compiled function that takes a Config, the float settings and `run.total_steps` are traced: the
next value of a learning rate compiles nothing, and `jax.vmap` maps over Configs whose leaves are
stacked. All other settings are constants of the program. A setting that is None, a number or a
Schedule is another program in each case.

Of `env` and `run` a compiled function sees only what it may need, EnvInJit and RunInJit. To read
anything else there, such as a seed, is an AttributeError: the program is reused for another seed.
"""

import copy
import dataclasses
import types
import typing
import weakref
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple, TypeVar, dataclass_transform

import jax
import numpy as np

from birl.config import RunConfig, checked
from birl.maths.count import Count, count_of
from birl.maths.schedules import Schedule, value_at
from birl.settings import Constant, accept_flat_names, places_of, plain

Kind = TypeVar("Kind", bound=type)
State = TypeVar("State")
Scheduled = Any  # a Config in which every schedule is a number, its value at this moment
Flat = dict[str, Any]  # settings by flat name

_SEEN_APART = (("env",), ("run",))  # parts of which a program sees little: EnvInJit and RunInJit


class EnvInJit(NamedTuple):
    """What a compiled function sees of EnvConfig."""

    num_envs: int


class RunInJit(NamedTuple):
    """What a compiled function sees of RunConfig."""

    total_steps: Count  # exact: float32 ends at 2²⁴


class Constants:
    """The settings that are constants of a program. There is one object for equal settings.

    So two programs are compared by identity, which takes no time at each call.
    """

    def __init__(self, settings: Flat) -> None:
        self.settings = settings


class Flattened(NamedTuple):
    """A Config as JAX sees it."""

    values: tuple[Any, ...]  # total_steps, then each traced setting: float32, a Schedule of arrays, or None
    constants: Constants


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def settings(kind: Kind) -> Kind:
    """The class as the Config of an algorithm.

    It is a frozen dataclass that checks its values, takes settings of its parts by their flat
    names, and is a pytree whose leaves are the float settings.
    """
    made = accept_flat_names(checked(kind))
    names = traced_settings(made)
    jax.tree_util.register_pytree_node(
        made,
        lambda config: _flatten(config, names),
        lambda constants, values: _unflatten(made, constants, dict(zip(("run", *names), values, strict=True))),
    )
    return made


def traced_settings(kind: Any) -> tuple[str, ...]:
    """The flat names of a Config's settings that are traced: those that may be a float."""
    return tuple(
        name
        for name, place in places_of(kind).items()
        if float in _options(plain(place.hint)) and not place.about(Constant) and place.path[:1] not in _SEEN_APART
    )


def place_together(place: Callable[[Any], Any], state: State, config: Any) -> State:
    """The state where `place` puts it; the Config's leaves are kept beside it from now on.

    Calls that get a state on several devices would copy each leaf there: 700 µs for A2C, with two.
    """
    _flattened.pop(id(config), None)
    jax.tree.leaves(config)
    if id(config) not in _flattened:  # its class is not registered: a static argument
        return place(state)
    flat, reference = _flattened[id(config)]
    state, values = place((state, flat.values))
    _flattened[id(config)] = flat._replace(values=values), reference
    return state


def scheduled(config: Any, env_steps: Count) -> Scheduled:
    """The Config at this moment of a run: each schedule is replaced by its value now."""
    now = copy.copy(config)
    kind: Any = type(config)
    for name in _default_parts(kind):
        vars(now)[name] = copy.copy(vars(config)[name])
    for name, place in places_of(kind).items():
        if place.path[:1] in _SEEN_APART:
            continue
        value = getattr(place.part_of(config), name)
        if isinstance(value, Schedule):
            vars(place.part_of(now))[name] = value_at(value, env_steps / config.run.total_steps)
    return now


def _options(hint: Any) -> tuple[Any, ...]:
    """The types of a union; the type itself if it is none."""
    return typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)


_flattened: dict[int, tuple[Flattened, weakref.ref[Any]]] = {}  # by id, while the Config lives
_constants: dict[tuple[Any, ...], Constants] = {}


def _flatten(config: Any, names: tuple[str, ...]) -> Flattened:
    """The Config's values and constants, worked out once for each Config."""
    known = _flattened.get(id(config))
    if known is not None:
        return known[0]
    flat = _own_settings(config)
    values = [config.run.total_steps, *(flat.pop(name) for name in names)]
    constants = _constants_of(config, flat)
    if not isinstance(config.run, RunConfig):  # from `_unflatten`: the values are leaves already
        return Flattened(tuple(values), constants)
    # Not inside a program that is being traced: what is kept must outlive it.
    with jax.ensure_compile_time_eval():
        flattened = Flattened(tuple(map(_leaves_of, values)), constants)
    number = id(config)
    _flattened[number] = flattened, weakref.ref(config, lambda _: _flattened.pop(number, None))
    return flattened


def _unflatten(kind: Any, constants: Constants, values: Flat) -> Any:
    """A Config for use inside a program, without checks: values may be tracers, or of many runs."""
    config = object.__new__(kind)
    vars(config).update(env=constants.settings["env"], run=RunInJit(values["run"]))
    values = constants.settings | values
    for name, default in _default_parts(kind).items():  # with the settings that this algorithm leaves out
        vars(config)[name] = part = object.__new__(type(default))
        vars(part).update(vars(default))
    for name, place in places_of(kind).items():
        if place.path[:1] not in _SEEN_APART:
            vars(place.part_of(config))[name] = values[name]
    return config


@cache
def _default_parts(kind: Any) -> dict[str, Any]:
    default = kind()
    names = {place.path[0] for place in places_of(kind).values() if place.path and place.path[:1] not in _SEEN_APART}
    return {name: vars(default)[name] for name in names}


def _own_settings(config: Any) -> Flat:
    """All settings but those of the environment and of the run."""
    places = places_of(config.__class__).items()
    return {name: getattr(at.part_of(config), name) for name, at in places if at.path[:1] not in _SEEN_APART}


def _leaves_of(value: Any) -> Any:
    """A setting as arrays on the device: 12 numbers that each call must move there take 14 µs."""
    match value:
        case None:
            return None
        case int():
            return jax.device_put(count_of(value))
        case Schedule():
            return jax.device_put(value)
        case _:
            return jax.device_put(np.float32(value))


def _constants_of(config: Any, settings: Flat) -> Constants:
    env = EnvInJit(config.env.num_envs)
    return _constants.setdefault((type(config), env, *settings.values()), Constants(settings | {"env": env}))
