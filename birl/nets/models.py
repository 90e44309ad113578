"""Actor-critic networks: a trunk (encoder and core) with heads for policy and values."""

from collections.abc import Callable
from typing import Protocol

import equinox as eqx
import gymnasium as gym
import jax
import numpy as np
from jaxtyping import Array, Bool, Float

from birl.maths.distributions import Distribution
from birl.nets.encoders import Encoder, make_encoder
from birl.nets.gsde import make_gaussian_head
from birl.nets.heads import ActionValueHead, PolicyHeadLike, make_action_value_head
from birl.nets.layers import Linear, make_linear
from birl.nets.recurrent import Core, make_core
from birl.parts import ActionConfig, NetworkConfig
from birl.types import PyTree


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
