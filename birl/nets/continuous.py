"""Networks for bounded Box actions: deterministic actors, and critics Q(s, a)."""

from collections.abc import Callable
from typing import Protocol

import equinox as eqx
import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jaxtyping import Array, Float

from birl.config import ConfigError
from birl.envs.spaces import far_from_one, leaves_of, shown, width_of
from birl.nets.encoders import MLP, Encoder, make_encoder, make_mlp
from birl.nets.layers import Linear, make_linear
from birl.parts import NetworkConfig
from birl.types import PyTree


class ActionBounds(eqx.Module):
    """The bounds of each action dimension; networks use actions scaled to [-1, 1]."""

    low: tuple[float, ...] = eqx.field(static=True)
    high: tuple[float, ...] = eqx.field(static=True)

    @property
    def size(self) -> int:
        return len(self.low)

    def from_unit(self, numbers: Float[Array, "*batch A"]) -> Float[Array, "*batch A"]:
        """Actions scaled from [-1, 1] to the bounds of the space."""
        low, high = np.array([self.low, self.high], np.float32)
        return low + (numbers + 1.0) * ((high - low) / 2)

    def to_unit(self, actions: Float[Array, "*batch A"]) -> Float[Array, "*batch A"]:
        """Actions scaled from the bounds of the space to [-1, 1]."""
        low, high = np.array([self.low, self.high], np.float32)
        return (actions - low) * (2 / (high - low)) - 1.0


class DeterministicActor(eqx.Module):
    """μ(s): one action in [-1, 1] for each observation."""

    encoder: Encoder
    head: Linear

    def __call__(self, observations: PyTree) -> Float[Array, "*batch A"]:
        return jnp.tanh(self.head(self.encoder(observations)))


class ActionCritic(eqx.Module):
    """Q(s, a) of actions in [-1, 1], which are concatenated with the observation's features.

    With K > 1 outputs a call returns [..., K], for example quantiles.
    """

    encoder: Encoder  # of the observation; without dense layers
    mlp: MLP
    head: Linear

    def __call__(self, observations: PyTree, actions: Float[Array, "*batch A"]) -> Array:
        together = jnp.concatenate([self.encoder(observations), actions], axis=-1)
        outputs = self.head(self.mlp(together))
        return outputs[..., 0] if outputs.shape[-1] == 1 else outputs


def bounds_of(space: gym.Space) -> ActionBounds:
    """The bounds of a Box; ConfigError for another space, or if a bound is not finite."""
    if not isinstance(space, spaces.Box):
        raise ConfigError(f"action space {shown(space)} is not a Box; use a Box with finite bounds")
    widths = space.high.astype(np.float64) - space.low
    if not np.all((widths > 0) & (widths < np.finfo(np.float32).max)):
        remedy = "low below high, because actions are scaled by them; gymnasium.wrappers.RescaleAction sets bounds"
        raise ConfigError(f"action space {shown(space)} needs finite bounds, {remedy}")
    return ActionBounds(tuple(space.low.ravel().tolist()), tuple(space.high.ravel().tolist()))


def scale_of(space: gym.Space) -> ActionBounds | None:
    """The bounds that a Gaussian policy is scaled to, for each column of its actions, or None.

    They are those of a Box where they are far from ±1, and ±1, which changes nothing, elsewhere.
    """
    bounds: list[tuple[float, float]] = []
    for leaf in leaves_of(space):
        if isinstance(leaf, spaces.Box):
            columns = zip(far_from_one(leaf).flat, leaf.low.flat, leaf.high.flat, strict=True)
            bounds += [(float(low), float(high)) if far else (-1.0, 1.0) for far, low, high in columns]
        else:
            bounds += [(-1.0, 1.0)] * width_of(leaf)
    low, high = zip(*bounds, strict=True) if bounds else ((), ())
    return ActionBounds(low, high) if any(column != (-1.0, 1.0) for column in bounds) else None


def make_deterministic_actor(
    rng: np.random.Generator, space: gym.Space, actions: int, network: NetworkConfig
) -> DeterministicActor:
    """An actor for observations of this space.

    Weights are orthogonal, with scale √2 in hidden layers and 0.01 in the head, so that the first
    actions are near 0.
    """
    encoder, width = make_actor_encoder(rng, space, network)
    return DeterministicActor(encoder, make_linear(rng, width, actions, scale=0.01))


def make_actor_encoder(rng: np.random.Generator, space: gym.Space, network: NetworkConfig) -> tuple[Encoder, int]:
    """The encoder of an actor, with its dense layers, and its number of features."""
    sizes = network.hidden_sizes if network.policy_hidden_sizes is None else network.policy_hidden_sizes
    return make_encoder(rng, space, network.encoder, sizes, network.activation, network.layer_norm)


def make_action_critic(
    rng: np.random.Generator, space: gym.Space, actions: int, network: NetworkConfig, outputs: int = 1
) -> ActionCritic:
    """A critic for observations of this space; orthogonal weights, scale √2, and 1 in the head."""
    encoder, width = make_encoder(rng, space, network.encoder, (), network.activation, network.layer_norm)
    hidden_sizes = network.hidden_sizes if network.value_hidden_sizes is None else network.value_hidden_sizes
    sizes = (width + actions, *hidden_sizes)
    mlp = make_mlp(rng, sizes, network.activation, network.layer_norm)
    return ActionCritic(encoder, mlp, make_linear(rng, sizes[-1], outputs, scale=1.0))


class DeterministicActorCriticLike(Protocol):
    """The interface of DDPG's network; you can write your own as an Equinox module."""

    @property
    def actor(self) -> Callable[[PyTree], Float[Array, "*batch A"]]: ...
    @property
    def critic(self) -> Callable[[PyTree, Float[Array, "*batch A"]], Float[Array, "*batch"]]: ...
    @property
    def bounds(self) -> ActionBounds: ...

    def initial_memory(self, num_envs: int) -> PyTree: ...


MakeDeterministicActorCritic = Callable[[np.random.Generator, gym.Space, gym.Space], DeterministicActorCriticLike]


class DeterministicActorCritic(eqx.Module):
    """An actor μ(s) and a critic Q(s, a), which share no parameters."""

    actor: DeterministicActor
    critic: ActionCritic
    bounds: ActionBounds
    remembers_noise: bool = eqx.field(static=True)

    def initial_memory(self, num_envs: int) -> PyTree:
        """Zero noise for each environment; () if noise does not depend on earlier noise."""
        return np.zeros((num_envs, self.bounds.size), np.float32) if self.remembers_noise else ()


def make_deterministic_actor_critic(
    rng: np.random.Generator,
    observation_space: gym.Space,
    action_space: gym.Space,
    network: NetworkConfig,
    remembers_noise: bool = False,
) -> DeterministicActorCritic:
    """A DeterministicActorCritic for these spaces."""
    bounds = bounds_of(action_space)
    actor = make_deterministic_actor(rng, observation_space, bounds.size, network)
    return DeterministicActorCritic(
        actor, make_action_critic(rng, observation_space, bounds.size, network), bounds, remembers_noise
    )


def random_in_warmup(actions: Float[Array, "B A"], in_warmup: Array, key: Array) -> Float[Array, "B A"]:
    """Uniform random actions in [-1, 1] while in warmup, otherwise these."""
    return jnp.where(in_warmup, jax.random.uniform(key, actions.shape, minval=-1.0, maxval=1.0), actions)
