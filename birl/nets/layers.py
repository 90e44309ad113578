"""Layers with parameters drawn by NumPy: no function is compiled to make a network."""

from collections.abc import Callable
from functools import partial
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

Activation = Literal["tanh", "relu", "elu", "silu", "gelu"]
ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "tanh": jnp.tanh,
    "relu": jax.nn.relu,
    "elu": jax.nn.elu,
    "silu": jax.nn.silu,
    "gelu": jax.nn.gelu,
}

MOST_NARROW_OUTPUTS = 64


class Linear(eqx.Module):
    """x W + b over the last axis."""

    weight: Float[Array, "inputs outputs"]
    bias: Float[Array, " outputs"]

    def __call__(self, x: Array) -> Array:
        # As one matrix: with two leading axes XLA would transpose every activation to multiply it with its gradient.
        rows = x.reshape(-1, x.shape[-1])
        return (rows @ (by_columns(self.weight) if self._is_narrow else self.weight) + self.bias).reshape(*x.shape[:-1], -1)

    @property
    def _is_narrow(self) -> bool:
        inputs, outputs = self.weight.shape
        return 1 < outputs <= MOST_NARROW_OUTPUTS and outputs < inputs and on_cpu()


class LayerNorm(eqx.Module):
    """Zero mean, unit variance over the last axis, then a learned scale and shift (Ba et al. 2016, eq. 4)."""

    scale: Float[Array, " size"]
    shift: Float[Array, " size"]

    def __call__(self, x: Array) -> Array:
        centred = x - x.mean(-1, keepdims=True)
        return centred * jax.lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + 1e-5) * self.scale + self.shift


class Conv(eqx.Module):
    """A valid convolution of [N, height, width, channels] images, of numbers or bytes."""

    weight: Float[Array, "rows columns inputs outputs"]
    bias: Float[Array, " outputs"]
    stride: int = eqx.field(static=True)

    def __call__(self, x: Array) -> Array:
        by_matrix = on_cpu() and self.weight.shape[0] % self.stride == 0
        return (matrix_convolution if by_matrix else xla_convolution)(x, self.weight, self.stride) + self.bias


def by_columns(weight: Float[Array, "inputs outputs"]) -> Float[Array, "inputs outputs"]:
    """The same weights, the gradient of which XLA takes as [outputs, inputs] and then transposes.

    The other way it transposes all inputs: of 256 rows, for 256 inputs and 6 outputs, 98 µs against 4; for 64 and 2, 16 against 1.
    """
    return jax.lax.optimization_barrier(weight.T).T


def on_cpu() -> bool:
    """Whether XLA compiles for a CPU, where its own convolutions are slow."""
    return jax.default_backend() == "cpu"


def xla_convolution(x: Array, weight: Float[Array, "rows columns inputs outputs"], stride: int) -> Array:
    """Each place of a filter times the filter, by XLA's own operation."""
    x = x.astype(weight.dtype)
    return jax.lax.conv_general_dilated(x, weight, (stride, stride), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))


@partial(jax.checkpoint, static_argnums=2)  # a patch is many times its image, and quickly made again for the gradient
def matrix_convolution(x: Array, weight: Float[Array, "rows columns inputs outputs"], stride: int) -> Array:
    """The same, as one product of all patches with the weights as a matrix; the stride must divide the kernel."""
    kernel, _, inputs, outputs = weight.shape
    patches = patches_of(x, kernel, stride).astype(weight.dtype)  # bytes are moved as bytes
    steps = kernel // stride
    blocks = weight.reshape(steps, stride, steps, stride, inputs, outputs).transpose(5, 0, 2, 1, 3, 4)
    # Behind a barrier, or XLA undoes the transposition and takes the weights' gradient from transposed patches: up to twice the time.
    matrix = jax.lax.optimization_barrier(blocks.reshape(outputs, -1))
    products = jax.lax.dot_general(patches.reshape(-1, patches.shape[-1]), matrix, (((1,), (1,)), ((), ())))
    return products.reshape(*patches.shape[:-1], outputs)


def patches_of(x: Array, kernel: int, stride: int) -> Array:
    """[N, height, width, channels] to [N, rows, columns, kernel · kernel · channels]: what a filter sees at each of its places.

    The pixels of a patch are in blocks of stride × stride, so that few and long runs are copied.
    """
    count, height, width, channels = x.shape
    steps = kernel // stride
    rows, columns = (height - kernel) // stride + 1, (width - kernel) // stride + 1
    down, across = rows + steps - 1, columns + steps - 1
    x = x[:, : down * stride, : across * stride].reshape(count, down, stride, across, stride, channels)
    x = jax.lax.optimization_barrier(x.transpose(0, 1, 3, 2, 4, 5).reshape(count, down, across, -1))  # or each copy would transpose again
    return jnp.concatenate([x[:, i : i + rows, j : j + columns] for i in range(steps) for j in range(steps)], axis=-1)


def orthogonal(rng: np.random.Generator, inputs: int, outputs: int, scale: float) -> Array:
    """A matrix [inputs, outputs] with orthonormal rows or columns times a scale (Saxe et al. 2014)."""
    tall, wide = max(inputs, outputs), min(inputs, outputs)
    q, r = np.linalg.qr(rng.standard_normal((tall, wide)))
    q = q * np.sign(np.diag(r))  # makes the distribution uniform
    return jnp.asarray(scale * (q if inputs >= outputs else q.T), jnp.float32)


def full(shape: tuple[int, ...], value: float) -> Array:
    return jnp.asarray(np.full(shape, value, np.float32))


def zeros(*shape: int) -> Array:
    return full(shape, 0.0)


def make_linear(rng: np.random.Generator, inputs: int, outputs: int, scale: float = np.sqrt(2)) -> Linear:
    return Linear(orthogonal(rng, inputs, outputs, scale), zeros(outputs))


def make_layer_norm(size: int) -> LayerNorm:
    return LayerNorm(full((size,), 1.0), zeros(size))


def make_conv(rng: np.random.Generator, kernel: int, inputs: int, outputs: int, stride: int) -> Conv:
    weight = orthogonal(rng, kernel * kernel * inputs, outputs, np.sqrt(2)).reshape(kernel, kernel, inputs, outputs)
    return Conv(weight, zeros(outputs), stride)
