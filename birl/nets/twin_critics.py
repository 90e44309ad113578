"""Networks of TD3 and SAC: an actor and two critics (Fujimoto et al. 2018), and SAC's actor."""

from collections.abc import Callable
from typing import Generic, TypeVar

import equinox as eqx
import gymnasium as gym
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from birl.maths import losses
from birl.maths.squashed import SquashedGaussian
from birl.nets.continuous import (
    ActionBounds,
    ActionCritic,
    bounds_of,
    make_action_critic,
    make_actor_encoder,
)
from birl.nets.encoders import Encoder
from birl.nets.layers import Linear, make_linear
from birl.nets.normalize import Normalizer, normalize_observations, reward_scale
from birl.parts import NetworkConfig
from birl.types import Metrics, PyTree, Transitions

LOG_STD_RANGE = (-20.0, 2.0)  # from the code of Haarnoja et al. 2018

Actor = TypeVar("Actor")


class GaussianActor(eqx.Module):
    """π(·|s): a squashed Gaussian whose mean and standard deviation depend on the observation."""

    encoder: Encoder
    head: Linear  # A means, then A log standard deviations

    def __call__(self, observations: PyTree) -> SquashedGaussian:
        means, log_stds = jnp.split(self.head(self.encoder(observations)), 2, axis=-1)
        return SquashedGaussian(means, jnp.clip(log_stds, *LOG_STD_RANGE))


class ActorTwinCritics(eqx.Module, Generic[Actor]):
    """An actor and two critics, which share no parameters; you can use your own Equinox modules."""

    actor: Actor
    critics: tuple[ActionCritic, ActionCritic]
    bounds: ActionBounds

    def initial_memory(self, num_envs: int) -> PyTree:
        return ()


MakeActorTwinCritics = Callable[[np.random.Generator, gym.Space, gym.Space], ActorTwinCritics[Actor]]


def twin_values(
    critics: tuple[ActionCritic, ActionCritic], observations: PyTree, actions: Float[Array, "*batch A"]
) -> Float[Array, "2 *batch"]:
    """Q_1(s, a) and Q_2(s, a), stacked."""
    return jnp.stack([critic(observations, actions) for critic in critics])


def make_gaussian_actor(
    rng: np.random.Generator, space: gym.Space, actions: int, network: NetworkConfig
) -> GaussianActor:
    """An actor for observations of this space.

    Weights are orthogonal, with scale √2 in hidden layers and 0.01 in the head, so that u starts
    as a standard normal.
    """
    encoder, width = make_actor_encoder(rng, space, network)
    return GaussianActor(encoder, make_linear(rng, width, 2 * actions, scale=0.01))


def make_actor_twin_critics(
    rng: np.random.Generator,
    observation_space: gym.Space,
    action_space: gym.Space,
    make_actor: Callable[[np.random.Generator, gym.Space, int, NetworkConfig], Actor],
    network: NetworkConfig,
) -> ActorTwinCritics[Actor]:
    """An actor made by `make_actor` and two critics; ConfigError unless the Box is bounded."""
    bounds = bounds_of(action_space)
    actor = make_actor(rng, observation_space, bounds.size, network)
    first, second = (make_action_critic(rng, observation_space, bounds.size, network) for _ in range(2))
    return ActorTwinCritics(actor, (first, second), bounds)


def normalize_batch(batch: Transitions, bounds: ActionBounds, normalizer: Normalizer) -> Transitions:
    """The batch with normalised observations and rewards, and actions in [-1, 1]."""
    return batch._replace(
        observations=normalize_observations(normalizer.observations, batch.observations),
        next_observations=normalize_observations(normalizer.observations, batch.next_observations),
        actions=bounds.to_unit(batch.actions),
        rewards=batch.rewards * reward_scale(normalizer),
    )


def twin_critic_loss(
    critics: tuple[ActionCritic, ActionCritic], targets: Float[Array, " N"], batch: Transitions
) -> tuple[Array, Metrics]:
    """E[(Q₁(s, a) - y)²] + E[(Q₂(s, a) - y)²] (Fujimoto et al. 2018, algorithm 1), and metrics."""
    values = twin_values(critics, batch.observations, batch.actions)
    first, second = (losses.value_loss(each, targets, jnp.ones_like(targets)) for each in values)
    value = first + second
    return value, {"loss/value": value, "value/mean": values.mean()}
