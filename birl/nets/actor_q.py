"""Policies with the action values that ACER learns beside them: of every action of a Discrete
space, or of any action of a Box.
"""

from collections.abc import Callable
from typing import Protocol

import equinox as eqx
import gymnasium as gym
import numpy as np
from gymnasium import spaces
from jaxtyping import Array, Bool, Float

from birl.config import ConfigError
from birl.envs.spaces import shown
from birl.maths.distributions import Categorical, DiagonalGaussian
from birl.nets.layers import Linear, make_linear, zeros
from birl.nets.models import (
    ActionValueHead,
    Distribution,
    NetworkSettings,
    PolicyHead,
    Trunk,
    features_of,
    initial_memory_of,
    make_action_value_head,
    make_policy_head,
    make_trunks,
)
from birl.types import PyTree


class ActorQLike(Protocol):
    """What ACER needs of a network for Discrete actions, a Categorical first; a module of the
    user's own may stand in for ActorQ.
    """

    def initial_memory(self, num_envs: int) -> PyTree: ...

    def __call__(
        self, observations: PyTree, memory: PyTree, resets: Array, action_masks: Array | None
    ) -> tuple[Distribution, Float[Array, "T B A"], PyTree]: ...


class DuelingActorLike(Protocol):
    """The same for a Box, a DiagonalGaussian first; a call gives what `values` and `advantages` are
    told of each state.
    """

    def initial_memory(self, num_envs: int) -> PyTree: ...

    def __call__(
        self, observations: PyTree, memory: PyTree, resets: Array, action_masks: Array | None
    ) -> tuple[Distribution, Float[Array, "T B F"], PyTree]: ...

    def values(self, features: Float[Array, "T B F"]) -> Float[Array, "T B"]: ...

    def advantages(self, features: Float[Array, "T B F"], actions: Float[Array, "T B A"]) -> Float[Array, "T B"]: ...


MakeActorQ = Callable[[np.random.Generator, gym.Space, gym.Space], ActorQLike | DuelingActorLike]


class ActorQ(eqx.Module):
    """A softmax policy and Q(s, ·), on one trunk, or on one each."""

    actor: Trunk
    critic: Trunk | None  # None: the action values stand on the actor's trunk
    policy_head: PolicyHead
    action_values_head: Linear

    def initial_memory(self, num_envs: int) -> PyTree:
        return initial_memory_of(self.actor, self.critic, num_envs)

    def __call__(
        self, observations: PyTree, memory: PyTree, resets: Bool[Array, "T B"], action_masks: Array | None
    ) -> tuple[Distribution, Float[Array, "T B A"], PyTree]:
        features, critic_features, memory = features_of(self.actor, self.critic, observations, memory, resets)
        return self.policy_head(features, action_masks), self.action_values_head(critic_features), memory


class DuelingActor(eqx.Module):
    """A Gaussian policy, V(s) and A(s, a), on one trunk, or on one each. A call gives the critic's
    features in place of values.
    """

    actor: Trunk
    critic: Trunk | None  # None: values and advantages stand on the actor's trunk
    policy_head: PolicyHead
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
    rng: np.random.Generator, observation_space: gym.Space, action_space: gym.Space, settings: NetworkSettings
) -> ActorQ | DuelingActor:
    """The network that fits the action space; orthogonal weights: √2 hidden, 0.01 policy head, 1
    other heads.
    """
    if not isinstance(action_space, spaces.Discrete | spaces.Box):
        remedy = "use Discrete or Box, or ppo, a2c, trpo, reinforce or qac, which take all kinds"
        raise ConfigError(
            f"action space {shown(action_space)} has neither a value for each action nor a Gaussian policy; {remedy}"
        )
    actor, critic = make_trunks(rng, observation_space, settings)
    width = actor.core.size
    policy_head = make_policy_head(rng, action_space, width, settings.log_std)
    if isinstance(action_space, spaces.Discrete):
        return ActorQ(actor, critic, policy_head, make_linear(rng, width, int(action_space.n), scale=1.0))
    value_head = make_linear(rng, width, 1, scale=1.0)
    return DuelingActor(
        actor, critic, policy_head, value_head, make_action_value_head(rng, action_space, width, settings.activation)
    )


def empty_behaviour(action_space: gym.Space, num_envs: int) -> Categorical | DiagonalGaussian:
    """The policy's answer to `num_envs` observations, all zero: the shapes in which it is kept."""
    if isinstance(action_space, spaces.Discrete):
        return Categorical(zeros(num_envs, int(action_space.n)))
    numbers = zeros(num_envs, int(np.prod(action_space.shape or ())))
    return DiagonalGaussian(numbers, numbers)
