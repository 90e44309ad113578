"""How to act other than one thinks best, to find out more."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from birl.maths.distributions import MASKED_LOGIT, Categorical

Scalar = float | Float[Array, ""]


def epsilon_greedy(action_values: Float[Array, "*batch A"], epsilon: Scalar, action_masks: Bool[Array, "*batch A"] | None) -> Categorical:
    """The best action with chance 1 - ε, any allowed one with ε in equal parts (Watkins 1989); its mode is the best."""
    allowed = jnp.ones_like(action_values, bool) if action_masks is None else action_masks
    best = jnp.argmax(jnp.where(allowed, action_values, -jnp.inf), axis=-1)
    greedy = jax.nn.one_hot(best, action_values.shape[-1])
    uniform = allowed / jnp.maximum(allowed.sum(-1, keepdims=True), 1)
    return Categorical(jnp.maximum(jnp.log((1.0 - epsilon) * greedy + epsilon * uniform), MASKED_LOGIT))
