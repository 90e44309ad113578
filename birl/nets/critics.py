"""Networks of an actor and any number of critics, such as TD3's and SAC's; and SAC's actor."""

from collections.abc import Callable
from functools import reduce
from operator import add
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


class ActorCritics(eqx.Module, Generic[Actor]):
    """An actor and critics, which share no parameters; you can use your own Equinox modules."""

    actor: Actor
    critics: tuple[ActionCritic, ...]
    bounds: ActionBounds

    def initial_memory(self, num_envs: int) -> PyTree:
        return ()


MakeActorCritics = Callable[[np.random.Generator, gym.Space, gym.Space], ActorCritics[Actor]]


def critic_values(
    critics: tuple[ActionCritic, ...], observations: PyTree, actions: Float[Array, "*batch A"]
) -> Float[Array, "C *batch"]:
    """Q_1(s, a) to Q_C(s, a), stacked; with K outputs each [C, ..., K]."""
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


def make_actor_critics(
    rng: np.random.Generator,
    observation_space: gym.Space,
    action_space: gym.Space,
    make_actor: Callable[[np.random.Generator, gym.Space, int, NetworkConfig], Actor],
    network: NetworkConfig,
    critics: int = 2,
    outputs: int = 1,  # of each critic
) -> ActorCritics[Actor]:
    """An actor made by `make_actor`, and critics; ConfigError unless the Box is bounded."""
    bounds = bounds_of(action_space)
    actor = make_actor(rng, observation_space, bounds.size, network)
    made = (make_action_critic(rng, observation_space, bounds.size, network, outputs) for _ in range(critics))
    return ActorCritics(actor, tuple(made), bounds)


def normalize_batch(batch: Transitions, bounds: ActionBounds, normalizer: Normalizer) -> Transitions:
    """The batch with normalised observations and rewards, and actions in [-1, 1]."""
    return batch._replace(
        observations=normalize_observations(normalizer.observations, batch.observations),
        next_observations=normalize_observations(normalizer.observations, batch.next_observations),
        actions=bounds.to_unit(batch.actions),
        rewards=batch.rewards * reward_scale(normalizer),
    )


def critic_loss(
    critics: tuple[ActionCritic, ...], targets: Float[Array, " N"], batch: Transitions
) -> tuple[Array, Metrics]:
    """Σᵢ E[(Qᵢ(s, a) - y)²] (Fujimoto et al. 2018, algorithm 1), and metrics."""
    values = critic_values(critics, batch.observations, batch.actions)
    value = reduce(add, (losses.value_loss(each, targets, jnp.ones_like(targets)) for each in values))
    return value, {"loss/value": value, "value/mean": values.mean()}
