"""Config classes as pytrees: one compiled program serves all values of the float settings.

In a compiled function that takes a Config, the float settings and `run.total_steps` are traced: the
next value of a learning rate compiles nothing, and `jax.vmap` maps over Configs whose leaves are
stacked. All other settings are constants of the program. A setting that is None, a number or a
Schedule is another program in each case.

Of `env` and `run` a compiled function sees only what it may need, EnvInJit and RunInJit. To read
anything else there, such as a seed, is an AttributeError: the program is reused for another seed.
"""

import types
import typing
import weakref
from collections.abc import Callable
from dataclasses import fields
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np

from birl.config import RunConfig
from birl.maths.count import Count, count_of
from birl.maths.schedules import Schedule

Kind = TypeVar("Kind", bound=type)
State = TypeVar("State")

# Floats that change the program itself: the number of gradient steps, the structure of the State.
CONSTANT_FLOATS = frozenset({"update_ratio", "noise_rate", "noise_time_step"})


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

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings


class Flattened(NamedTuple):
    """A Config as JAX sees it."""

    values: tuple[Any, ...]  # total_steps, then each traced field: float32, a Schedule of arrays, or None
    constants: Constants


def traced_settings(kind: Kind) -> Kind:
    """The Config class, registered as a pytree whose leaves are its float settings."""
    names = traced_fields(kind)
    jax.tree_util.register_pytree_node(
        kind,
        lambda config: _flatten(config, names),
        lambda constants, values: _unflatten(kind, constants, dict(zip(("run", *names), values, strict=True))),
    )
    return kind


def traced_fields(kind: Any) -> tuple[str, ...]:
    """The names of a Config's own fields that are traced: those that may be a float."""
    hints = typing.get_type_hints(kind)
    may_be_float = [field.name for field in fields(kind) if float in _options(hints[field.name])]
    return tuple(name for name in may_be_float if name not in CONSTANT_FLOATS)


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
    values = [config.run.total_steps, *(vars(config)[name] for name in names)]
    constants = _constants_of(config, names)
    if not isinstance(config.run, RunConfig):  # from `_unflatten`: the values are leaves already
        return Flattened(tuple(values), constants)
    # Not inside a program that is being traced: what is kept must outlive it.
    with jax.ensure_compile_time_eval():
        flat = Flattened(tuple(map(_leaves_of, values)), constants)
    number = id(config)
    _flattened[number] = flat, weakref.ref(config, lambda _: _flattened.pop(number, None))
    return flat


def _unflatten(kind: Any, constants: Constants, values: dict[str, Any]) -> Any:
    config = object.__new__(kind)  # no checks: the values may be tracers, or arrays of many runs
    vars(config).update(constants.settings | values, run=RunInJit(values["run"]))
    return config


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


def _constants_of(config: Any, names: tuple[str, ...]) -> Constants:
    traced = {"env", "run", *names}
    settings = {name: value for name, value in vars(config).items() if name not in traced}
    env = EnvInJit(config.env.num_envs)
    return _constants.setdefault((type(config), env, *settings.values()), Constants(settings | {"env": env}))
