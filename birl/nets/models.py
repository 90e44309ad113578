"""Actor-critic networks: a trunk (encoder and core) with heads for policy and values."""

from collections.abc import Callable
from typing import Protocol

import equinox as eqx
import gymnasium as gym
import jax
import numpy as np
from jaxtyping import Array, Bool, Float

from birl.maths.distributions import Distribution
from birl.nets.encoders import Encoder, EncoderName, make_encoder
from birl.nets.heads import ActionValueHead, PolicyHead, PolicyHeadLike, make_action_value_head, make_policy_head
from birl.nets.layers import Activation, Linear, make_linear
from birl.nets.recurrent import Core, CoreName, make_core
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
    policy_head: PolicyHead
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


class TrunkSettings(Protocol):
    """The settings of an algorithm's Config that define a trunk."""

    @property
    def encoder(self) -> EncoderName: ...
    @property
    def hidden_sizes(self) -> tuple[int, ...]: ...
    @property
    def activation(self) -> Activation: ...
    @property
    def core(self) -> CoreName: ...
    @property
    def core_size(self) -> int: ...


class NetworkSettings(TrunkSettings, Protocol):
    """The settings of an algorithm's Config that define an actor-critic network."""

    @property
    def policy_hidden_sizes(self) -> tuple[int, ...] | None: ...
    @property
    def value_hidden_sizes(self) -> tuple[int, ...] | None: ...
    @property
    def share_trunk(self) -> bool: ...
    @property
    def log_std(self) -> float: ...
    @property
    def state_dependent_std(self) -> bool: ...
    @property
    def scale_actions(self) -> bool: ...


def make_head_of(
    rng: np.random.Generator, action_space: gym.Space, inputs: int, settings: NetworkSettings
) -> PolicyHead:
    """A PolicyHead with the standard deviation that the settings ask for."""
    log_std, state_dependent_std = settings.log_std, settings.state_dependent_std
    return make_policy_head(rng, action_space, inputs, log_std, state_dependent_std, settings.scale_actions)


def make_actor_critic(
    rng: np.random.Generator,
    observation_space: gym.Space,
    action_space: gym.Space,
    settings: NetworkSettings,
    make_head: Callable[..., PolicyHeadLike] = make_head_of,
) -> ActorCritic:
    """An ActorCritic for these spaces.

    Weights are orthogonal, with scale √2 in hidden layers, 0.01 in the policy head and 1 in the
    value head.
    """
    actor, critic = make_trunks(rng, observation_space, settings)
    policy_head = make_head(rng, action_space, actor.core.size, settings)
    return ActorCritic(actor, critic, policy_head, make_linear(rng, (critic or actor).core.size, 1, scale=1.0))


def make_actor_q_critic(
    rng: np.random.Generator, observation_space: gym.Space, action_space: gym.Space, settings: NetworkSettings
) -> ActorQCritic:
    """An ActorQCritic for these spaces, initialised like `make_actor_critic`."""
    actor, critic = make_trunks(rng, observation_space, settings)
    policy_head = make_head_of(rng, action_space, actor.core.size, settings)
    width = (critic or actor).core.size
    head = make_action_value_head(rng, action_space, width, settings.activation, settings.scale_actions)
    return ActorQCritic(actor, critic, policy_head, head)


def make_trunks(rng: np.random.Generator, space: gym.Space, settings: NetworkSettings) -> tuple[Trunk, Trunk | None]:
    """The actor's trunk, and the critic's trunk; None if the critic shares the actor's."""
    actor = make_trunk(rng, space, settings, settings.policy_hidden_sizes)
    return actor, None if settings.share_trunk else make_trunk(rng, space, settings, settings.value_hidden_sizes)


def make_trunk(
    rng: np.random.Generator, space: gym.Space, settings: TrunkSettings, hidden_sizes: tuple[int, ...] | None = None
) -> Trunk:
    """A trunk for observations of this space; `hidden_sizes` None: those of the settings."""
    sizes = settings.hidden_sizes if hidden_sizes is None else hidden_sizes
    encoder, width = make_encoder(rng, space, settings.encoder, sizes, settings.activation)
    return Trunk(encoder, make_core(rng, settings.core, width, settings.core_size))
