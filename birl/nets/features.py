"""Fixed features of observations, for actors and critics that are linear in them. No images."""

from collections.abc import Callable
from typing import Literal

import equinox as eqx
import gymnasium as gym
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from birl.nets.allowance import spend
from birl.nets.encoders import Encoder, make_encoder
from birl.types import PyTree

FeaturesName = Literal["linear", "quadratic", "fourier"]
Features = Callable[[PyTree], Float[Array, "*batch F"]]


class LinearFeatures(eqx.Module):
    """The observation as a vector x, and a constant 1."""

    encoder: Encoder

    def __call__(self, observations: PyTree) -> Float[Array, "*batch F"]:
        x = self.encoder(observations)
        return jnp.concatenate([x, jnp.ones_like(x[..., :1])], axis=-1)


class QuadraticFeatures(eqx.Module):
    """Every product x_i x_j once, every x_i, and a constant 1.

    With linear dynamics and quadratic costs, the value of a linear policy is linear in them.
    """

    encoder: Encoder

    def __call__(self, observations: PyTree) -> Float[Array, "*batch F"]:
        x = self.encoder(observations)
        first, second = np.triu_indices(x.shape[-1])
        return jnp.concatenate([x[..., first] * x[..., second], x, jnp.ones_like(x[..., :1])], axis=-1)


class FourierFeatures(eqx.Module):
    """√(2/F) cos(Ωx + b): random Fourier features (Rahimi and Recht 2007, algorithm 1).

    Their dot products approximate exp(-|x - y|² / 2ℓ²), so their total length is about 1.
    """

    encoder: Encoder
    frequencies: Float[Array, "N F"]  # Ω, normal with deviation 1/ℓ
    phases: Float[Array, " F"]  # b, uniform from 0 to 2π

    def __call__(self, observations: PyTree) -> Float[Array, "*batch F"]:
        x = self.encoder(observations)
        return np.float32(np.sqrt(2 / self.phases.size)) * jnp.cos(x @ self.frequencies + self.phases)


def make_features(
    rng: np.random.Generator, space: gym.Space, name: FeaturesName, count: int, scale: float
) -> tuple[Features, int]:
    """The features `name` for observations of this space, and their number.

    `count` and `scale` ℓ are for Fourier features only.
    """
    encoder, width = make_encoder(rng, space, "mlp", (), "tanh")  # no layers: the observation as a vector
    match name:
        case "linear":
            return LinearFeatures(encoder), width + 1
        case "quadratic":
            return QuadraticFeatures(encoder), width * (width + 1) // 2 + width + 1
        case "fourier":
            spend(width * count)
            frequencies = rng.standard_normal((width, count), np.float32) / np.float32(scale)
            phases = rng.uniform(0, 2 * np.pi, count).astype(np.float32)
            return FourierFeatures(encoder, jnp.asarray(frequencies), jnp.asarray(phases)), count
