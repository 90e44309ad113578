"""ACER's networks: a policy and action values, for Discrete or Box actions."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Protocol

import equinox as eqx
import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jaxtyping import Array, Bool, Float

from birl.config import ConfigError
from birl.envs.spaces import shown
from birl.maths import losses, truncated
from birl.maths.distributions import Categorical, DiagonalGaussian, Distribution
from birl.maths.returns import retrace
from birl.maths.trust_region import dot, project
from birl.nets.heads import (
    ActionValueHead,
    PolicyHeadLike,
    make_action_value_head,
    make_gaussian_head,
    scale_of,
    scaled,
)
from birl.nets.layers import Linear, make_linear, zeros
from birl.nets.models import (
    Inside,
    RolloutEvaluation,
    Trunk,
    features_of,
    initial_memory_of,
    make_trunks,
    outputs_for,
    without_last,
)
from birl.parts import ActionConfig, NetworkConfig
from birl.types import PyTree, Rollout


class ActorQLike(Protocol):
    """The interface of ACER's network for Discrete actions; you can write your own.

    A call returns a Categorical, Q(s, ·) and the new memory.
    """

    def initial_memory(self, num_envs: int) -> PyTree: ...

    def __call__(
        self, observations: PyTree, memory: PyTree, resets: Array, action_masks: Array | None
    ) -> tuple[Distribution, Float[Array, "T B A"], PyTree]: ...


class DuelingActorLike(Protocol):
    """The interface of ACER's network for Box actions; you can write your own.

    A call returns a Gaussian, features and the new memory. `values` and `advantages` take
    these features.
    """

    def initial_memory(self, num_envs: int) -> PyTree: ...

    def __call__(
        self, observations: PyTree, memory: PyTree, resets: Array, action_masks: Array | None
    ) -> tuple[Distribution, Float[Array, "T B F"], PyTree]: ...

    def values(self, features: Float[Array, "T B F"]) -> Float[Array, "T B"]: ...

    def advantages(self, features: Float[Array, "T B F"], actions: Float[Array, "T B A"]) -> Float[Array, "T B"]: ...


MakeActorQ = Callable[[np.random.Generator, gym.Space, gym.Space], ActorQLike | DuelingActorLike]


class ActorQ(eqx.Module):
    """A softmax policy and Q(s, ·), on one shared trunk or on one trunk each."""

    actor: Trunk
    critic: Trunk | None  # None: the action values share the actor's trunk
    policy_head: PolicyHeadLike
    action_values_head: Linear

    def initial_memory(self, num_envs: int) -> PyTree:
        return initial_memory_of(self.actor, self.critic, num_envs)

    def __call__(
        self, observations: PyTree, memory: PyTree, resets: Bool[Array, "T B"], action_masks: Array | None
    ) -> tuple[Distribution, Float[Array, "T B A"], PyTree]:
        features, critic_features, memory = features_of(self.actor, self.critic, observations, memory, resets)
        return self.policy_head(features, action_masks), self.action_values_head(critic_features), memory


class DuelingActor(eqx.Module):
    """A Gaussian policy, V(s) and A(s, a), on one shared trunk or on one trunk each.

    A call returns the critic's features in place of values.
    """

    actor: Trunk
    critic: Trunk | None  # None: values and advantages share the actor's trunk
    policy_head: PolicyHeadLike
    value_head: Linear
    advantage_head: ActionValueHead

    def initial_memory(self, num_envs: int) -> PyTree:
        return initial_memory_of(self.actor, self.critic, num_envs)

    def __call__(
        self, observations: PyTree, memory: PyTree, resets: Bool[Array, "T B"], action_masks: Array | None
    ) -> tuple[Distribution, Float[Array, "T B F"], PyTree]:
        features, critic_features, memory = features_of(self.actor, self.critic, observations, memory, resets)
        return self.policy_head(features, action_masks), critic_features, memory

    def values(self, features: Float[Array, "T B F"]) -> Float[Array, "T B"]:
        return self.value_head(features)[..., 0]

    def advantages(self, features: Float[Array, "T B F"], actions: Float[Array, "T B A"]) -> Float[Array, "T B"]:
        return self.advantage_head(features, actions)


def make_actor_q(
    rng: np.random.Generator,
    observation_space: gym.Space,
    action_space: gym.Space,
    network: NetworkConfig,
    actions: ActionConfig,
) -> ActorQ | DuelingActor:
    """An ActorQ for Discrete actions, or a DuelingActor for Box actions.

    Weights are orthogonal, with scale √2 in hidden layers, 0.01 in the policy head and 1 in the
    other heads.
    """
    if not isinstance(action_space, spaces.Discrete | spaces.Box):
        raise ConfigError(f"action space {shown(action_space)} is neither Discrete nor a Box; use one of these")
    actor, critic = make_trunks(rng, observation_space, network)
    policy_head = make_gaussian_head(rng, action_space, actor.core.size, actions)
    width = (critic or actor).core.size
    if isinstance(action_space, spaces.Discrete):
        return ActorQ(actor, critic, policy_head, make_linear(rng, width, int(action_space.n), scale=1.0))
    value_head = make_linear(rng, width, 1, scale=1.0)
    advantage_head = make_action_value_head(rng, action_space, width, network.activation, actions.scale_actions)
    return DuelingActor(actor, critic, policy_head, value_head, advantage_head)


def empty_behaviour(action_space: gym.Space, num_envs: int, scale_actions: bool = False) -> Distribution:
    """A distribution of zeros for `num_envs` observations, with the shapes that a replay stores."""
    if isinstance(action_space, spaces.Discrete):
        return Categorical(zeros(num_envs, int(action_space.n)))
    numbers = zeros(num_envs, int(np.prod(action_space.shape or ())))
    return scaled(DiagonalGaussian(numbers, numbers), scale_of(action_space) if scale_actions else None)


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


class ActorQPolicy(NamedTuple):
    """ACER's network: a policy and Q(s, ·), or for Box actions V(s) and advantages."""

    network: ActorQLike | DuelingActorLike
    moments: PyTree

    def inside(self, observations: PyTree, memory: PyTree, resets: Array, action_masks: Array | None) -> Inside:
        """π(·|s), and Q(s, ·) for Discrete or V(s) for Box actions."""
        network: Any = self.network
        inputs = observations, memory, resets, action_masks
        distribution, values, _ = outputs_for(network, self.moments, *inputs)
        return Inside(distribution, values if isinstance(distribution, Categorical) else network.values(values))
