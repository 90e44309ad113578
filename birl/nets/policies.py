"""The part of a State that acts, for each kind of network. Most of them can be looked into."""

from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
from jaxtyping import Array, ArrayLike

from birl.maths.distributions import Categorical, Distribution
from birl.nets.actor_q import ActorQLike, DuelingActorLike
from birl.nets.compatible import CompatibleActorCritic
from birl.nets.continuous import ActionBounds
from birl.nets.models import ActorCriticLike, ActorQCritic
from birl.nets.normalize import normalize_observations
from birl.nets.values import QNetworkLike, values_here
from birl.types import PyTree


class Inside(NamedTuple):
    """What a policy computes on the way to its actions, for B observations."""

    distribution: Distribution | None  # [B] of the actions
    values: Array | None  # [B] V(s), or [B, A] Q(s, ·)


@runtime_checkable
class HasInside(Protocol):
    """A policy that can be looked into."""

    def inside(self, observations: PyTree, memory: PyTree, resets: Array, action_masks: Array | None) -> Inside: ...


class ActorCriticPolicy(NamedTuple):
    """A network with a policy and V(s), and the moments that normalise its observations."""

    network: ActorCriticLike
    moments: PyTree

    def inside(self, observations: PyTree, memory: PyTree, resets: Array, action_masks: Array | None) -> Inside:
        """π(·|s) and V(s)."""
        return Inside(*_outputs(self.network, self.moments, observations, memory, resets, action_masks))


class ActorQCriticPolicy(NamedTuple):
    """QAC's network: a policy and Q(s, a) or V(s)."""

    network: ActorCriticLike  # an ActorQCritic for Q(s, a)
    moments: PyTree

    def inside(self, observations: PyTree, memory: PyTree, resets: Array, action_masks: Array | None) -> Inside:
        """π(·|s), and V(s), or Q(s, ·) for Discrete actions; else Q(s, a) of the most likely a."""
        inputs = observations, memory, resets, action_masks
        distribution, values = _outputs(self.network, self.moments, *inputs)
        if not isinstance(self.network, ActorQCritic):
            return Inside(distribution, values)
        head = self.network.action_value_head
        discrete = isinstance(distribution, Categorical)
        return Inside(distribution, head.linear(values) if discrete else head(values, distribution.mode()))


class ActorQPolicy(NamedTuple):
    """ACER's network: a policy and Q(s, ·), or for Box actions V(s) and advantages."""

    network: ActorQLike | DuelingActorLike
    moments: PyTree

    def inside(self, observations: PyTree, memory: PyTree, resets: Array, action_masks: Array | None) -> Inside:
        """π(·|s), and Q(s, ·) for Discrete or V(s) for Box actions."""
        network: Any = self.network
        distribution, values = _outputs(network, self.moments, observations, memory, resets, action_masks)
        return Inside(distribution, values if isinstance(distribution, Categorical) else network.values(values))


class QPolicy(NamedTuple):
    """A Q network, of which the actions are ε-greedy."""

    network: QNetworkLike
    moments: PyTree
    epsilon: ArrayLike

    def inside(self, observations: PyTree, memory: PyTree, resets: Array, action_masks: Array | None) -> Inside:
        """Q(s, ·), of forbidden actions too."""
        observations = normalize_observations(self.moments, observations)
        return Inside(None, values_here(self.network, observations, memory, resets)[0].mean())


class DeterministicPolicy(NamedTuple):
    """μ(s), with noise of DDPG and TD3."""

    actor: Any
    bounds: ActionBounds
    moments: PyTree
    exploration: PyTree
    in_warmup: Array


class SquashedPolicy(NamedTuple):
    """SAC's actor."""

    actor: Any
    bounds: ActionBounds
    moments: PyTree
    in_warmup: Array

    def inside(self, observations: PyTree, memory: PyTree, resets: Array, action_masks: Array | None) -> Inside:
        """π(·|s) of actions scaled to [-1, 1]."""
        return Inside(self.actor(normalize_observations(self.moments, observations)), None)


class CompatiblePolicy(NamedTuple):
    """DPG's linear actor with its compatible critic."""

    network: CompatibleActorCritic
    moments: PyTree
    noise: Array

    def inside(self, observations: PyTree, memory: PyTree, resets: Array, action_masks: Array | None) -> Inside:
        """V(s) = Q(s, μ(s))."""
        return Inside(None, self.network.values(normalize_observations(self.moments, observations)))


def _outputs(
    network: Any, moments: PyTree, observations: PyTree, memory: PyTree, resets: Array, masks: Array | None
) -> tuple[Distribution, Array]:
    """The network's distribution and values, or the features for values, for B observations."""
    observations = _one_step(normalize_observations(moments, observations))
    distribution, values, _ = network(observations, memory, resets[None], _one_step(masks))
    return jax.tree.map(lambda x: x[0], (distribution, values))


def _one_step(tree: PyTree) -> PyTree:
    return jax.tree.map(lambda x: x[None], tree)  # [B, ...] leaves as [1, B, ...]
