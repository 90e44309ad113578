"""Networks made of encoder + core + heads."""

from collections.abc import Callable
from typing import Any, Protocol

import equinox as eqx
import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jaxtyping import Array, Bool, Float

from birl.config import ConfigError, require
from birl.maths.distributions import Bernoulli, Categorical, DiagonalGaussian, MultiCategorical, mask_logits
from birl.nets.cores import Core, CoreName, make_core
from birl.nets.encoders import Encoder, EncoderName, make_encoder
from birl.nets.layers import Activation, Linear, full, make_linear
from birl.types import PyTree


class Distribution(Protocol):
    """What a policy gives for each observation: Categorical, DiagonalGaussian, MultiCategorical or Bernoulli."""

    def sample(self, key: Array) -> Array: ...
    def mode(self) -> Array: ...
    def log_prob(self, actions: Array) -> Array: ...
    def entropy(self) -> Array: ...
    def kl(self, other: Any) -> Array: ...


class ActorCriticLike(Protocol):
    """What PPO and its kin need of a network; an Equinox module of the user's own may stand in for ActorCritic."""

    def initial_memory(self, num_envs: int) -> PyTree: ...

    def __call__(
        self, observations: PyTree, memory: PyTree, resets: Array, action_masks: Array | None
    ) -> tuple[Distribution, Float[Array, "T B"], PyTree]: ...


MakeNetwork = Callable[[np.random.Generator, gym.Space, gym.Space], ActorCriticLike]


class PolicyHead(eqx.Module):
    """Features to a distribution over the actions of a space."""

    linear: Linear
    log_std: Float[Array, " A"] | None  # does not depend on the state
    sizes: tuple[int, ...] = eqx.field(static=True)  # choices of each component; () for numbers, (2,) * n is n bits
    kind: str = eqx.field(static=True)

    def __call__(self, features: Array, action_masks: Array | None) -> Distribution:
        outputs = self.linear(features)
        if self.log_std is not None:
            return DiagonalGaussian(outputs, jnp.broadcast_to(self.log_std, outputs.shape))
        if self.kind == "bernoulli":
            return Bernoulli(outputs)
        logits = outputs if action_masks is None else mask_logits(outputs, action_masks)
        return Categorical(logits) if self.kind == "categorical" else MultiCategorical(logits, self.sizes)


class Trunk(eqx.Module):
    """Encoder, then core."""

    encoder: Encoder
    core: Core

    def __call__(self, observations: PyTree, memory: PyTree, resets: Array) -> tuple[Array, PyTree]:
        return self.core(self.encoder(observations), memory, resets)


class ActorCritic(eqx.Module):
    """A policy and a state-value function on one trunk, or on one each."""

    actor: Trunk
    critic: Trunk | None  # None: the value head stands on the actor's trunk
    policy_head: PolicyHead
    value_head: Linear

    def initial_memory(self, num_envs: int) -> PyTree:
        memory = self.actor.core.initial_memory(num_envs)
        if self.critic is None or not jax.tree.leaves(memory):
            return memory
        return memory, self.critic.core.initial_memory(num_envs)

    def __call__(
        self, observations: PyTree, memory: PyTree, resets: Bool[Array, "T B"], action_masks: Array | None
    ) -> tuple[Distribution, Float[Array, "T B"], PyTree]:
        if self.critic is None:
            features, memory = self.actor(observations, memory, resets)
            values = self.value_head(features)[..., 0]
        else:
            actor_memory, critic_memory = memory or ((), ())
            features, actor_memory = self.actor(observations, actor_memory, resets)
            critic_features, critic_memory = self.critic(observations, critic_memory, resets)
            values, memory = self.value_head(critic_features)[..., 0], (actor_memory, critic_memory) if memory else ()
        return self.policy_head(features, action_masks), values, memory


class NetworkSettings(Protocol):
    """The settings of an algorithm's Config that say which network it has."""

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
    @property
    def share_trunk(self) -> bool: ...
    @property
    def log_std(self) -> float: ...


def validate_network(settings: NetworkSettings) -> None:
    """Raise ConfigError if there can be no such network."""
    require(settings.core_size > 0, f"core_size {settings.core_size} must be at least 1")
    require(all(size > 0 for size in settings.hidden_sizes), f"hidden_sizes {settings.hidden_sizes} must each be at least 1")


def largest_product(settings: NetworkSettings, rows: int) -> int | None:
    """Multiplications of the largest matrix product when so many observations are learned from at once; None for images: many."""
    if settings.encoder != "mlp":
        return None
    widths = [settings.core_size * (1 if settings.core == "feedforward" else 4), *settings.hidden_sizes]
    return rows * max(widths) * max(settings.hidden_sizes, default=1)


def make_actor_critic(
    rng: np.random.Generator, observation_space: gym.Space, action_space: gym.Space, settings: NetworkSettings
) -> ActorCritic:
    """An ActorCritic for these spaces; orthogonal weights: √2 hidden, 0.01 policy head, 1 value head."""
    trunks = []
    for _ in range(1 if settings.share_trunk else 2):
        encoder, width = make_encoder(rng, observation_space, settings.encoder, settings.hidden_sizes, settings.activation)
        trunks.append(Trunk(encoder, make_core(rng, settings.core, width, settings.core_size)))
    width = trunks[0].core.size
    policy_head = make_policy_head(rng, action_space, width, settings.log_std)
    return ActorCritic(trunks[0], None if settings.share_trunk else trunks[1], policy_head, make_linear(rng, width, 1, scale=1.0))


def make_policy_head(rng: np.random.Generator, space: gym.Space, inputs: int, log_std: float) -> PolicyHead:
    """The head that fits the action space, with weights so small that the first policy is almost uniform."""
    sizes: tuple[int, ...]
    match space:
        case spaces.Discrete():
            kind, sizes, outputs = "categorical", (int(space.n),), int(space.n)
        case spaces.MultiDiscrete():
            kind, sizes = "multicategorical", tuple(int(n) for n in space.nvec.flat)
            outputs = sum(sizes)
        case spaces.MultiBinary():
            kind, sizes, outputs = "bernoulli", (2,) * int(np.prod(space.shape)), int(np.prod(space.shape))
        case spaces.Box():
            kind, sizes, outputs = "gaussian", (), int(np.prod(space.shape))
        case _:
            raise ConfigError(f"action space {space} is not supported; use Discrete, MultiDiscrete, MultiBinary or Box")
    scale = full((outputs,), log_std) if kind == "gaussian" else None
    return PolicyHead(make_linear(rng, inputs, outputs, scale=0.01), scale, sizes, kind)
