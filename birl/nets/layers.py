"""Layers with parameters drawn by NumPy: no function is compiled to make a network."""

from collections.abc import Callable
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from birl.accel.devices import on_cpu

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
        # As one matrix: with two leading axes XLA would transpose every activation to multiply it
        # with its gradient.
        rows = x.reshape(-1, x.shape[-1])
        return (rows @ (by_columns(self.weight) if self._is_narrow else self.weight) + self.bias).reshape(
            *x.shape[:-1], -1
        )

    @property
    def _is_narrow(self) -> bool:
        inputs, outputs = self.weight.shape
        return 1 < outputs <= MOST_NARROW_OUTPUTS and outputs < inputs and on_cpu()


class LayerNorm(eqx.Module):
    """Zero mean, unit variance over the last axis, then a learned scale and shift (Ba et al. 2016,
    eq. 4).
    """

    scale: Float[Array, " size"]
    shift: Float[Array, " size"]

    def __call__(self, x: Array) -> Array:
        centred = x - x.mean(-1, keepdims=True)
        return centred * jax.lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + 1e-5) * self.scale + self.shift


def by_columns(weight: Float[Array, "inputs outputs"]) -> Float[Array, "inputs outputs"]:
    """The same weights, the gradient of which XLA takes as [outputs, inputs] and then transposes.

    The other way it transposes all inputs: of 256 rows, for 256 inputs and 6 outputs, 98 µs against
    4; for 64 and 2, 16 against 1.
    """
    return jax.lax.optimization_barrier(weight.T).T


def orthogonal(rng: np.random.Generator, inputs: int, outputs: int, scale: float) -> Array:
    """A matrix [inputs, outputs] with orthonormal rows or columns times a scale (Saxe et al.
    2014).
    """
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
