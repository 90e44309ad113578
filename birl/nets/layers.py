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
from birl.types import PyTree

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


class NoisyLinear(eqx.Module):
    """x w + b with w = μ + σ ε, and b alike (Fortunato et al. 2018, eq. 9).

    A call uses the means μ alone.
    """

    weight: Float[Array, "inputs outputs"]  # μ
    bias: Float[Array, " outputs"]
    weight_sigma: Float[Array, "inputs outputs"]  # σ
    bias_sigma: Float[Array, " outputs"]

    def __call__(self, x: Array) -> Array:
        return self.mean()(x)

    def mean(self) -> Linear:
        """The plain layer of the means."""
        return Linear(self.weight, self.bias)

    def with_noise(self, key: Array) -> Linear:
        """The layer with factorised noise f(ε_in) f(ε_out)ᵀ (Fortunato et al. 2018, eq. 10)."""
        inputs, outputs = self.weight.shape
        noise = jax.random.normal(key, (inputs + outputs,), self.weight.dtype)
        noise = jnp.sign(noise) * jnp.sqrt(jnp.abs(noise))  # f
        rows, columns = noise[:inputs], noise[inputs:]
        weight = self.weight + self.weight_sigma * jnp.outer(rows, columns)
        return Linear(weight, self.bias + self.bias_sigma * columns)


def make_noisy_linear(rng: np.random.Generator, inputs: int, outputs: int, sigma0: float = 0.5) -> NoisyLinear:
    """μ uniform within ±1/√inputs, and σ = σ₀/√inputs (Fortunato et al. 2018, section 3.2)."""
    limit = 1.0 / np.sqrt(inputs)
    weight, bias = _uniform(rng, (inputs, outputs), limit), _uniform(rng, (outputs,), limit)
    return NoisyLinear(weight, bias, full((inputs, outputs), sigma0 * limit), full((outputs,), sigma0 * limit))


def with_noise(network: PyTree, key: Array) -> PyTree:
    """The network with a Linear in place of each NoisyLinear, each with noise of its own."""
    nodes, structure = jax.tree.flatten(network, is_leaf=_is_noisy)
    keys = iter(jax.random.split(key, max(sum(map(_is_noisy, nodes)), 1)))
    return jax.tree.unflatten(structure, [node.with_noise(next(keys)) if _is_noisy(node) else node for node in nodes])


def without_noise(network: PyTree) -> PyTree:
    """The network with the Linear of its means in place of each NoisyLinear."""
    return jax.tree.map(lambda node: node.mean() if _is_noisy(node) else node, network, is_leaf=_is_noisy)


def _is_noisy(node: object) -> bool:
    return isinstance(node, NoisyLinear)


def _uniform(rng: np.random.Generator, shape: tuple[int, ...], limit: float) -> Array:
    spend(int(np.prod(shape)))
    return jax.device_put(rng.uniform(-limit, limit, shape).astype(np.float32))  # compiles nothing
