"""Layers. NumPy draws their parameters, so that making a network compiles nothing."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from birl import speed
from birl.nets.allowance import spend

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "tanh": jnp.tanh,
    "relu": jax.nn.relu,
    "elu": jax.nn.elu,
    "silu": jax.nn.silu,
    "gelu": jax.nn.gelu,
}


@dataclass(frozen=True)
class NamedActivation:
    """An activation by its name: unlike JAX's functions it can be sent to other processes."""

    name: str

    def __call__(self, x: Array) -> Array:
        return ACTIVATIONS[self.name](x)


class Linear(eqx.Module):
    """x W + b over the last axis."""

    weight: Float[Array, "inputs outputs"]
    bias: Float[Array, " outputs"]

    def __call__(self, x: Array) -> Array:
        # One matrix: with two leading axes XLA would transpose every activation for the gradient.
        rows = x.reshape(-1, x.shape[-1])
        return (rows @ speed.for_product(self.weight) + self.bias).reshape(*x.shape[:-1], -1)


class LayerNorm(eqx.Module):
    """Normalises the last axis, then applies a learned scale and shift (Ba et al. 2016, eq. 4)."""

    scale: Float[Array, " size"]
    shift: Float[Array, " size"]

    def __call__(self, x: Array) -> Array:
        centred = x - x.mean(-1, keepdims=True)
        return centred * jax.lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + 1e-5) * self.scale + self.shift


def orthogonal(rng: np.random.Generator, inputs: int, outputs: int, scale: float) -> Array:
    """A matrix [inputs, outputs] with orthonormal rows or columns, scaled (Saxe et al. 2014)."""
    spend(inputs * outputs)
    size = max(inputs, outputs), min(inputs, outputs)
    q, r = np.linalg.qr(rng.standard_normal(size))
    q = q * np.sign(np.diag(r))  # so that the distribution is uniform
    return jax.device_put((scale * (q if inputs >= outputs else q.T)).astype(np.float32))  # compiles nothing


def full(shape: tuple[int, ...], value: float) -> Array:
    """A float32 array of one value."""
    spend(math.prod(shape))
    return jax.device_put(np.full(shape, value, np.float32))


def zeros(*shape: int) -> Array:
    """A float32 array of zeros."""
    return full(shape, 0.0)


def make_linear(rng: np.random.Generator, inputs: int, outputs: int, scale: float = np.sqrt(2)) -> Linear:
    """A Linear with orthogonal weights and zero biases."""
    return Linear(orthogonal(rng, inputs, outputs, scale), zeros(outputs))


def make_layer_norm(size: int) -> LayerNorm:
    """A LayerNorm with scale 1 and shift 0."""
    return LayerNorm(full((size,), 1.0), zeros(size))
