"""Layers with parameters drawn by NumPy: no function is compiled to make a network."""

from collections.abc import Callable
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


class Linear(eqx.Module):
    """x W + b over the last axis."""

    weight: Float[Array, "inputs outputs"]
    bias: Float[Array, " outputs"]

    def __call__(self, x: Array) -> Array:
        # As one matrix: with two leading axes XLA would transpose every activation to multiply it with its gradient.
        rows = x.reshape(-1, x.shape[-1])
        return (rows @ self.weight + self.bias).reshape(*x.shape[:-1], -1)


class LayerNorm(eqx.Module):
    """Zero mean, unit variance over the last axis, then a learned scale and shift (Ba et al. 2016, eq. 4)."""

    scale: Float[Array, " size"]
    shift: Float[Array, " size"]

    def __call__(self, x: Array) -> Array:
        centred = x - x.mean(-1, keepdims=True)
        return centred * jax.lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + 1e-5) * self.scale + self.shift


class Conv(eqx.Module):
    """A valid convolution of [N, height, width, channels] images."""

    weight: Float[Array, "rows columns inputs outputs"]
    bias: Float[Array, " outputs"]
    stride: int = eqx.field(static=True)

    def __call__(self, x: Array) -> Array:
        strides = (self.stride, self.stride)
        return jax.lax.conv_general_dilated(x, self.weight, strides, "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")) + self.bias


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
