"""A Gaussian squashed into (-1, 1) by tanh, with log densities that stay finite near ±1."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from birl.maths.distributions import DiagonalGaussian, Key

LOG_2 = 0.6931471805599453
LARGEST_ACTION = 1.0 - 1e-6  # given actions are clipped to it, for arctanh(1) is infinite


class SquashedGaussian(NamedTuple):
    """tanh(u) with u a diagonal Gaussian (Haarnoja et al. 2018, appendix C).

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
        # log(1 - tanh²(u)) = 2 (log 2 - u - softplus(-2u)); the left side is log 0 from u = 9 on.
        slopes = 2.0 * (LOG_2 - before - jax.nn.softplus(-2.0 * before))
        return DiagonalGaussian(self.mean, self.log_std).log_prob(before) - jnp.sum(slopes, axis=-1)
