"""Actor-critic networks: a trunk (encoder and core) with heads for policy and values.

`act` gives the actions for one step, `evaluate_rollout` all outputs for a whole rollout.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import equinox as eqx
import gymnasium as gym
import jax
import numpy as np
from jaxtyping import Array, Bool, Float

from birl import speed
from birl.maths.distributions import Categorical, Distribution
from birl.nets.encoders import Encoder, make_encoder
from birl.nets.heads import ActionValueHead, PolicyHeadLike, make_action_value_head, make_gaussian_head
from birl.nets.layers import Linear, make_linear
from birl.nets.normalize import normalize_observations
from birl.nets.recurrent import Core, make_core, rollout_resets
from birl.parts import ActionConfig, NetworkConfig
from birl.types import Action, PyTree, Rollout


class HasMemory(Protocol):
    """A network that may be recurrent."""

    def initial_memory(self, num_envs: int) -> PyTree:
        """The memory at an episode's start: arrays [num_envs, ...], or () if there is no memory."""


class ActorCriticLike(Protocol):
    """The interface of an actor-critic network; you can write your own as an Equinox module.

    Where resets[t] is set, step t must start from the initial memory, not from `memory`: use
    `birl.nets.recurrent.reset_memory`.
    """

    def initial_memory(self, num_envs: int) -> PyTree: ...

    def __call__(
        self, observations: PyTree, memory: PyTree, resets: Array, action_masks: Array | None
    ) -> tuple[Distribution, Float[Array, "T B"], PyTree]: ...


MakeNetwork = Callable[[np.random.Generator, gym.Space, gym.Space], ActorCriticLike]


class Trunk(eqx.Module):
    """An encoder followed by a core."""

    encoder: Encoder
    core: Core

    def __call__(self, observations: PyTree, memory: PyTree, resets: Array) -> tuple[Array, PyTree]:
        return self.core(self.encoder(observations), memory, resets)


class ActorCritic(eqx.Module):
    """A policy and a state-value function, on one shared trunk or on one trunk each."""

    actor: Trunk
    critic: Trunk | None  # None: the value head shares the actor's trunk
    policy_head: PolicyHeadLike
    value_head: Linear

    def initial_memory(self, num_envs: int) -> PyTree:
        return initial_memory_of(self.actor, self.critic, num_envs)

    def __call__(
        self, observations: PyTree, memory: PyTree, resets: Bool[Array, "T B"], action_masks: Array | None
    ) -> tuple[Distribution, Float[Array, "T B"], PyTree]:
        features, critic_features, memory = features_of(self.actor, self.critic, observations, memory, resets)
        return self.policy_head(features, action_masks), self.value_head(critic_features)[..., 0], memory


class ActorQCritic(eqx.Module):
    """A policy and an action-value function, on one shared trunk or on one trunk each.

    A call returns the critic's features in place of values; `action_value_head` takes them.
    """

    actor: Trunk
    critic: Trunk | None  # None: the action-value head shares the actor's trunk
    policy_head: PolicyHeadLike
    action_value_head: ActionValueHead

    def initial_memory(self, num_envs: int) -> PyTree:
        return initial_memory_of(self.actor, self.critic, num_envs)

    def __call__(
        self, observations: PyTree, memory: PyTree, resets: Bool[Array, "T B"], action_masks: Array | None
    ) -> tuple[Distribution, Float[Array, "T B F"], PyTree]:
        features, critic_features, memory = features_of(self.actor, self.critic, observations, memory, resets)
        return self.policy_head(features, action_masks), critic_features, memory


def remembers(network: HasMemory) -> bool:
    """Whether a network has memory."""
    return bool(jax.tree.leaves(network.initial_memory(1)))


def initial_memory_of(actor: Trunk, critic: Trunk | None, num_envs: int) -> PyTree:
    """The memory of these trunks at an episode's start; () if they have no memory."""
    memory = actor.core.initial_memory(num_envs)
    if critic is None or not jax.tree.leaves(memory):
        return memory
    return memory, critic.core.initial_memory(num_envs)


def features_of(
    actor: Trunk, critic: Trunk | None, observations: PyTree, memory: PyTree, resets: Array
) -> tuple[Array, Array, PyTree]:
    """The actor's features, the critic's features, and the new memory."""
    if critic is None:
        features, memory = actor(observations, memory, resets)
        return features, features, memory
    actor_memory, critic_memory = memory or ((), ())
    features, actor_memory = actor(observations, actor_memory, resets)
    critic_features, critic_memory = critic(observations, critic_memory, resets)
    return features, critic_features, (actor_memory, critic_memory) if memory else ()


def make_actor_critic(
    rng: np.random.Generator,
    observation_space: gym.Space,
    action_space: gym.Space,
    network: NetworkConfig,
    actions: ActionConfig,
) -> ActorCritic:
    """An ActorCritic for these spaces.

    Weights are orthogonal, with scale √2 in hidden layers, 0.01 in the policy head and 1 in the
    value head.
    """
    actor, critic = make_trunks(rng, observation_space, network)
    policy_head = make_gaussian_head(rng, action_space, actor.core.size, actions)
    return ActorCritic(actor, critic, policy_head, make_linear(rng, (critic or actor).core.size, 1, scale=1.0))


def make_actor_q_critic(
    rng: np.random.Generator,
    observation_space: gym.Space,
    action_space: gym.Space,
    network: NetworkConfig,
    actions: ActionConfig,
) -> ActorQCritic:
    """An ActorQCritic for these spaces, initialised like `make_actor_critic`."""
    actor, critic = make_trunks(rng, observation_space, network)
    policy_head = make_gaussian_head(rng, action_space, actor.core.size, actions)
    width = (critic or actor).core.size
    head = make_action_value_head(rng, action_space, width, network.activation, actions.scale_actions)
    return ActorQCritic(actor, critic, policy_head, head)


def make_trunks(rng: np.random.Generator, space: gym.Space, network: NetworkConfig) -> tuple[Trunk, Trunk | None]:
    """The actor's trunk, and the critic's trunk; None if the critic shares the actor's."""
    actor = make_trunk(rng, space, network, network.policy_hidden_sizes)
    return actor, None if network.share_trunk else make_trunk(rng, space, network, network.value_hidden_sizes)


def make_trunk(
    rng: np.random.Generator, space: gym.Space, network: NetworkConfig, hidden_sizes: tuple[int, ...] | None = None
) -> Trunk:
    """A trunk for observations of this space; `hidden_sizes` None: those of the network."""
    sizes = network.hidden_sizes if hidden_sizes is None else hidden_sizes
    encoder, width = make_encoder(rng, space, network.encoder, sizes, network.activation, network.layer_norm)
    return Trunk(encoder, make_core(rng, network.core, width, network.core_size))


class RolloutEvaluation(NamedTuple):
    """A network's outputs for a rollout, its last observation included."""

    observations: PyTree  # [T+1, B, ...] normalised
    resets: Array  # [T+1, B] where memory is reset
    distributions: Distribution  # [T+1, B]
    values: Array  # [T+1, B]; QAC and ACER: the critic's features [T+1, B, F], or Q(s, ·) [T+1, B, A]


@jax.jit
def act(
    policy: PyTree, observations: PyTree, memory: PyTree, resets: Array, action_masks: Array | None, key: Array | None
) -> Action:
    """Actions for B observations, sampled, or the most likely ones if there is no key."""
    network, moments = policy
    distribution, _, memory = outputs_for(network, moments, observations, memory, resets, action_masks)
    actions = distribution.mode() if key is None else distribution.sample(key)
    return Action(actions, memory, distribution)


def outputs_for(
    network: Any, moments: PyTree, observations: PyTree, memory: PyTree, resets: Array, action_masks: Array | None
) -> tuple[Distribution, Array, PyTree]:
    """The network's distribution, values (or critic's features) and memory for B observations."""
    observations, resets, masks = one_step((normalize_observations(moments, observations), resets, action_masks))
    distribution, values, memory = network(observations, memory, resets, masks)
    return *jax.tree.map(lambda x: x[0], (distribution, values)), memory


def evaluate_rollout(policy: PyTree, rollout: Rollout) -> RolloutEvaluation:
    """Distributions and values at every observation of a rollout, by one pass over all of it."""
    network, moments = policy
    resets = rollout_resets(rollout)
    observations = normalize_observations(moments, rollout.observations)
    distributions, values = speed.evaluate_network(network, observations, resets, rollout)
    return RolloutEvaluation(observations, resets, distributions, values)


def without_first(tree: PyTree) -> PyTree:
    """[T+1, ...] leaves without the first row: the successor of each step."""
    return jax.tree.map(lambda x: x[1:], tree)


def without_last(tree: PyTree) -> PyTree:
    """[T+1, ...] leaves without the last row, where no action was taken."""
    return jax.tree.map(lambda x: x[:-1], tree)


def one_step(tree: PyTree) -> PyTree:
    """[B, ...] leaves as [1, B, ...]."""
    return jax.tree.map(lambda x: x[None], tree)


def shared_encoder(network: Any) -> Any:
    """The encoder of the whole observation if policy and value share it; otherwise None."""
    if not isinstance(network, ActorCritic) or network.critic is not None:
        return None
    encoder = network.actor.encoder
    return encoder.parts[0] if not encoder.keys else None


class Inside(NamedTuple):
    """What a policy computes on the way to its actions, for B observations."""

    distribution: Distribution | None  # [B] of the actions
    values: Array | None  # [B] V(s), or [B, A] Q(s, ·)


class ActorCriticPolicy(NamedTuple):
    """A network with a policy and V(s), and the moments that normalise its observations."""

    network: ActorCriticLike
    moments: PyTree

    def inside(self, observations: PyTree, memory: PyTree, resets: Array, action_masks: Array | None) -> Inside:
        """π(·|s) and V(s)."""
        return Inside(*outputs_for(self.network, self.moments, observations, memory, resets, action_masks)[:2])


class ActorQCriticPolicy(NamedTuple):
    """QAC's network: a policy and Q(s, a) or V(s)."""

    network: ActorCriticLike  # an ActorQCritic for Q(s, a)
    moments: PyTree

    def inside(self, observations: PyTree, memory: PyTree, resets: Array, action_masks: Array | None) -> Inside:
        """π(·|s), and V(s), or Q(s, ·) for Discrete actions; else Q(s, a) of the most likely a."""
        inputs = observations, memory, resets, action_masks
        distribution, values, _ = outputs_for(self.network, self.moments, *inputs)
        if not isinstance(self.network, ActorQCritic):
            return Inside(distribution, values)
        head = self.network.action_value_head
        discrete = isinstance(distribution, Categorical)
        return Inside(distribution, head.linear(values) if discrete else head(values, distribution.mode()))
