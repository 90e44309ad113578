"""Losses to minimise, and diagnostics: scalars, averaged over the valid rows.

No gradient flows through advantages and targets. All arguments of a loss must have the same shape:
(B, 1) minus (B,) would silently broadcast to (B, B) and learn something else (CleanRL #383).
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Shaped

Scalar = float | Float[Array, ""]
Mask = Bool[Array, "*batch"] | Float[Array, "*batch"]

# With advantages of order 1, a smaller KL weight has no effect and a larger one stops learning.
# From either end, 14 updates lead back to 1; a weight that was halved down to 0 would stay there.
KL_WEIGHT_RANGE = (1e-4, 1e4)


def masked_mean(x: Float[Array, "*batch"], valid: Mask) -> Float[Array, ""]:
    """Mean of x weighted by valid; 0 if nothing is valid."""
    _require_one_shape(x, valid)
    weights = valid.astype(x.dtype)
    total = jnp.sum(weights)
    return jnp.sum(jnp.where(weights > 0, x, 0.0) * weights) / jnp.where(total > 0, total, 1.0)


def normalize(advantages: Float[Array, "*batch"], valid: Mask) -> Float[Array, "*batch"]:
    """Normalised advantages, (Â - mean) / std over the valid rows, 0 elsewhere.

    A single valid advantage becomes 0 (SB3 #440).
    """
    centred = advantages - masked_mean(advantages, valid)
    deviation = jnp.sqrt(masked_mean(centred**2, valid))
    return jnp.where(valid > 0, centred / (deviation + 1e-8), 0.0)


def policy_gradient(
    log_probs: Float[Array, "*batch"], advantages: Float[Array, "*batch"], valid: Mask
) -> Float[Array, ""]:
    """-E[log π(a|s) Â], with the policy gradient (Williams 1992; Sutton & Barto 2018, eq. 13.5)."""
    _require_one_shape(log_probs, advantages, valid)
    return -masked_mean(log_probs * jax.lax.stop_gradient(advantages), valid)


def surrogate(log_ratios: Float[Array, "*batch"], advantages: Float[Array, "*batch"], valid: Mask) -> Float[Array, ""]:
    """-E[ρÂ], whose gradient at ρ = 1 is the policy gradient (Schulman et al. 2015, eq. 14)."""
    _require_one_shape(log_ratios, advantages, valid)
    return -masked_mean(_ratios(log_ratios, valid) * jax.lax.stop_gradient(advantages), valid)


def clipped_surrogate(
    log_ratios: Float[Array, "*batch"], advantages: Float[Array, "*batch"], valid: Mask, clip_range: Scalar
) -> Float[Array, ""]:
    """-E[min(ρÂ, clip(ρ, 1-ε, 1+ε)Â)] (Schulman et al. 2017, eq. 7)."""
    _require_one_shape(log_ratios, advantages, valid)
    advantages = jax.lax.stop_gradient(advantages)
    ratios = _ratios(log_ratios, valid)
    clipped_ratios = jnp.clip(ratios, 1.0 - clip_range, 1.0 + clip_range)
    return -masked_mean(jnp.minimum(ratios * advantages, clipped_ratios * advantages), valid)


def kl_penalised_surrogate(
    log_ratios: Float[Array, "*batch"],
    advantages: Float[Array, "*batch"],
    kls: Float[Array, "*batch"],  # KL(old‖new) of each state
    valid: Mask,
    kl_weight: Scalar,  # β
) -> Float[Array, ""]:
    """-E[ρÂ - β KL(old‖new)] (Schulman et al. 2017, eq. 8)."""
    _require_one_shape(log_ratios, advantages, kls, valid)
    advantages = jax.lax.stop_gradient(advantages)
    return -masked_mean(_ratios(log_ratios, valid) * advantages - kl_weight * kls, valid)


def adapt_kl_weight(kl_weight: Scalar, kl: Scalar, target_kl: Scalar) -> Float[Array, ""]:
    """The next KL weight β (Schulman et al. 2017, section 4).

    It doubles if the KL was above 1.5 · target, and halves if the KL was below target / 1.5.
    """
    factor = jnp.where(kl > 1.5 * target_kl, 2.0, jnp.where(kl < target_kl / 1.5, 0.5, 1.0))
    return jnp.clip(kl_weight * factor, *KL_WEIGHT_RANGE)


def value_loss(values: Float[Array, "*batch"], targets: Float[Array, "*batch"], valid: Mask) -> Float[Array, ""]:
    """E[(V - target)²] (Sutton & Barto 2018, eq. 9.1).

    There is no ½: a weight means the same as in SB3 and in OpenAI Baselines' A2C. Baselines' PPO2
    and CleanRL have the ½, so 0.5 there is 0.25 here.
    """
    _require_one_shape(values, targets, valid)
    return masked_mean((values - jax.lax.stop_gradient(targets)) ** 2, valid)


def huber(errors: Float[Array, "*batch"], delta: Scalar = 1.0) -> Float[Array, "*batch"]:
    """½ e² where |e| ≤ δ, else δ (|e| - ½ δ) (Huber 1964); its slope is the error clipped to ±δ.

    This is the error clipping of Mnih et al. 2015, methods.
    """
    inside = jnp.minimum(jnp.abs(errors), delta)
    return inside * (jnp.abs(errors) - 0.5 * inside)


def clipped_value_loss(
    values: Float[Array, "*batch"],
    old_values: Float[Array, "*batch"],
    targets: Float[Array, "*batch"],
    valid: Mask,
    clip_range: Scalar,
) -> Float[Array, ""]:
    """E[max((V - target)², (V_old + clip(V - V_old, -ε, ε) - target)²)].

    This is the loss of OpenAI Baselines' PPO2, without its factor ½.
    """
    _require_one_shape(values, old_values, targets, valid)
    targets, old_values = jax.lax.stop_gradient((targets, old_values))
    clipped_values = old_values + jnp.clip(values - old_values, -clip_range, clip_range)
    return masked_mean(jnp.maximum((values - targets) ** 2, (clipped_values - targets) ** 2), valid)


def approx_kl(log_ratios: Float[Array, "*batch"], valid: Mask) -> Float[Array, ""]:
    """E[(ρ - 1) - log ρ], an estimate of KL(old‖new) that is never negative (Schulman 2020, k3)."""
    return masked_mean(jnp.expm1(log_ratios) - log_ratios, valid)


def clip_fraction(log_ratios: Float[Array, "*batch"], valid: Mask, clip_range: Scalar) -> Float[Array, ""]:
    """The fraction of ratios outside [1-ε, 1+ε]."""
    return masked_mean((jnp.abs(jnp.expm1(log_ratios)) > clip_range).astype(log_ratios.dtype), valid)


def _ratios(log_ratios: Array, valid: Array) -> Array:
    """ρ = exp(log ρ), 1 on rows that are not valid: an overflow there would make gradients NaN."""
    return jnp.exp(jnp.where(valid > 0, log_ratios, 0.0))


def _require_one_shape(*arrays: Array) -> None:
    shapes = [array.shape for array in arrays]
    if len(set(shapes)) > 1:
        raise ValueError(
            f"shapes {', '.join(map(str, shapes))} differ; all arguments of a loss must have the same shape"
        )


def explained_variance(
    values: Float[Array, "*batch"], targets: Float[Array, "*batch"], valid: Shaped[Array, "*batch"]
) -> Float[Array, ""]:
    """1 - Var(targets - values) / Var(targets) over the valid rows; 0 if the targets do not vary.

    1 is perfect, 0 no better than a constant.
    """
    variance = jnp.var(targets, where=valid > 0)
    varies = variance > 1e-12 * jnp.mean(targets**2, where=valid > 0)  # less is float32 rounding
    explained = 1.0 - jnp.var(targets - values, where=valid > 0) / jnp.where(varies, variance, 1.0)
    return jnp.where(varies, explained, 0.0)
