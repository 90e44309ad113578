"""Generalised state-dependent exploration, gSDE (Raffin et al. 2021, arXiv 2005.05719).

The noise of an action is a function of the state: a matrix θ, drawn from N(0, σ²), times features
z(s). While θ stays the same, the same state gets the same noise, so that actions are smooth.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from birl.maths.distributions import DiagonalGaussian, Key

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
