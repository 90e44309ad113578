"""A convolutional encoder divided among the CPU cores, and what is cached of its activations."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array

from birl.accel.convolution import convolve
from birl.accel.devices import cpu_devices, on_cpu, replicated
from birl.types import PyTree

IMAGES_AT_ONCE = 8  # on a CPU: the activations of 8 images stay in its caches, those of 256 do not
COLUMNS = PartitionSpec(None, "cores")  # each device has some columns of a matrix
SHARE = PartitionSpec(None, "cores")  # of images [T, B, ...] each device has those of some environments

Cached = tuple[Any, ...]  # outputs of layers before their activation; None: not cached
Layer = TypeVar("Layer")


class CachedImages(NamedTuple):
    """Images [T, B, ...] with layer outputs that were computed before, to be used again."""

    images: Array
    outputs: Cached  # [T, B, ...] of each layer, before its activation; None: not cached


class FastImageEncoder(eqx.Module):
    """nets.images.ImageEncoder with the same parameters, divided among the CPU cores.

    Each CPU core convolves its share of the images. The dense layer has nearly all of the weights,
    so each keeps some of its columns and computes them for all images: the CPU cores then exchange
    features instead of gradients. A gradient step of DQN on Pong (batch 32) takes 22 ms so, and 28
    ms if each CPU core has the whole layer.
    """

    convolutions: tuple[Any, ...]
    dense: Any
    channels_first: bool = eqx.field(static=True)
    scale: float = eqx.field(static=True)
    activation: Callable[[Array], Array] = eqx.field(static=True)
    norm: Any = None

    def __call__(self, observations: Array | CachedImages) -> Array:
        if isinstance(observations, CachedImages):
            leading = observations.images.shape[:-3]
            outputs = self.outputs(*observations)
        else:
            leading = observations.shape[:-3]
            outputs = self.outputs(observations.reshape(1, -1, *observations.shape[-3:]))
        features = outputs[-1] if self.norm is None else self.norm(outputs[-1])
        return self.activation(features).reshape(*leading, -1)

    def outputs(self, images: Array, cached: Cached = ()) -> tuple[Array, ...]:
        """Each layer's outputs [T, B, ...] for images [T, B, ...], before the activation."""
        count = len(self.convolutions)
        convolved = self._convolved(images, cached[:count] or (None,) * count)
        if self.dense is None:
            return *convolved[:-1], on_all_devices(convolved[-1])
        features = self.activation(convolved[-1]).reshape(*images.shape[:2], -1)
        return *convolved, use_cached(dense_outputs, self.dense, features, cached[count:] or (None,))

    def _convolved(self, images: Array, cached: Cached) -> tuple[Array, ...]:
        """The convolutions' outputs; each device has those of its share of the images."""
        convolutions = eqx.tree_at(lambda encoder: encoder.dense, self, None, is_leaf=lambda x: x is None)
        if cpu_devices().size == 1:
            return convolutions._convolve(images, cached)
        place = SHARE if is_divided(images) else PartitionSpec()
        divided = jax.shard_map(
            FastImageEncoder._convolve,
            mesh=cpu_devices(),
            in_specs=(PartitionSpec(), place, place),
            out_specs=place,
            check_vma=False,
        )
        return divided(convolutions, images, cached)

    def _convolve(self, images: Array, cached: Cached) -> tuple[Array, ...]:
        rows, cached_rows = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), (images, cached))
        if cached[-1] is None:
            outputs = in_parts(self._convolve_rows, (rows, cached_rows))
        else:
            outputs = *cached_rows[:-1], use_cached(FastImageEncoder._last_again, self, rows, cached_rows)
        return jax.tree.map(lambda x: x.reshape(*images.shape[:2], *x.shape[1:]), outputs)

    def _last_again(self, rows: Array, cached: Cached) -> Array:
        """The last convolution's outputs, for the gradient through all cached layers."""
        last = jax.checkpoint(lambda part: self._convolve_rows(part)[-1], prevent_cse=False)
        return in_parts(last, (rows, cached))

    def _convolve_rows(self, part: tuple[Array, Cached]) -> tuple[Array, ...]:
        x, cached = part
        outputs: list[Array] = []
        first, *others = self.convolutions
        # The weights are scaled instead of the pixels: there are fewer of them.
        layers = eqx.tree_at(lambda conv: conv.weight, first, first.weight * self.scale), *others
        for number, (layer, output) in enumerate(zip(layers, cached, strict=True)):
            x = self.activation(outputs[-1]) if outputs else x
            channels_first = self.channels_first and number == 0
            outputs.append(use_cached(partial(conv_outputs, channels_first), layer, x, (output,)))
        return tuple(outputs)

    def placed(self) -> "FastImageEncoder":
        """The encoder with each array on the devices that use it, so that no call moves it
        there.
        """
        places = jax.tree.map(lambda _: PartitionSpec(), self)
        places = places if self.dense is None else eqx.tree_at(lambda p: p.dense.weight, places, COLUMNS)
        put = partial(_put, mesh=cpu_devices())
        return jax.tree.map(put, self, places)


def is_fast_encoder(node: Any) -> bool:
    """Whether this is what `fast_image_encoder` returned for a plain encoder."""
    return isinstance(node, FastImageEncoder)


def fast_image_encoder(encoder: Any, activation: Callable[[Array], Array]) -> FastImageEncoder:
    """The fast form of a plain ImageEncoder, with the same parameters."""
    fast = FastImageEncoder(
        encoder.convolutions, encoder.dense, encoder.channels_first, encoder.scale, activation, encoder.norm
    )
    return fast.placed() if cpu_devices().size > 1 else fast


def _put(array: Array, place: PartitionSpec, mesh: Any) -> Array:
    return jax.device_put(array, NamedSharding(mesh, place))


def is_divided(images: Array) -> bool:
    """Whether images [T, B, ...] can be divided among the devices by their environments."""
    return images.shape[1] % cpu_devices().size == 0


def on_all_devices(x: Array) -> Array:
    return x if cpu_devices().size == 1 else jax.lax.with_sharding_constraint(x, replicated())


def conv_outputs(channels_first: bool, layer: Any, x: Array, _: PyTree = None) -> Array:
    return convolve(x, layer.weight, layer.bias, layer.stride, channels_first)


def dense_outputs(layer: Any, x: Array, _: PyTree = None) -> Array:
    """[T, B, outputs] of inputs [T, B, inputs]; each device computes some of the layer's
    columns.
    """
    if cpu_devices().size == 1:
        return layer(x)
    divided = is_divided(x)

    def on_device(weight: Array, bias: Array, x: Array) -> Array:
        x = jax.lax.all_gather(x, "cores", axis=1, tiled=True) if divided else x
        products = jax.lax.all_gather(x.reshape(-1, x.shape[-1]) @ weight, "cores", axis=1, tiled=True)
        return (products + bias).reshape(*x.shape[:2], -1)

    places = COLUMNS, PartitionSpec(), SHARE if divided else PartitionSpec()
    multiply = jax.shard_map(on_device, mesh=cpu_devices(), in_specs=places, out_specs=PartitionSpec(), check_vma=False)
    return multiply(layer.weight, layer.bias, x)


def use_cached(call: Callable[[Layer, Array, Cached], Array], layer: Layer, x: Array, cached: Cached) -> Array:
    """call(layer, x, cached), or its cached result: then only the gradient is computed."""
    return call(layer, x, cached) if cached[-1] is None else _use_cached(call, layer, x, cached)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _use_cached(call: Callable[[Layer, Array, Cached], Array], layer: Layer, x: Array, cached: Cached) -> Array:
    return cached[-1]


@_use_cached.defjvp
def _tangent(call: Callable[[Layer, Array, Cached], Array], primals: PyTree, tangents: PyTree) -> tuple[Array, Array]:
    (layer, x, cached), (layer_tangent, x_tangent, _) = primals, tangents
    _, tangent = jax.jvp(lambda layer, x: call(layer, x, cached), (layer, x), (layer_tangent, x_tangent))
    return cached[-1], tangent


def in_parts(function: Callable[[PyTree], PyTree], rows: PyTree) -> PyTree:
    """function(rows) of arrays [N, ...]; on a CPU a few rows at a time."""
    count = len(jax.tree.leaves(rows)[0])
    whole = count // IMAGES_AT_ONCE * IMAGES_AT_ONCE
    if count <= IMAGES_AT_ONCE or not on_cpu():
        return function(rows)
    parts = jax.tree.map(lambda x: x[:whole].reshape(-1, IMAGES_AT_ONCE, *x.shape[1:]), rows)
    results = jax.tree.map(lambda x: x.reshape(whole, *x.shape[2:]), jax.lax.map(function, parts))
    if whole == count:
        return results
    rest = function(jax.tree.map(lambda x: x[whole:], rows))
    return jax.tree.map(lambda *both: jnp.concatenate(both), results, rest)
