"""Images to features: convolutions, then a dense layer, shared out among the cores."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Self, TypeVar

import equinox as eqx
import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array

from birl.accel.convolution import Conv, make_conv
from birl.accel.devices import cores, on_cpu, replicated
from birl.config import ConfigError
from birl.envs.spaces import channels_come_first, holds_pixels
from birl.nets.layers import ACTIVATIONS, LayerNorm, Linear, make_layer_norm, make_linear
from birl.types import PyTree

# (kernel, channels, stride) of each convolution, and the dense layer after them.
CONVOLUTIONS: dict[str, tuple[tuple[tuple[int, int, int], ...], int | None]] = {
    "cnn": (((8, 32, 4), (4, 64, 2), (3, 64, 1)), 512),  # Mnih et al. 2015
    "cnn_2013": (((8, 16, 4), (4, 32, 2)), 256),  # Mnih et al. 2013, and of A3C in 2016: a third of the arithmetic
    "cnn_small": (((8, 8, 4), (4, 16, 2)), 128),
    "conv_only": (((8, 32, 4), (4, 64, 2), (3, 64, 1)), None),
}
IMAGES_AT_ONCE = 8  # on a CPU: what is computed of them stays in its caches, where that of 256 does not
COLUMNS = SHARE = PartitionSpec(
    None, "cores"
)  # a core has some columns of a matrix; of images [T, B, ...] those of some environments

Known = tuple[
    Any, ...
]  # outputs of layers, before their activation, that have been computed before; None: that have not
Layer = TypeVar("Layer")


class Seen(NamedTuple):
    """Images [T, B, ...] with what an encoder has made of them before, so that it need not compute
    that again to learn from them.
    """

    images: Array
    outputs: Known  # [T, B, ...] of each layer, before its activation; None: not kept


class Convolutional(eqx.Module):
    """Convolutions, then optionally a dense layer, on images in either channel order; bytes are
    scaled to [0, 1].

    Of several cores each convolves its share of the images. The dense layer has nearly all of the
    weights, so each core keeps some of its columns and computes them for all images: what they
    exchange is features, not gradients. A gradient step of DQN on Pong (batch 32) takes 22 ms so,
    and 28 if each core has the whole layer.
    """

    convolutions: tuple[Conv, ...]
    dense: Linear | None
    channels_first: bool = eqx.field(static=True)
    scale: float = eqx.field(static=True)
    activation: str = eqx.field(static=True)
    norm: LayerNorm | None = None  # of what the dense layer puts out

    def __call__(self, observations: Array | Seen) -> Array:
        if isinstance(observations, Seen):
            leading, outputs = observations.images.shape[:-3], self.outputs(*observations)
        else:
            leading, outputs = (
                observations.shape[:-3],
                self.outputs(observations.reshape(1, -1, *observations.shape[-3:])),
            )
        features = outputs[-1] if self.norm is None else self.norm(outputs[-1])
        return ACTIVATIONS[self.activation](features).reshape(*leading, -1)

    def outputs(self, images: Array, known: Known = ()) -> tuple[Array, ...]:
        """Of images [T, B, ...] the outputs [T, B, ...] of each layer before its activation; those
        that are known are not computed.
        """
        count = len(self.convolutions)
        convolved = self._convolved(images, known[:count] or (None,) * count)
        if self.dense is None:
            return *convolved[:-1], on_all_cores(convolved[-1])
        features = ACTIVATIONS[self.activation](convolved[-1]).reshape(*images.shape[:2], -1)
        return *convolved, recalled(dense_outputs, self.dense, features, known[count:] or (None,))

    def _convolved(self, images: Array, known: Known) -> tuple[Array, ...]:
        """The convolutions' outputs; of several cores each has those of its share of the images."""
        convolutions = eqx.tree_at(lambda encoder: encoder.dense, self, None, is_leaf=lambda x: x is None)
        if cores().size == 1:
            return convolutions._convolve(images, known)
        place = SHARE if is_shared(images) else PartitionSpec()
        places = PartitionSpec(), place, place
        convolve = jax.shard_map(
            Convolutional._convolve, mesh=cores(), in_specs=places, out_specs=place, check_vma=False
        )
        return convolve(convolutions, images, known)

    def _convolve(self, images: Array, known: Known) -> tuple[Array, ...]:
        rows, of_rows = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), (images, known))
        if known[-1] is None:
            outputs = in_parts(self._convolve_rows, (rows, of_rows))
        else:
            outputs = *of_rows[:-1], recalled(Convolutional._last_again, self, rows, of_rows)
        return jax.tree.map(lambda x: x.reshape(*images.shape[:2], *x.shape[1:]), outputs)

    def _last_again(self, rows: Array, known: Known) -> Array:
        """The last convolution's outputs, by which the gradient is found from what is known of all
        of them.
        """
        return in_parts(jax.checkpoint(lambda part: self._convolve_rows(part)[-1], prevent_cse=False), (rows, known))

    def _convolve_rows(self, part: tuple[Array, Known]) -> tuple[Array, ...]:
        x, known = part
        outputs: list[Array] = []
        first, *others = self.convolutions
        # The scale is the weights', of which there are fewer than pixels.
        layers = eqx.tree_at(lambda conv: conv.weight, first, first.weight * self.scale), *others
        for number, (layer, output) in enumerate(zip(layers, known, strict=True)):
            x = ACTIVATIONS[self.activation](outputs[-1]) if outputs else x
            outputs.append(recalled(partial(conv_outputs, self.channels_first and number == 0), layer, x, (output,)))
        return tuple(outputs)

    def placed(self) -> Self:
        """The same with each array on the cores where it belongs, so that it need not be moved
        there at each call.
        """
        places = jax.tree.map(lambda _: PartitionSpec(), self)
        places = places if self.dense is None else eqx.tree_at(lambda p: p.dense.weight, places, COLUMNS)
        return jax.tree.map(lambda array, place: jax.device_put(array, NamedSharding(cores(), place)), self, places)


def is_shared(images: Array) -> bool:
    """Whether a core has its share of images [T, B, ...], some of B; otherwise it has all of
    them.
    """
    return images.shape[1] % cores().size == 0


def on_all_cores(x: Array) -> Array:
    return x if cores().size == 1 else jax.lax.with_sharding_constraint(x, replicated())


def conv_outputs(channels_first: bool, layer: Conv, x: Array, _: PyTree = None) -> Array:
    return layer(x, channels_first)


def dense_outputs(layer: Linear, x: Array, _: PyTree = None) -> Array:
    """[T, B, outputs] of inputs [T, B, inputs]; of several cores each has some of the layer's
    columns.
    """
    if cores().size == 1:
        return layer(x)
    shared = is_shared(x)

    def on_core(weight: Array, bias: Array, x: Array) -> Array:
        x = jax.lax.all_gather(x, "cores", axis=1, tiled=True) if shared else x
        products = jax.lax.all_gather(x.reshape(-1, x.shape[-1]) @ weight, "cores", axis=1, tiled=True)
        return (products + bias).reshape(*x.shape[:2], -1)

    places = COLUMNS, PartitionSpec(), SHARE if shared else PartitionSpec()
    return jax.shard_map(on_core, mesh=cores(), in_specs=places, out_specs=PartitionSpec(), check_vma=False)(
        layer.weight, layer.bias, x
    )


def recalled(call: Callable[[Layer, Array, Known], Array], layer: Layer, x: Array, known: Known) -> Array:
    """call(layer, x, known). If the last of what is known is not None, it is the result, and of the
    call only the gradient is computed.
    """
    return call(layer, x, known) if known[-1] is None else _recalled(call, layer, x, known)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _recalled(call: Callable[[Layer, Array, Known], Array], layer: Layer, x: Array, known: Known) -> Array:
    return known[-1]


@_recalled.defjvp
def _tangent(call: Callable[[Layer, Array, Known], Array], primals: PyTree, tangents: PyTree) -> tuple[Array, Array]:
    (layer, x, known), (layer_tangent, x_tangent, _) = primals, tangents
    _, tangent = jax.jvp(lambda layer, x: call(layer, x, known), (layer, x), (layer_tangent, x_tangent))
    return known[-1], tangent


def in_parts(function: Callable[[PyTree], PyTree], rows: PyTree) -> PyTree:
    """function(rows) of arrays [N, ...], on a CPU computed of a few rows at a time."""
    count = len(jax.tree.leaves(rows)[0])
    whole = count // IMAGES_AT_ONCE * IMAGES_AT_ONCE
    if count <= IMAGES_AT_ONCE or not on_cpu():
        return function(rows)
    results = jax.lax.map(function, jax.tree.map(lambda x: x[:whole].reshape(-1, IMAGES_AT_ONCE, *x.shape[1:]), rows))
    results = jax.tree.map(lambda x: x.reshape(whole, *x.shape[2:]), results)
    if whole == count:
        return results
    return jax.tree.map(
        lambda *parts: jnp.concatenate(parts), results, function(jax.tree.map(lambda x: x[whole:], rows))
    )


def make_convolutional(
    rng: np.random.Generator, space: spaces.Box, name: str, activation: str, layer_norm: bool = False
) -> tuple[Convolutional, int]:
    """Convolutions of this name for images of this space, and their number of features;
    `layer_norm` is the dense layer's.
    """
    channels_first = channels_come_first(space)
    channels, height, width = space.shape if channels_first else (space.shape[-1], *space.shape[:2])
    shapes, dense_size = CONVOLUTIONS[name]
    convolutions = []
    for kernel, outputs, stride in shapes:
        convolutions.append(make_conv(rng, kernel, channels, outputs, stride))
        height, width, channels = (height - kernel) // stride + 1, (width - kernel) // stride + 1, outputs
        if min(height, width) < 1:
            raise ConfigError(too_small(name, space))
    features = height * width * channels
    dense = make_linear(rng, features, dense_size) if dense_size else None
    norm = make_layer_norm(dense_size) if dense_size and layer_norm else None
    encoder = Convolutional(tuple(convolutions), dense, channels_first, byte_scale(space), activation, norm)
    return encoder.placed() if cores().size > 1 else encoder, dense_size or features


def too_small(name: str, space: spaces.Box) -> str:
    return f"encoder {name!r} needs larger images than {space.shape}; use 84x84, or --encoder mlp"


def byte_scale(space: gym.Space) -> float:
    """Pixels become numbers from 0 to 1; everything else is taken as it is."""
    return 1 / 255 if holds_pixels(space) else 1.0
