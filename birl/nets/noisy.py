"""Noisy layers: exploration by noise on weights, whose scale is learned (Fortunato et al. 2018).

Before a network acts or learns, `with_noise` draws the noise of all its noisy layers. With noise or
without it, what results is a network of plain layers.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from birl.nets.allowance import spend
from birl.nets.layers import Linear, full
from birl.types import PyTree


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
