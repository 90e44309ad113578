"""ACER's policy gradients: truncated importance weights with bias correction.

Wang et al. 2017, "Sample efficient actor-critic with experience replay", eqs. 7 to 9, and the value
of an action in a stochastic dueling network (section 4.1).

With ρ(a) = π(a) / μ(a), an expectation under π is E_μ[min(c, ρ) f] + E_π[[1 - c/ρ]₊ f]: no weight
exceeds c, and the sum is unbiased. Each objective is one number per state, to be maximised. The
gradient flows through log π only; weights, values and targets are constants.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from birl.maths.distributions import Categorical, DiagonalGaussian
from birl.maths.gaussians import ScaledGaussian

Scalar = float | Float[Array, ""]


def truncated_weights(log_ratios: Float[Array, "*batch"], truncation: Scalar) -> Float[Array, "*batch"]:
    """min(c, ρ)."""
    return jnp.minimum(truncation, jnp.exp(log_ratios))


def correction_weights(log_ratios: Float[Array, "*batch"], truncation: Scalar) -> Float[Array, "*batch"]:
    """[1 - c/ρ]₊: the fraction of ρ that the truncation removes."""
    return jnp.maximum(0.0, 1.0 - jnp.exp(jnp.log(truncation) - log_ratios))


def softmax_objective(
    policy: Categorical,  # π
    behaviour: Categorical,  # μ
    actions: Int[Array, "*batch"],
    targets: Float[Array, "*batch"],  # Q^ret, Retrace's, of the actions taken
    action_values: Float[Array, "*batch A"],  # Q(s, ·)
    values: Float[Array, "*batch"],  # V(s) = Σ π Q
    truncation: Scalar,  # c
) -> Float[Array, "*batch"]:
    """min(c, ρ) log π(a) (Q^ret - V) + Σ_a' [1 - c/ρ(a')]₊ π(a') log π(a') (Q(a') - V).

    Its gradient is that of Wang et al. 2017, eq. 9.
    """
    log_probs = jax.nn.log_softmax(policy.logits)
    constant = jax.lax.stop_gradient(log_probs)
    log_ratios = constant - jax.nn.log_softmax(behaviour.logits)
    taken = jnp.take_along_axis(log_ratios, actions[..., None], axis=-1)[..., 0]
    targets, action_values, values = jax.lax.stop_gradient((targets, action_values, values))
    from_actions = truncated_weights(taken, truncation) * policy.log_prob(actions) * (targets - values)
    weights = correction_weights(log_ratios, truncation) * jnp.exp(constant)
    return from_actions + jnp.sum(weights * log_probs * (action_values - values[..., None]), axis=-1)


def gaussian_objective(
    policy: DiagonalGaussian | ScaledGaussian,  # π
    behaviour: DiagonalGaussian | ScaledGaussian,  # μ
    actions: Float[Array, "*batch A"],  # drawn from μ
    targets: Float[Array, "*batch"],  # Q^opc of `actions`
    new_actions: Float[Array, "*batch A"],  # drawn from π
    new_action_values: Float[Array, "*batch"],  # Q(s, a') of `new_actions`
    values: Float[Array, "*batch"],  # V(s)
    truncation: Scalar,  # c
) -> Float[Array, "*batch"]:
    """min(c, ρ) log π(a) (Q^opc - V) + [1 - c/ρ(a')]₊ log π(a') (Q(a') - V) with a' ~ π.

    Its gradient is that of Wang et al. 2017, algorithm 3.
    """
    new_actions, targets, new_action_values, values = jax.lax.stop_gradient(
        (new_actions, targets, new_action_values, values)
    )
    log_probs, new_log_probs = policy.log_prob(actions), policy.log_prob(new_actions)
    log_ratios, new_log_ratios = jax.lax.stop_gradient(
        (log_probs - behaviour.log_prob(actions), new_log_probs - behaviour.log_prob(new_actions))
    )
    from_actions = truncated_weights(log_ratios, truncation) * log_probs * (targets - values)
    return from_actions + correction_weights(new_log_ratios, truncation) * new_log_probs * (new_action_values - values)


def dueling_values(
    values: Float[Array, "*batch"],  # V(s)
    advantages: Float[Array, "*batch"],  # A(s, a)
    sampled_advantages: Float[Array, "N *batch"],  # A(s, u) of N actions u ~ π
) -> Float[Array, "*batch"]:
    """V(s) + A(s, a) - mean A(s, u) (Wang et al. 2017, eq. 13); its mean over a ~ π is V(s)."""
    return values + advantages - jnp.mean(sampled_advantages, axis=0)
