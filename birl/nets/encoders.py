"""Encoders: observations of any space to feature vectors, over any leading axes."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise, zip_longest
from typing import Literal, Self

import equinox as eqx
import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array

from birl.config import ConfigError
from birl.device import cores, on_cpu
from birl.nets.convolution import Conv, make_conv
from birl.nets.layers import ACTIVATIONS, Activation, LayerNorm, Linear, make_layer_norm, make_linear
from birl.types import PyTree

EncoderName = Literal["mlp", "cnn", "cnn_2013", "cnn_small", "conv_only"]

# (kernel, channels, stride) of each convolution, and the dense layer after them.
CONVOLUTIONS: dict[str, tuple[tuple[tuple[int, int, int], ...], int | None]] = {
    "cnn": (((8, 32, 4), (4, 64, 2), (3, 64, 1)), 512),  # Mnih et al. 2015
    "cnn_2013": (((8, 16, 4), (4, 32, 2)), 256),  # Mnih et al. 2013, and of A3C in 2016: a third of the arithmetic
    "cnn_small": (((8, 8, 4), (4, 16, 2)), 128),
    "conv_only": (((8, 32, 4), (4, 64, 2), (3, 64, 1)), None),
}
IMAGES_AT_ONCE = 8  # on a CPU: what is computed of them stays in its caches, where that of 256 does not


class Vector(eqx.Module):
    """Box, Discrete, MultiDiscrete or MultiBinary observations as one flat float vector: categories become one-hot."""

    event_ndim: int = eqx.field(static=True)
    categories: tuple[int, ...] = eqx.field(static=True)  # () for numbers
    scale: float = eqx.field(static=True, default=1.0)  # of numbers

    def __call__(self, observations: Array) -> Array:
        if not self.categories:
            leading = observations.shape[: observations.ndim - self.event_ndim]
            numbers = observations.reshape(*leading, -1).astype(jnp.float32)
            return numbers if self.scale == 1.0 else numbers * self.scale
        columns = observations[..., None] if self.event_ndim == 0 else observations.reshape(*observations.shape[: -self.event_ndim], -1)
        return jnp.concatenate([jax.nn.one_hot(columns[..., i], n) for i, n in enumerate(self.categories)], axis=-1)


class Convolutional(eqx.Module):
    """Convolutions, then optionally a dense layer, on images in either channel order; bytes are scaled to [0, 1].

    Of several cores each convolves its share of the images. The dense layer has nearly all of the weights, so each core keeps some of its
    columns and computes them for all images: what they exchange is features, not gradients. A gradient step of DQN on Pong (batch 32)
    takes 22 ms so, and 28 if each core has the whole layer.
    """

    convolutions: tuple[Conv, ...]
    dense: Linear | None
    channels_first: bool = eqx.field(static=True)
    scale: float = eqx.field(static=True)
    activation: str = eqx.field(static=True)

    def __call__(self, observations: Array) -> Array:
        images = observations.reshape(-1, *observations.shape[-3:])
        features = self.features(images) if cores().size == 1 else self.shared_features(images)
        return features.reshape(*observations.shape[:-3], -1)

    def features(self, images: Array) -> Array:
        """[N, features] of images [N, ...]."""
        x = self.convolve(images)
        return x if self.dense is None else ACTIVATIONS[self.activation](self.dense(x))

    def shared_features(self, images: Array) -> Array:
        """The same, shared out among the cores; all of them get everything."""
        has_share = len(images) % cores().size == 0
        on_core = partial(Convolutional._features_on_core, has_share=has_share)
        places = self._places(), PartitionSpec("cores") if has_share else PartitionSpec()
        return jax.shard_map(on_core, mesh=cores(), in_specs=places, out_specs=PartitionSpec(), check_vma=False)(self, images)

    def _features_on_core(self, images: Array, has_share: bool) -> Array:
        """On a core with some of the dense layer's columns, and with its share of the images or all of them."""
        x = self.convolve(images)
        x = jax.lax.all_gather(x, "cores", tiled=True) if has_share else x
        if self.dense is None:
            return x
        products = jax.lax.all_gather(x @ self.dense.weight, "cores", axis=1, tiled=True)
        return ACTIVATIONS[self.activation](products + self.dense.bias)

    def convolve(self, images: Array) -> Array:
        """[N, features] of images [N, ...], before the dense layer."""
        return in_parts(self._convolve, images, IMAGES_AT_ONCE) if on_cpu() else self._convolve(images)

    def _convolve(self, images: Array) -> Array:
        first, *others = self.convolutions
        # The scale is the weights', of which there are fewer than pixels.
        x = eqx.tree_at(lambda conv: conv.weight, first, first.weight * self.scale)(images, self.channels_first)
        for convolution in others:
            x = convolution(ACTIVATIONS[self.activation](x))
        return ACTIVATIONS[self.activation](x).reshape(len(images), -1)

    def placed(self) -> Self:
        """The same with each array on the cores where it belongs, so that it need not be moved there at each call."""
        return jax.tree.map(lambda array, place: jax.device_put(array, NamedSharding(cores(), place)), self, self._places())

    def _places(self) -> PyTree:
        """Which part of each array a core has: of the dense layer's weights some columns, of the rest everything."""
        places = jax.tree.map(lambda _: PartitionSpec(), self)
        return places if self.dense is None else eqx.tree_at(lambda p: p.dense.weight, places, PartitionSpec(None, "cores"))


def in_parts(function: Callable[[Array], Array], rows: Array, size: int) -> Array:
    """function(rows), computed of so many rows at a time."""
    whole = len(rows) // size * size
    if len(rows) <= size:
        return function(rows)
    results = jax.lax.map(function, rows[:whole].reshape(-1, size, *rows.shape[1:]))
    results = results.reshape(whole, *results.shape[2:])
    return results if whole == len(rows) else jnp.concatenate([results, function(rows[whole:])])


class MLP(eqx.Module):
    """Dense layers, each followed by its normalisation, if there is one, and the activation."""

    layers: tuple[Linear, ...]
    activation: str = eqx.field(static=True)
    norms: tuple[LayerNorm | None, ...] = ()

    def __call__(self, x: Array) -> Array:
        for layer, norm in zip_longest(self.layers, self.norms):
            x = layer(x) if norm is None else norm(layer(x))
            x = ACTIVATIONS[self.activation](x)
        return x


class Encoder(eqx.Module):
    """Each part of an observation by its own encoder, side by side, then dense layers."""

    parts: tuple[Vector | Convolutional, ...]
    keys: tuple[str, ...] = eqx.field(static=True)  # of a Dict observation; () if the observation is one array
    scales: tuple[float, ...] = eqx.field(static=True)  # of each part's features
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
    """An encoder for that space and its number of features; images go through the named convolutions, the rest through `mlp`."""
    leaves = dict(space.spaces) if isinstance(space, spaces.Dict) else {"": space}
    parts, widths = zip(*[_make_part(rng, leaf, name, activation) for leaf in leaves.values()], strict=True)
    # A convolutional encoder has its own dense layer; more follow only for what is mixed with vectors.
    sizes = () if len(parts) == 1 and isinstance(parts[0], Convolutional) else hidden_sizes
    keys = tuple(leaves) if isinstance(space, spaces.Dict) else ()
    mlp = make_mlp(rng, (sum(widths), *sizes), activation, layer_norm)
    return Encoder(parts, keys, _scales(parts, widths), mlp), (sum(widths), *sizes)[-1]


def make_mlp(rng: np.random.Generator, sizes: tuple[int, ...], activation: Activation, layer_norm: bool = False) -> MLP:
    """Dense layers from each of these sizes to the next."""
    layers = tuple(make_linear(rng, inputs, outputs) for inputs, outputs in pairwise(sizes))
    return MLP(layers, activation, tuple(make_layer_norm(size) for size in sizes[1:]) if layer_norm else ())


def _scales(parts: Sequence[Vector | Convolutional], widths: Sequence[int]) -> tuple[float, ...]:
    """Factors that give the features of an image, hundreds of order 1, together the length of the numbers beside it.

    Without them a vector is drowned: every weight moves by the learning rate, so what an image says moves as many times faster.
    """
    numbers = sum(width for part, width in zip(parts, widths, strict=True) if isinstance(part, Vector))
    return tuple(
        min(1.0, float(np.sqrt(numbers / width))) if numbers and isinstance(part, Convolutional) else 1.0
        for part, width in zip(parts, widths, strict=True)
    )


def is_image(space: gym.Space) -> bool:
    return isinstance(space, spaces.Box) and len(space.shape) == 3


def _make_part(rng: np.random.Generator, space: gym.Space, name: EncoderName, activation: Activation) -> tuple[Vector | Convolutional, int]:
    match space:
        case spaces.Box() if is_image(space) and name != "mlp":
            return _make_convolutional(rng, space, name, activation)
        case spaces.Box() | spaces.MultiBinary():
            return Vector(len(space.shape), (), _byte_scale(space)), int(np.prod(space.shape))
        case spaces.Discrete():
            return Vector(0, (int(space.n),)), int(space.n)
        case spaces.MultiDiscrete():
            sizes = tuple(int(n) for n in space.nvec.flat)
            return Vector(len(space.shape), sizes), sum(sizes)
    raise ConfigError(f"observation space {space} has no encoder; use Box, Discrete, MultiDiscrete, MultiBinary or a Dict of these")


def _make_convolutional(rng: np.random.Generator, space: spaces.Box, name: str, activation: str) -> tuple[Convolutional, int]:
    channels_first = space.shape[0] < space.shape[-1]
    channels, height, width = space.shape if channels_first else (space.shape[-1], *space.shape[:2])
    shapes, dense_size = CONVOLUTIONS[name]
    convolutions = []
    for kernel, outputs, stride in shapes:
        convolutions.append(make_conv(rng, kernel, channels, outputs, stride))
        height, width, channels = (height - kernel) // stride + 1, (width - kernel) // stride + 1, outputs
        if min(height, width) < 1:
            raise ConfigError(f"encoder {name!r} needs larger images than {space.shape}; use 84x84, or --encoder mlp")
    features = height * width * channels
    dense = make_linear(rng, features, dense_size) if dense_size else None
    encoder = Convolutional(tuple(convolutions), dense, channels_first, _byte_scale(space), activation)
    return encoder.placed() if cores().size > 1 else encoder, dense_size or features


def _byte_scale(space: gym.Space) -> float:
    """Bytes of a Box become numbers from 0 to 1; everything else is taken as it is."""
    return 1 / 255 if isinstance(space, spaces.Box) and space.dtype == np.uint8 else 1.0
