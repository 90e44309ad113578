"""A Gaussian scaled to bounds: a policy on [-1, 1] for an environment with other numbers."""

from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float

from birl.maths.distributions import Key


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class ScaledGaussian:
    """middle + half · u, with u a Gaussian of independent components; half is (high - low) / 2.

    Its leaves are the statistics of u, its densities are of actions between these bounds and beyond
    them.
    """

    gaussian: Any  # of u: a DiagonalGaussian or a StateDependentGaussian
    low: tuple[float, ...] = field(metadata={"static": True})  # [A]
    high: tuple[float, ...] = field(metadata={"static": True})  # [A]

    def sample(self, key: Key) -> Float[Array, "*batch A"]:
        """Actions drawn by drawing u."""
        return self._scale(self.gaussian.sample(key))

    def mode(self) -> Float[Array, "*batch A"]:
        """The mean."""
        return self._scale(self.gaussian.mode())

    def log_prob(self, actions: Float[Array, "*batch A"]) -> Float[Array, "*batch"]:
        """log N(u) - Σ log((high - low) / 2), summed over the last axis."""
        middle, half = middle_and_half(self.low, self.high)
        return self.gaussian.log_prob((actions - middle) / half) - log_volume(self.low, self.high)

    def entropy(self) -> Float[Array, "*batch"]:
        """H(u) + Σ log((high - low) / 2)."""
        return self.gaussian.entropy() + log_volume(self.low, self.high)

    def kl(self, other: "ScaledGaussian") -> Float[Array, "*batch"]:
        """KL(self‖other), that of the Gaussians: a bijection does not change it."""
        return self.gaussian.kl(other.gaussian)

    def _scale(self, numbers: Float[Array, "*batch A"]) -> Float[Array, "*batch A"]:
        middle, half = middle_and_half(self.low, self.high)
        return middle + half * numbers


def middle_and_half(low: tuple[float, ...], high: tuple[float, ...]) -> tuple[np.ndarray, np.ndarray]:
    """The middle of these bounds, and half their distance."""
    lower, upper = np.array([low, high], np.float64)
    return ((lower + upper) / 2).astype(np.float32), ((upper - lower) / 2).astype(np.float32)


def log_volume(low: tuple[float, ...], high: tuple[float, ...]) -> float:
    """Σ log((high - low) / 2): what the scale adds to an entropy."""
    return float(np.sum(np.log(middle_and_half(low, high)[1])))
