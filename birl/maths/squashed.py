"""A Gaussian pressed into the open box (-1, 1) by tanh, with densities that stay finite where
float32 rounds tanh to ±1.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from birl.maths.distributions import DiagonalGaussian, Key

LOG_2 = 0.6931471805599453
LARGEST_ACTION = 1.0 - 1e-6  # beyond it a given action does not tell from where tanh took it: arctanh(1) is infinite


class SquashedGaussian(NamedTuple):
    """tanh(u), u normal with independent components (Haarnoja et al. 2018, appendix C); its entropy
    has no closed form.
    """

    mean: Array  # [..., A] of u
    log_std: Array  # [..., A] of u

    def sample(self, key: Key) -> Float[Array, "*batch A"]:
        """tanh(mean + std · noise)."""
        return self.action_and_log_prob(jax.random.normal(key, self.mean.shape, self.mean.dtype))[0]

    def action_and_log_prob(
        self, noise: Float[Array, "*batch A"]
    ) -> tuple[Float[Array, "*batch A"], Float[Array, "*batch"]]:
        """Actions by standard normal noise, and their log densities from the same u: exact where
        the action alone no longer tells it.
        """
        before = self.mean + jnp.exp(self.log_std) * noise
        return jnp.tanh(before), self._log_density(before)

    def mode(self) -> Float[Array, "*batch A"]:
        """tanh(mean): each component's median, and what the policy does where it does not
        explore.
        """
        return jnp.tanh(self.mean)

    def log_prob(self, actions: Float[Array, "*batch A"]) -> Float[Array, "*batch"]:
        """Log density of actions on [-1, 1], summed over the last axis; at ±1, that of the nearest
        action that can be told from it.
        """
        return self._log_density(jnp.arctanh(jnp.clip(actions, -LARGEST_ACTION, LARGEST_ACTION)))

    def _log_density(self, before: Float[Array, "*batch A"]) -> Float[Array, "*batch"]:
        """log N(u) - Σ log(1 - tanh²(u)) (Haarnoja et al. 2018, appendix C)."""
        # log(1 - tanh²(u)) itself is log 0 from u = 9 on; 2 (log 2 - u - softplus(-2u)) equals it
        # and never is.
        slopes = 2.0 * (LOG_2 - before - jax.nn.softplus(-2.0 * before))
        return DiagonalGaussian(self.mean, self.log_std).log_prob(before) - jnp.sum(slopes, axis=-1)
