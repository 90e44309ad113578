"""How to act other than one thinks best, to find out more."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from birl.maths.distributions import MASKED_LOGIT, Categorical

Scalar = float | Float[Array, ""]


def epsilon_greedy(
    action_values: Float[Array, "*batch A"], epsilon: Scalar, action_masks: Bool[Array, "*batch A"] | None
) -> Categorical:
    """The best action with chance 1 - ε, any allowed one with ε in equal parts (Watkins 1989); its
    mode is the best if ε < 1.
    """
    allowed = jnp.ones_like(action_values, bool) if action_masks is None else action_masks
    best = jnp.argmax(jnp.where(allowed, action_values, -jnp.inf), axis=-1)
    greedy = jax.nn.one_hot(best, action_values.shape[-1])
    uniform = allowed / jnp.maximum(allowed.sum(-1, keepdims=True), 1)
    return Categorical(jnp.maximum(jnp.log((1.0 - epsilon) * greedy + epsilon * uniform), MASKED_LOGIT))


def gaussian(key: Array, shape: tuple[int, ...], scale: Scalar) -> Float[Array, "..."]:
    """σ N(0, 1): noise without a past."""
    return scale * jax.random.normal(key, shape)


def ornstein_uhlenbeck(
    key: Array, noise: Float[Array, "*batch"], rate: Scalar, scale: Scalar, time_step: Scalar = 1.0
) -> Float[Array, "*batch"]:
    """x - θ x Δt + σ √Δt N(0, 1) (Uhlenbeck & Ornstein 1930, in steps of Δt): noise that drifts
    back to 0.

    After k steps (1 - θΔt)^k is left of it; in the long run its variance is σ² / (2θ - θ²Δt).
    """
    return noise - rate * noise * time_step + scale * jnp.sqrt(time_step) * jax.random.normal(key, noise.shape)


def parameter_noise(key: Array, parameters: PyTree) -> PyTree:
    """N(0, 1) for each number of these arrays."""
    leaves, structure = jax.tree.flatten(parameters)
    keys = jax.random.split(key, max(len(leaves), 1))
    return jax.tree.unflatten(
        structure, [jax.random.normal(k, leaf.shape) for k, leaf in zip(keys, leaves, strict=False)]
    )


def action_distance(
    actions: Float[Array, "*#batch A"], perturbed_actions: Float[Array, "*#batch A"]
) -> Float[Array, ""]:
    """√E[(μ(s) - μ̃(s))²], the mean over states and numbers of an action (Plappert et al. 2018, for
    DDPG).
    """
    return jnp.sqrt(jnp.mean((actions - perturbed_actions) ** 2))


def adapt_noise_scale(scale: Scalar, distance: Scalar, target: Scalar, factor: Scalar = 1.01) -> Float[Array, ""]:
    """α σ where the actions are no further apart than δ, σ / α where they are (Plappert et al.
    2018, section 3).
    """
    return jnp.where(distance <= target, scale * factor, scale / factor)
