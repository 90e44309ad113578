"""The loss of A2C and A3C."""

import jax

from birl.maths import losses
from birl.maths.losses import explained_variance
from birl.maths.returns import gae
from birl.nets.models import ActorCriticLike, evaluate_rollout, without_last
from birl.types import Array, Metrics, PyTree, Rollout


def actor_critic_loss(
    network: ActorCriticLike,
    moments: PyTree,
    rollout: Rollout,
    entropy_weight: Array,
    value_weight: Array,
    discount: Array,
    gae_lambda: Array,
) -> tuple[Array, Metrics]:
    """-E[log π(a|s) Â] + V's squared error - the entropy (Mnih et al. 2016, section 4).

    Means are over the valid steps.
    """
    evaluation = evaluate_rollout((network, moments), rollout)
    distribution = without_last(evaluation.distributions)
    values = evaluation.values[:-1]
    constant = jax.lax.stop_gradient(evaluation.values)
    flags = rollout.terminated, rollout.truncated, rollout.valid
    # With λ = 1 they are R - V, where R ← r + γR starts from V(s) after the last step, or 0 if
    # terminal (Mnih et al. 2016, algorithm S3).
    advantages = gae(rollout.rewards, constant[:-1], constant[1:], *flags, discount, gae_lambda)
    value_targets = advantages + constant[:-1]

    policy_loss = losses.policy_gradient(distribution.log_prob(rollout.actions), advantages, rollout.valid)
    value_loss = losses.value_loss(values, value_targets, rollout.valid)
    entropy = losses.masked_mean(distribution.entropy(), rollout.valid)
    return policy_loss + value_weight * value_loss - entropy_weight * entropy, {
        "loss/policy": policy_loss,
        "loss/value": value_loss,
        "policy/entropy": entropy,
        "value/explained_variance": explained_variance(values, value_targets, rollout.valid),
    }
