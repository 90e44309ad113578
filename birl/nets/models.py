"""Networks made of encoder + core + heads."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Protocol

import equinox as eqx
import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jaxtyping import Array, Bool, Float

from birl.config import require
from birl.envs.spaces import is_composite, leaves_of
from birl.maths.distributions import Bernoulli, Categorical, DiagonalGaussian, Joint, MultiCategorical, mask_logits
from birl.nets.cores import Core, CoreName, make_core
from birl.nets.encoders import Encoder, EncoderName, make_encoder
from birl.nets.layers import Activation, Linear, full, make_linear
from birl.types import PyTree


class Distribution(Protocol):
    """What a policy gives for each observation: Categorical, DiagonalGaussian, MultiCategorical, Bernoulli or a Joint of these."""

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


class Part(NamedTuple):
    """What one part of an action space asks of a policy."""

    kind: Literal["categorical", "multicategorical", "bernoulli", "gaussian"]
    sizes: tuple[int, ...]  # choices of each component; (2,) * n is n bits, (1,) * n is n numbers

    @property
    def outputs(self) -> int:
        """Numbers that the network gives for it."""
        return sum(self.sizes) if self.kind in ("categorical", "multicategorical") else len(self.sizes)

    @property
    def choices(self) -> int:
        """Entries of an action mask."""
        return self.outputs if self.kind in ("categorical", "multicategorical") else 0


class PolicyHead(eqx.Module):
    """Features to a distribution over the actions of a space: one layer, its outputs side by side for each part."""

    linear: Linear
    log_std: Float[Array, " A"] | None  # of all numbers, side by side; does not depend on the state
    parts: tuple[Part, ...] = eqx.field(static=True)
    composite: bool = eqx.field(static=True)  # a Dict or Tuple

    def __call__(self, features: Array, action_masks: Array | None) -> Distribution:
        outputs = self.linear(features)
        if not self.composite:
            return _distribution(self.parts[0], outputs, self.log_std, action_masks)
        logits = _split(outputs, [part.outputs for part in self.parts])
        masks = _split(action_masks, [part.choices for part in self.parts])
        log_stds = _split(self.log_std, [part.outputs if part.kind == "gaussian" else 0 for part in self.parts])
        parts = tuple(map(_distribution, self.parts, logits, log_stds, masks))
        return Joint(parts, tuple(len(part.sizes) for part in self.parts))


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
    composite = is_composite(space)
    parts = tuple(_part_of(leaf, composite) for leaf in leaves_of(space))
    numbers = sum(part.outputs for part in parts if part.kind == "gaussian")
    linear = make_linear(rng, inputs, sum(part.outputs for part in parts), scale=0.01)
    return PolicyHead(linear, full((numbers,), log_std) if numbers else None, parts, composite)


def _part_of(space: gym.Space, within: bool) -> Part:
    match space:
        case spaces.Discrete():
            return Part("multicategorical" if within else "categorical", (int(space.n),))  # within others it needs an axis
        case spaces.MultiDiscrete():
            return Part("multicategorical", tuple(int(n) for n in space.nvec.flat))
        case spaces.MultiBinary():
            return Part("bernoulli", (2,) * int(np.prod(space.shape)))
        case _:
            return Part("gaussian", (1,) * int(np.prod(space.shape or ())))


def _distribution(part: Part, outputs: Any, log_std: Any, action_masks: Any) -> Distribution:
    if part.kind == "gaussian":
        return DiagonalGaussian(outputs, jnp.broadcast_to(log_std, outputs.shape))
    if part.kind == "bernoulli":
        return Bernoulli(outputs)
    logits = outputs if action_masks is None else mask_logits(outputs, action_masks)
    return Categorical(logits) if part.kind == "categorical" else MultiCategorical(logits, part.sizes)


def _split(array: Array | None, widths: list[int]) -> list[Array] | list[None]:
    """The array cut on its last axis into these widths; as many Nones if there is none."""
    if array is None:
        return [None] * len(widths)
    return jnp.split(array, np.cumsum(widths)[:-1], axis=-1)
