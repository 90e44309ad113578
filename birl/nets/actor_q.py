"""ACER's networks: a policy and action values, for Discrete or Box actions."""

from collections.abc import Callable
from typing import Protocol

import equinox as eqx
import gymnasium as gym
import numpy as np
from gymnasium import spaces
from jaxtyping import Array, Bool, Float

from birl.config import ConfigError
from birl.envs.spaces import shown
from birl.maths.distributions import Categorical, DiagonalGaussian, Distribution
from birl.nets.continuous import scale_of
from birl.nets.gsde import make_gaussian_head
from birl.nets.heads import ActionValueHead, PolicyHeadLike, make_action_value_head, scaled
from birl.nets.layers import Linear, make_linear, zeros
from birl.nets.models import Trunk, features_of, initial_memory_of, make_trunks
from birl.parts import ActionConfig, NetworkConfig
from birl.types import PyTree


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
