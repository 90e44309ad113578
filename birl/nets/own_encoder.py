"""An encoder of the user's own: a function makes it, and settings name that function.

The function is `make_encoder(rng, observation_space) -> (module, width)`. The module maps
observations [*batch, ...] to features [*batch, width]. Birl's dense layers, core and heads follow.
"""

import inspect
from typing import Any

import equinox as eqx
import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jaxtyping import Array

from birl.config import ConfigError, function_named, require
from birl.types import PyTree

FORM = "make_encoder(rng, observation_space) returns (module, width): an Equinox module and its number of features"
BATCHES = ((3,), (2, 3))  # leading axes to try: of transitions, and of T steps in B environments


class OwnEncoder(eqx.Module):
    """A module of the user's own. Its arrays are parameters; functions and numbers are constant."""

    parameters: PyTree  # the module, with None for each constant
    constants: PyTree = eqx.field(static=True)  # the module, with None for each parameter

    def __call__(self, observations: PyTree) -> Array:
        return eqx.combine(self.parameters, self.constants)(observations)


def make_own_encoder(rng: np.random.Generator, space: gym.Space, name: str) -> tuple[OwnEncoder, int]:
    """The encoder that the function of this name makes for a space, and its number of features.

    ConfigError if the function does not return what it should.
    """
    make = function_named(name, "encoder")
    try:
        inspect.signature(make).bind(rng, space)
    except TypeError as problem:
        raise ConfigError(f"encoder {name!r} cannot be called with (rng, observation_space): {problem}") from problem
    made = make(rng, space)
    is_pair = isinstance(made, tuple) and len(made) == 2
    require(is_pair, f"encoder {name!r} returned {_short(made)}; {FORM}")
    module, width = made
    is_module = isinstance(module, eqx.Module) and callable(module)
    require(is_module, f"encoder {name!r} returned {_short(module)} as its module; {FORM}")
    is_width = isinstance(width, int | np.integer) and not isinstance(width, bool) and int(width) >= 1
    require(is_width, f"encoder {name!r} returned {_short(width)} as its width; {FORM}")
    encoder = OwnEncoder(*_split(module, name))
    _check_features(encoder, int(width), space, name)
    return encoder, int(width)


def _split(module: eqx.Module, name: str) -> tuple[PyTree, PyTree]:
    """The module's parameters, as float32, and its constants, which must be hashable."""
    parameters, constants = eqx.partition(module, eqx.is_inexact_array)
    for path, leaf in jax.tree_util.tree_leaves_with_path(constants):
        place = f"encoder {name!r}: {jax.tree_util.keystr(path)} of {type(module).__name__}"
        reason = "parameters are float32, and constants are static"
        remedy = "make it float32, or a tuple in a field with eqx.field(static=True)"
        require(_is_hashable(leaf), f"{place} is {_short(leaf)}: {reason}; {remedy}")
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), parameters), constants


def _check_features(encoder: OwnEncoder, width: int, space: gym.Space, name: str) -> None:
    """Raise ConfigError unless observations [*batch, ...] become features [*batch, width]."""
    for batch in BATCHES:
        observations = _like(space, batch)
        shapes = jax.tree.map(lambda array: array.shape, observations)
        try:
            features = jax.eval_shape(encoder, observations)
        except Exception as problem:  # whatever the user's code raises
            said = f"{type(problem).__name__}: {problem}".partition("\n")[0]
            remedy = "its module takes observations [*batch, ...] with any number of leading axes"
            raise ConfigError(
                f"encoder {name!r} fails for observations of shape {shapes}: {said}; {remedy}"
            ) from problem
        expected = (*batch, width)
        is_array = isinstance(features, jax.ShapeDtypeStruct)
        wrong = f"encoder {name!r} maps observations of shape {shapes} to"
        require(is_array, f"{wrong} {_short(features)}; return one array of shape {expected}")
        fits = features.shape == expected
        remedy = f"for width {width} it must be {expected}: [*batch, width]"
        require(fits, f"{wrong} features of shape {features.shape}; {remedy}")
        is_float = jnp.issubdtype(features.dtype, jnp.floating)
        require(is_float, f"{wrong} features of type {features.dtype}; return float32")


def _like(space: gym.Space, batch: tuple[int, ...]) -> PyTree:
    """The shapes and types of a batch of observations as networks get them."""
    if isinstance(space, spaces.Dict):
        return {key: _like(part, batch) for key, part in space.items()}
    dtype = jax.dtypes.canonicalize_dtype(space.dtype)
    return jax.ShapeDtypeStruct((*batch, *(space.shape or ())), dtype)


def _is_hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def _short(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else f"{text[:80]}..."
