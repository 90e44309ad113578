"""Gaussians of bounded actions: scaled to bounds, squashed by tanh, or with noise of gSDE."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from birl.maths.distributions import DiagonalGaussian, Key


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


LOG_2 = 0.6931471805599453
LARGEST_ACTION = 1.0 - 1e-6  # given actions are clipped to it, for arctanh(1) is infinite
NODES = 16  # of the quadrature: with σ up to 1, the error of an entropy is below 1e-4


class SquashedGaussian(NamedTuple):
    """tanh(u) with u a diagonal Gaussian (Haarnoja et al. 2018).

    Its entropy has no closed form.
    """

    mean: Array  # [..., A] of u
    log_std: Array  # [..., A] of u

    def sample(self, key: Key) -> Float[Array, "*batch A"]:
        """tanh(mean + std · noise)."""
        return self.action_and_log_prob(jax.random.normal(key, self.mean.shape, self.mean.dtype))[0]

    def action_and_log_prob(
        self, noise: Float[Array, "*batch A"]
    ) -> tuple[Float[Array, "*batch A"], Float[Array, "*batch"]]:
        """Actions made from standard normal noise, and their log densities.

        The densities come from u itself, so they are exact even where tanh(u) rounds to ±1.
        """
        before = self.mean + jnp.exp(self.log_std) * noise
        return jnp.tanh(before), self._log_density(before)

    def mode(self) -> Float[Array, "*batch A"]:
        """tanh(mean), the median of each component: the action without exploration."""
        return jnp.tanh(self.mean)

    def log_prob(self, actions: Float[Array, "*batch A"]) -> Float[Array, "*batch"]:
        """Log density of actions on [-1, 1], summed over the last axis.

        Actions are clipped to ±LARGEST_ACTION first.
        """
        return self._log_density(jnp.arctanh(jnp.clip(actions, -LARGEST_ACTION, LARGEST_ACTION)))

    def _log_density(self, before: Float[Array, "*batch A"]) -> Float[Array, "*batch"]:
        """log N(u) - Σ log(1 - tanh²(u)) (Haarnoja et al. 2018, appendix C)."""
        slopes = log_slopes(before)  # first: the order decides how XLA fuses, and so the last bits of a run
        return DiagonalGaussian(self.mean, self.log_std).log_prob(before) - jnp.sum(slopes, axis=-1)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class BoundedGaussian:
    """tanh(u) scaled to bounds, with u a Gaussian of independent components.

    Its densities are of actions in these bounds.
    """

    gaussian: Any  # of u: a DiagonalGaussian or a StateDependentGaussian
    low: tuple[float, ...] = field(metadata={"static": True})  # [A]
    high: tuple[float, ...] = field(metadata={"static": True})  # [A]

    def sample(self, key: Key) -> Float[Array, "*batch A"]:
        """Actions drawn by drawing u."""
        return self._squash(self.gaussian.sample(key))

    def action_and_log_prob(
        self, noise: Float[Array, "*batch A"]
    ) -> tuple[Float[Array, "*batch A"], Float[Array, "*batch"]]:
        """Actions made from standard normal noise, and their log densities, as SquashedGaussian's.

        The noise of each state is its own, whatever u is sampled from when acting.
        """
        before = self.gaussian.mean + jnp.exp(self.gaussian.log_std) * noise
        return self._squash(before), self._log_density(before)

    def mode(self) -> Float[Array, "*batch A"]:
        """The median of each component: the action without exploration."""
        return self._squash(self.gaussian.mode())

    def log_prob(self, actions: Float[Array, "*batch A"]) -> Float[Array, "*batch"]:
        """Log density, summed over the last axis.

        Actions are clipped first, to ±LARGEST_ACTION on the scale from -1 to 1.
        """
        middle, half = middle_and_half(self.low, self.high)
        units = jnp.clip((actions - middle) / half, -LARGEST_ACTION, LARGEST_ACTION)
        return self._log_density(jnp.arctanh(units))

    def entropy(self) -> Float[Array, "*batch"]:
        """H(u) + Σ E[log(1 - tanh²(u))] + Σ log((high - low) / 2).

        The expectation of each component is one integral over a normal density: by Gauss-Hermite
        quadrature (Abramowitz & Stegun 1964, 25.4.46), not by sampling.
        """
        nodes, weights = np.polynomial.hermite_e.hermegauss(NODES)
        nodes, weights = nodes.astype(np.float32), (weights / weights.sum()).astype(np.float32)
        before = self.gaussian.mean[..., None] + jnp.exp(self.gaussian.log_std)[..., None] * nodes
        expected = jnp.sum(weights * log_slopes(before), axis=(-1, -2))
        return self.gaussian.entropy() + expected + log_volume(self.low, self.high)

    def kl(self, other: "BoundedGaussian") -> Float[Array, "*batch"]:
        """KL(self‖other), that of the Gaussians: a bijection does not change it."""
        return self.gaussian.kl(other.gaussian)

    def _log_density(self, before: Float[Array, "*batch A"]) -> Float[Array, "*batch"]:
        """log N(u) - Σ log(1 - tanh²(u)) - Σ log((high - low) / 2): appendix C, within bounds."""
        return self.gaussian.log_prob(before) - jnp.sum(log_slopes(before), axis=-1) - log_volume(self.low, self.high)

    def _squash(self, before: Float[Array, "*batch A"]) -> Float[Array, "*batch A"]:
        """(high + low) / 2 + (high - low) / 2 · tanh(u)."""
        middle, half = middle_and_half(self.low, self.high)
        return middle + half * jnp.tanh(before)


def log_slopes(before: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """log(1 - tanh²(u)), the log of tanh's slope.

    It is computed as 2 (log 2 - u - softplus(-2u)): as written it would be log 0 from u = 9 on.
    """
    return 2.0 * (LOG_2 - before - jax.nn.softplus(-2.0 * before))


SMALLEST_VARIANCE = 1e-6  # added: all features may be 0


class StateDependentGaussian(NamedTuple):
    """μ(s) + Σ_j z_j(s) θ_ji with θ from N(0, σ²): in one state, a diagonal Gaussian.

    `stds` has the batch axes of the others, so that all leaves can be cut alike. Only `sample` uses
    it and the features; densities need `mean` and `log_std` alone.
    """

    mean: Array  # [..., A] μ(s)
    log_std: Array  # [..., A] of the actions, over all matrices
    features: Array  # [..., F] z(s)
    stds: Array  # [..., F, A] σ, of the matrix

    def sample(self, key: Key) -> Float[Array, "*batch A"]:
        """μ(s) + z(s)ᵀθ, with a matrix of its own for each row.

        The same key gives the same matrices.
        """
        matrices = self.stds * jax.random.normal(key, self.stds.shape, self.stds.dtype)
        return self.mean + exploration_noise(self.features, matrices)

    def mode(self) -> Float[Array, "*batch A"]:
        """The mean."""
        return self.mean

    def log_prob(self, actions: Float[Array, "*batch A"]) -> Float[Array, "*batch"]:
        """Log density, summed over the last axis."""
        return self.marginal().log_prob(actions)

    def entropy(self) -> Float[Array, "*batch"]:
        """Σ (log σ̂ + ½ log 2πe)."""
        return self.marginal().entropy()

    def kl(self, other: "StateDependentGaussian") -> Float[Array, "*batch"]:
        """KL(self‖other) of the two Gaussians."""
        return self.marginal().kl(other.marginal())

    def marginal(self) -> DiagonalGaussian:
        """The distribution of an action in its state, over all matrices."""
        return DiagonalGaussian(self.mean, self.log_std)


def state_dependent_gaussian(
    mean: Float[Array, "*batch A"], features: Float[Array, "*batch F"], log_std: Float[Array, "F A"]
) -> StateDependentGaussian:
    """The Gaussian with σ̂_i² = Σ_j (z_j(s) σ_ji)² (gSDE's variance), where log σ is `log_std`."""
    stds = jnp.exp(log_std)
    variances = jnp.square(features) @ jnp.square(stds) + SMALLEST_VARIANCE
    stds = jnp.broadcast_to(stds, (*features.shape[:-1], *stds.shape))
    return StateDependentGaussian(mean, 0.5 * jnp.log(variances), features, stds)


def exploration_noise(
    features: Float[Array, "*batch F"], matrices: Float[Array, "*batch F A"]
) -> Float[Array, "*batch A"]:
    """ε(s) = z(s)ᵀθ (gSDE's noise), with a matrix for each state."""
    return (features[..., None, :] @ matrices)[..., 0, :]
