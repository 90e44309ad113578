"""The parts of ACER's loss: the critic's estimates for a rollout, and the projected policy step.

Estimates come from Q(s, ·) for Discrete actions, and from a stochastic dueling network for a Box
(Wang et al. 2017).
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from birl.maths import losses, truncated
from birl.maths.distributions import Categorical
from birl.maths.returns import retrace
from birl.maths.trust_region import dot, project
from birl.nets.acting import RolloutEvaluation, without_last
from birl.nets.actor_q import ActorQLike, DuelingActorLike
from birl.nets.models import Distribution
from birl.types import Array, Rollout


class CriticEstimates(NamedTuple):
    """What a critic estimates for a rollout."""

    objective: Callable[[Distribution], Array]  # policy -> [T, B], whose gradient is the policy gradient
    action_values: Array  # [T, B] Q(s, a) of the actions taken
    targets: Array  # [T, B] for them
    value_loss: Array


def critic_estimates(
    network: ActorQLike | DuelingActorLike,
    evaluation: RolloutEvaluation,
    rollout: Rollout,
    key: Array,
    discount: float,
    truncation: float,
    samples: int,
) -> CriticEstimates:
    """The critic's estimates for a rollout. With a Box, actions are sampled with this key."""
    if isinstance(evaluation.distributions, Categorical):
        return discrete_estimates(evaluation.distributions, evaluation, rollout, discount, truncation)
    inputs = evaluation, rollout, key, discount, truncation, samples
    return continuous_estimates(network, *inputs)  # type: ignore[arg-type]


def discrete_estimates(
    policy: Categorical, evaluation: RolloutEvaluation, rollout: Rollout, discount: float, truncation: float
) -> CriticEstimates:
    """Estimates from Q(s, ·) and V = Σ π Q, by Retrace (Wang et al. 2017, algorithm 2)."""
    values = jnp.sum(jax.nn.softmax(policy.logits) * evaluation.values, axis=-1)  # [T+1, B]
    all_action_values = evaluation.values[:-1]
    action_values = jnp.take_along_axis(all_action_values, rollout.actions[..., None], axis=-1)[..., 0]
    ratios = log_ratios(without_last(policy), rollout)
    flags = rollout.terminated, rollout.truncated, rollout.valid
    targets = retrace(rollout.rewards, action_values, values[1:], *flags, ratios, discount)
    objective = partial(
        truncated.softmax_objective,
        behaviour=rollout.behaviour,
        actions=rollout.actions,
        targets=targets,
        action_values=all_action_values,
        values=values[:-1],
        truncation=truncation,
    )
    value_loss = losses.value_loss(action_values, targets, rollout.valid)
    return CriticEstimates(objective, action_values, targets, value_loss)


def continuous_estimates(
    network: DuelingActorLike,
    evaluation: RolloutEvaluation,
    rollout: Rollout,
    key: Array,
    discount: float,
    truncation: float,
    samples: int,
) -> CriticEstimates:
    """Estimates from a stochastic dueling network (Wang et al. 2017, algorithm 3).

    The critic's Retrace targets have traces min(1, ρ^(1/d)), the policy's are not truncated.
    """
    features = evaluation.values
    distribution = jax.lax.stop_gradient(without_last(evaluation.distributions))
    drawn = jax.vmap(distribution.sample)(jax.random.split(key, samples + 1))
    new_actions, sampled_actions = drawn[0], drawn[1:]
    values = network.values(features)  # [T+1, B]
    advantages_of = partial(network.advantages, features[:-1])
    sampled_advantages = jax.vmap(advantages_of)(sampled_actions)
    q_of = partial(truncated.dueling_values, values[:-1], sampled_advantages=sampled_advantages)
    action_values = q_of(advantages_of(rollout.actions))
    new_action_values = q_of(advantages_of(new_actions))

    ratios = log_ratios(distribution, rollout)
    flags = rollout.terminated, rollout.truncated, rollout.valid
    constant_values, constant_q = jax.lax.stop_gradient((values, action_values))
    targets_with = partial(retrace, rollout.rewards, constant_q, constant_values[1:], *flags, discount=discount)
    targets = targets_with(ratios / rollout.actions.shape[-1])
    corrections = truncated.truncated_weights(ratios, 1.0) * (targets - constant_q)
    value_targets = constant_values[:-1] + corrections  # Wang et al. 2017, eq. 14
    objective = partial(
        truncated.gaussian_objective,
        behaviour=rollout.behaviour,
        actions=rollout.actions,
        targets=targets_with(jnp.zeros_like(ratios)),
        new_actions=new_actions,
        new_action_values=new_action_values,
        values=values[:-1],
        truncation=truncation,
    )
    action_value_loss = losses.value_loss(action_values, targets, rollout.valid)
    value_loss = losses.value_loss(values[:-1], value_targets, rollout.valid)
    return CriticEstimates(objective, action_values, targets, action_value_loss + value_loss)


class PolicyStep(NamedTuple):
    """Where the policy of each state moves, within the trust region."""

    directions: Distribution  # [T, B, ...] projected gradients of the objective; constants
    objectives: Array  # [T, B]
    kls: Array  # [T, B] KL from the average policy
    projected: Array  # [T, B] whether the trust region has changed the gradient


def policy_step(
    objective: Callable[[Distribution], Array], policy: Distribution, average: Distribution, limit: float | None
) -> PolicyStep:
    """The objective's gradient in each state, projected (Wang et al. 2017, eq. 12).

    It is with respect to the policy's statistics: logits, or mean and deviation.
    """
    statistics = jax.lax.stop_gradient(policy)
    objectives, gradients = _with_gradients(objective, statistics)
    kls, kl_gradients = _with_gradients(average.kl, statistics)
    limit = jnp.inf if limit is None else limit
    directions = jax.lax.stop_gradient(project(gradients, kl_gradients, limit))
    return PolicyStep(directions, objectives, kls, dot(kl_gradients, gradients) > limit)


def log_ratios(policy: Distribution, rollout: Rollout) -> Array:
    """[T, B] log π(a|s) - log μ(a|s) of the actions taken; μ is the policy that collected them."""
    return policy.log_prob(rollout.actions) - rollout.behaviour.log_prob(rollout.actions)


def _with_gradients(function: Callable[[Distribution], Array], statistics: Distribution) -> tuple[Array, Distribution]:
    """[T, B] a function of each state's statistics, and its gradients with respect to them."""
    values, pull_back = jax.vjp(function, statistics)
    return values, pull_back(jnp.ones_like(values))[0]
