"""Exploration: ε-greedy actions, action noise and parameter noise."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from birl.maths.distributions import MASKED_LOGIT, Categorical

Scalar = float | Float[Array, ""]
AnyArray = Array | np.ndarray


def epsilon_greedy(
    action_values: Float[Array, "*batch A"], epsilon: Scalar, action_masks: Bool[Array, "*batch A"] | None
) -> Categorical:
    """The greedy action with probability 1 - ε, else a uniform allowed one (Watkins 1989).

    For ε < 1, the mode is the greedy action.
    """
    allowed = jnp.ones_like(action_values, bool) if action_masks is None else action_masks
    greedy = jax.nn.one_hot(greedy_actions(action_values, allowed), action_values.shape[-1])
    uniform = allowed / jnp.maximum(allowed.sum(-1, keepdims=True), 1)
    return Categorical(jnp.maximum(jnp.log((1.0 - epsilon) * greedy + epsilon * uniform), MASKED_LOGIT))


def greedy_actions(
    action_values: Float[AnyArray, "*batch A"], action_masks: Bool[AnyArray, "*batch A"] | None
) -> Int[Array, "*batch"]:
    """argmax Q(s, ·) over the allowed actions, the first of equals."""
    allowed = action_values if action_masks is None else jnp.where(action_masks, action_values, -jnp.inf)
    return jnp.argmax(allowed, axis=-1)


def gaussian(key: Array, shape: tuple[int, ...], scale: Scalar) -> Float[Array, "..."]:
    """σ N(0, 1): noise that is independent at each step."""
    return scale * jax.random.normal(key, shape)


def ornstein_uhlenbeck(
    key: Array, noise: Float[Array, "*batch"], rate: Scalar, scale: Scalar, time_step: Scalar = 1.0
) -> Float[Array, "*batch"]:
    """The next noise, x - θ x Δt + σ √Δt N(0, 1) (Uhlenbeck & Ornstein 1930, in steps of Δt).

    The noise decays towards 0, by the factor (1 - θΔt)^k in k steps. Its variance converges to
    σ² / (2θ - θ²Δt).
    """
    return noise - rate * noise * time_step + scale * jnp.sqrt(time_step) * jax.random.normal(key, noise.shape)


def parameter_noise(key: Array, parameters: PyTree) -> PyTree:
    """N(0, 1) noise for each parameter, in the same tree."""
    leaves, structure = jax.tree.flatten(parameters)
    keys = jax.random.split(key, max(len(leaves), 1))
    return jax.tree.unflatten(
        structure, [jax.random.normal(k, leaf.shape) for k, leaf in zip(keys, leaves, strict=False)]
    )


def action_distance(
    actions: Float[Array, "*#batch A"], perturbed_actions: Float[Array, "*#batch A"]
) -> Float[Array, ""]:
    """√E[(μ(s) - μ̃(s))²] over states and action dimensions (Plappert et al. 2018, for DDPG)."""
    return jnp.sqrt(jnp.mean((actions - perturbed_actions) ** 2))


def adapt_noise_scale(scale: Scalar, distance: Scalar, target: Scalar, factor: Scalar = 1.01) -> Float[Array, ""]:
    """α σ if the action distance is at most δ, else σ / α (Plappert et al. 2018, section 3)."""
    return jnp.where(distance <= target, scale * factor, scale / factor)
