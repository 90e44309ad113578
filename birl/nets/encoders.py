"""Encoders: from observations of any space to feature vectors, with any leading axes."""

import inspect
from collections.abc import Sequence
from itertools import pairwise, zip_longest
from typing import Any

import equinox as eqx
import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jaxtyping import Array

from birl.config import ConfigError, function_named, require
from birl.envs.spaces import holds_pixels, is_image
from birl.nets.images import encoder_for, make_image_encoder, too_small
from birl.nets.layers import ACTIVATIONS, LayerNorm, Linear, make_layer_norm, make_linear
from birl.parts import Activation, EncoderName
from birl.types import PyTree


class Vector(eqx.Module):
    """Box, Discrete, MultiDiscrete or MultiBinary values to one float vector.

    Discrete and MultiDiscrete values become one-hot.
    """

    event_ndim: int = eqx.field(static=True)
    categories: tuple[int, ...] = eqx.field(static=True)  # the number of choices of each; () for numbers
    scale: float = eqx.field(static=True, default=1.0)  # factor for numbers

    def __call__(self, observations: Array) -> Array:
        if not self.categories:
            leading = observations.shape[: observations.ndim - self.event_ndim]
            numbers = observations.reshape(*leading, -1).astype(jnp.float32)
            return numbers if self.scale == 1.0 else numbers * self.scale
        if self.event_ndim == 0:
            columns = observations[..., None]
        else:
            columns = observations.reshape(*observations.shape[: -self.event_ndim], -1)
        return jnp.concatenate([jax.nn.one_hot(columns[..., i], n) for i, n in enumerate(self.categories)], axis=-1)


class MLP(eqx.Module):
    """Dense layers, each followed by an optional layer normalisation and the activation."""

    layers: tuple[Linear, ...]
    activation: str = eqx.field(static=True)
    norms: tuple[LayerNorm | None, ...] = ()

    def __call__(self, x: Array) -> Array:
        for layer, norm in zip_longest(self.layers, self.norms):
            x = layer(x) if norm is None else norm(layer(x))
            x = ACTIVATIONS[self.activation](x)
        return x


class Encoder(eqx.Module):
    """An encoder for each part of an observation, concatenated, then dense layers.

    An encoder of the user's own is the only part, and takes the observation as a whole.
    """

    parts: tuple[Any, ...]
    keys: tuple[str, ...] = eqx.field(static=True)  # of a Dict observation; () for one part that takes all of it
    scales: tuple[float, ...] = eqx.field(static=True)  # factor for each part's features
    mlp: MLP

    def __call__(self, observations: PyTree) -> Array:
        arrays = [observations[key] for key in self.keys] if self.keys else [observations]
        if len(arrays) == 1:
            return self.mlp(self.parts[0](arrays[0]))
        features = [part(array) * scale for part, array, scale in zip(self.parts, arrays, self.scales, strict=True)]
        return self.mlp(jnp.concatenate(features, axis=-1))


def make_encoder(
    rng: np.random.Generator,
    space: gym.Space,
    name: EncoderName,
    hidden_sizes: tuple[int, ...],
    activation: Activation,
    layer_norm: bool = False,
) -> tuple[Encoder, int]:
    """An encoder for observations of this space, and its number of features.

    Images go through the convolutions of the encoder `name`, everything else through dense layers.
    The name auto stands for convolutions that fit each image's size.
    The name module:function is that of an encoder of the user's own; dense layers follow it.
    """
    if ":" in name:
        own, width = make_own_encoder(rng, space, name)
        mlp = make_mlp(rng, (width, *hidden_sizes), activation, layer_norm)
        return Encoder((own,), (), (1.0,), mlp), (width, *hidden_sizes)[-1]
    leaves = dict(space.spaces) if isinstance(space, spaces.Dict) else {"": space}
    parts, widths = zip(*[_make_part(rng, leaf, name, activation, layer_norm) for leaf in leaves.values()], strict=True)
    small = [leaf for leaf in leaves.values() if isinstance(leaf, spaces.Box) and len(leaf.shape) == 3]
    if name not in ("auto", "mlp") and small and all(isinstance(part, Vector) for part in parts):
        raise ConfigError(too_small(name, small[0]))
    # An image encoder has its own dense layer; more follow only where vectors are beside it.
    sizes = () if len(parts) == 1 and not isinstance(parts[0], Vector) else hidden_sizes
    keys = tuple(leaves) if isinstance(space, spaces.Dict) else ()
    mlp = make_mlp(rng, (sum(widths), *sizes), activation, layer_norm)
    return Encoder(parts, keys, _scales(parts, widths), mlp), (sum(widths), *sizes)[-1]


def make_mlp(rng: np.random.Generator, sizes: tuple[int, ...], activation: Activation, layer_norm: bool = False) -> MLP:
    """An MLP with a dense layer from each of these sizes to the next."""
    layers = tuple(make_linear(rng, inputs, outputs) for inputs, outputs in pairwise(sizes))
    return MLP(layers, activation, tuple(make_layer_norm(size) for size in sizes[1:]) if layer_norm else ())


def _scales(parts: Sequence[Any], widths: Sequence[int]) -> tuple[float, ...]:
    """Factors that give the features of an image the same total length as the numbers beside it.

    An image has hundreds of features of order 1. Without the factors they would dominate a vector:
    every weight moves by the learning rate, so the image's part would change much faster.
    """
    numbers = sum(width for part, width in zip(parts, widths, strict=True) if isinstance(part, Vector))
    return tuple(
        min(1.0, float(np.sqrt(numbers / width))) if numbers and not isinstance(part, Vector) else 1.0
        for part, width in zip(parts, widths, strict=True)
    )


def _make_part(
    rng: np.random.Generator, space: gym.Space, name: EncoderName, activation: Activation, layer_norm: bool
) -> tuple[Any, int]:
    match space:
        case spaces.Box() if is_image(space) and name != "mlp":
            fitting = encoder_for(space) if name == "auto" else name
            return make_image_encoder(rng, space, fitting, activation, layer_norm)
        case spaces.Box() | spaces.MultiBinary():
            return Vector(len(space.shape), (), 1 / 255 if holds_pixels(space) else 1.0), int(np.prod(space.shape))
        case spaces.Discrete():
            return Vector(0, (int(space.n),)), int(space.n)
        case spaces.MultiDiscrete():
            sizes = tuple(int(n) for n in space.nvec.flat)
            return Vector(len(space.shape), sizes), sum(sizes)
    raise ConfigError(
        f"observation space {space} has no encoder; use Box, Discrete, MultiDiscrete, MultiBinary or a Dict of these"
    )


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
