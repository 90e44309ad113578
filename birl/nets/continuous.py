"""Networks for the actions of a bounded Box: actors that give one, critics that value one."""

from collections.abc import Callable
from typing import Protocol

import equinox as eqx
import gymnasium as gym
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jaxtyping import Array, Float

from birl.accel.devices import Work
from birl.config import ConfigError, require
from birl.envs.spaces import shown
from birl.nets.encoders import MLP, Encoder, EncoderName, make_encoder, make_mlp
from birl.nets.layers import Activation, Linear, make_linear
from birl.types import PyTree


class ActionBounds(eqx.Module):
    """The lowest and highest value of each number of an action; networks work on [-1, 1]."""

    low: tuple[float, ...] = eqx.field(static=True)
    high: tuple[float, ...] = eqx.field(static=True)

    @property
    def size(self) -> int:
        return len(self.low)

    def from_unit(self, numbers: Float[Array, "*batch A"]) -> Float[Array, "*batch A"]:
        """[-1, 1] to the space's own bounds."""
        low, high = np.array([self.low, self.high], np.float32)
        return low + (numbers + 1.0) * ((high - low) / 2)

    def to_unit(self, actions: Float[Array, "*batch A"]) -> Float[Array, "*batch A"]:
        """The space's own bounds to [-1, 1]."""
        low, high = np.array([self.low, self.high], np.float32)
        return (actions - low) * (2 / (high - low)) - 1.0


class DeterministicActor(eqx.Module):
    """μ(s): one action for each observation, on [-1, 1]."""

    encoder: Encoder
    head: Linear

    def __call__(self, observations: PyTree) -> Float[Array, "*batch A"]:
        return jnp.tanh(self.head(self.encoder(observations)))


class ActionCritic(eqx.Module):
    """Q(s, a) of actions on [-1, 1], which join the observation's features before the first dense
    layer.
    """

    encoder: Encoder  # of the observation alone: no dense layers
    mlp: MLP
    head: Linear

    def __call__(self, observations: PyTree, actions: Float[Array, "*batch A"]) -> Float[Array, "*batch"]:
        together = jnp.concatenate([self.encoder(observations), actions], axis=-1)
        return self.head(self.mlp(together))[..., 0]


class ActionNetworkSettings(Protocol):
    """The settings of an algorithm's Config that say which actor and critic it has."""

    @property
    def encoder(self) -> EncoderName: ...
    @property
    def hidden_sizes(self) -> tuple[int, ...]: ...
    @property
    def activation(self) -> Activation: ...
    @property
    def layer_norm(self) -> bool: ...


def bounds_of(space: gym.Space) -> ActionBounds:
    """The bounds of a Box whose every number has them; ConfigError for any other space."""
    if not isinstance(space, spaces.Box):
        remedy = "dqn takes Discrete actions; ppo, a2c, trpo, reinforce and qac take all kinds"
        raise ConfigError(f"action space {shown(space)} has no numbers to differentiate by; use a Box: {remedy}")
    widths = space.high.astype(np.float64) - space.low
    if not np.all((widths > 0) & (widths < np.finfo(np.float32).max)):
        remedy = "gymnasium.wrappers.RescaleAction gives them, and ppo, a2c and trpo need none"
        raise ConfigError(
            f"action space {shown(space)} needs finite bounds, the lower below the higher, for actions are scaled by them; {remedy}"
        )
    return ActionBounds(tuple(space.low.ravel().tolist()), tuple(space.high.ravel().tolist()))


def make_deterministic_actor(
    rng: np.random.Generator, space: gym.Space, actions: int, settings: ActionNetworkSettings
) -> DeterministicActor:
    """An actor for observations of this space; orthogonal weights: √2 hidden, 0.01 head, so that
    first actions are near the middle.
    """
    encoder, width = make_encoder(
        rng, space, settings.encoder, settings.hidden_sizes, settings.activation, settings.layer_norm
    )
    return DeterministicActor(encoder, make_linear(rng, width, actions, scale=0.01))


def make_action_critic(
    rng: np.random.Generator, space: gym.Space, actions: int, settings: ActionNetworkSettings
) -> ActionCritic:
    """A critic for observations of this space; orthogonal weights: √2 hidden, 1 head."""
    encoder, width = make_encoder(rng, space, settings.encoder, (), settings.activation, settings.layer_norm)
    mlp = make_mlp(rng, (width + actions, *settings.hidden_sizes), settings.activation, settings.layer_norm)
    return ActionCritic(encoder, mlp, make_linear(rng, (width + actions, *settings.hidden_sizes)[-1], 1, scale=1.0))


def largest_action_product(settings: ActionNetworkSettings, rows: int) -> Work:
    """Multiplications of the largest matrix product when so many observations are learned from at
    once, unless they are images.
    """
    return rows * max(settings.hidden_sizes, default=1) ** 2 if settings.encoder == "mlp" else "images"


class DeterministicActorCriticLike(Protocol):
    """What DDPG needs of a network; an Equinox module of the user's own may stand in for
    DeterministicActorCritic.
    """

    @property
    def actor(self) -> Callable[[PyTree], Float[Array, "*batch A"]]: ...
    @property
    def critic(self) -> Callable[[PyTree, Float[Array, "*batch A"]], Float[Array, "*batch"]]: ...
    @property
    def bounds(self) -> ActionBounds: ...

    def initial_memory(self, num_envs: int) -> PyTree: ...


MakeDeterministicActorCritic = Callable[[np.random.Generator, gym.Space, gym.Space], DeterministicActorCriticLike]


class DeterministicActorCritic(eqx.Module):
    """μ(s) and Q(s, a), on nothing shared."""

    actor: DeterministicActor
    critic: ActionCritic
    bounds: ActionBounds
    remembers_noise: bool = eqx.field(static=True)

    def initial_memory(self, num_envs: int) -> PyTree:
        """A row of noise for each environment, 0 at an episode's start; () if noise has no past."""
        return np.zeros((num_envs, self.bounds.size), np.float32) if self.remembers_noise else ()


def make_deterministic_actor_critic(
    rng: np.random.Generator,
    observation_space: gym.Space,
    action_space: gym.Space,
    settings: ActionNetworkSettings,
    remembers_noise: bool = False,
) -> DeterministicActorCritic:
    """An actor and a critic for these spaces."""
    bounds = bounds_of(action_space)
    actor = make_deterministic_actor(rng, observation_space, bounds.size, settings)
    return DeterministicActorCritic(
        actor, make_action_critic(rng, observation_space, bounds.size, settings), bounds, remembers_noise
    )
