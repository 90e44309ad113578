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

from birl.accel.devices import Work
from birl.config import require
from birl.envs.spaces import action_shape, is_composite, leaves_of
from birl.maths.distributions import Bernoulli, Categorical, DiagonalGaussian, Joint, MultiCategorical, mask_logits
from birl.nets.encoders import Encoder, EncoderName, Vector, make_encoder
from birl.nets.images import Convolutional, Seen
from birl.nets.layers import ACTIVATIONS, Activation, Linear, full, make_linear
from birl.nets.recurrent import Core, CoreName, make_core
from birl.types import PyTree


class Distribution(Protocol):
    """What a policy gives for each observation: Categorical, DiagonalGaussian, MultiCategorical,
    Bernoulli or a Joint of these.
    """

    def sample(self, key: Array) -> Array: ...
    def mode(self) -> Array: ...
    def log_prob(self, actions: Array) -> Array: ...
    def entropy(self) -> Array: ...
    def kl(self, other: Any) -> Array: ...


class HasMemory(Protocol):
    """What remembers from step to step, or nothing: then its memory is ()."""

    def initial_memory(self, num_envs: int) -> PyTree:
        """What an episode begins with: arrays [num_envs, ...] of any shape and type."""


class ActorCriticLike(Protocol):
    """What PPO and its kin need of a network; an Equinox module of the user's own may stand in for
    ActorCritic.

    Where resets[t] is set, it must take step t from its initial memory, not from what is handed in:
    see `birl.nets.recurrent.reset_memory`.
    """

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
    """Features to a distribution over the actions of a space: one layer, its outputs side by side
    for each part.
    """

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
        return initial_memory_of(self.actor, self.critic, num_envs)

    def __call__(
        self, observations: PyTree, memory: PyTree, resets: Bool[Array, "T B"], action_masks: Array | None
    ) -> tuple[Distribution, Float[Array, "T B"], PyTree]:
        features, critic_features, memory = features_of(self.actor, self.critic, observations, memory, resets)
        return self.policy_head(features, action_masks), self.value_head(critic_features)[..., 0], memory


def see(network: Any, observations: PyTree) -> PyTree:
    """Observations [T, B, ...] as Seen if they are images and one encoder sees them for all heads;
    otherwise as they are.
    """
    if not isinstance(network, ActorCritic) or network.critic is not None or isinstance(observations, dict):
        return observations
    (encoder,) = network.actor.encoder.parts
    return Seen(observations, encoder.outputs(observations)) if isinstance(encoder, Convolutional) else observations


class ActionValueHead(eqx.Module):
    """Features of a state and an action to Q(s, a): an output for each of a few actions, or the
    action as one more input.
    """

    joint: Linear | None  # takes features and action together; None: there is an output for each action
    linear: Linear
    encode: Vector  # an action as numbers; the choices of Discrete and MultiDiscrete are one-hot
    activation: str = eqx.field(static=True)

    def __call__(self, features: Array, actions: Array) -> Float[Array, "T B"]:
        encoded = self.encode(actions)
        if self.joint is None:
            return jnp.sum(self.linear(features) * encoded, axis=-1)
        together = jnp.concatenate([features, encoded], axis=-1)
        return self.linear(ACTIVATIONS[self.activation](self.joint(together)))[..., 0]

    def expected(self, features: Array, distribution: Categorical) -> Float[Array, "T B"]:
        """Σ_a π(a|s) Q(s, a), where there is an output for each action."""
        return jnp.sum(jax.nn.softmax(distribution.logits) * self.linear(features), axis=-1)


class ActorQCritic(eqx.Module):
    """A policy and an action-value function on one trunk, or on one each. A call gives the critic's
    features in place of values.
    """

    actor: Trunk
    critic: Trunk | None  # None: the action values stand on the actor's trunk
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
    """Whether a network has memory, whoever wrote it."""
    return bool(jax.tree.leaves(network.initial_memory(1)))


def initial_memory_of(actor: Trunk, critic: Trunk | None, num_envs: int) -> PyTree:
    """The memory of a network with these trunks at an episode's start; () if they remember
    nothing.
    """
    memory = actor.core.initial_memory(num_envs)
    if critic is None or not jax.tree.leaves(memory):
        return memory
    return memory, critic.core.initial_memory(num_envs)


def features_of(
    actor: Trunk, critic: Trunk | None, observations: PyTree, memory: PyTree, resets: Array
) -> tuple[Array, Array, PyTree]:
    """What the actor's and the critic's heads stand on, and the memory after."""
    if critic is None:
        features, memory = actor(observations, memory, resets)
        return features, features, memory
    actor_memory, critic_memory = memory or ((), ())
    features, actor_memory = actor(observations, actor_memory, resets)
    critic_features, critic_memory = critic(observations, critic_memory, resets)
    return features, critic_features, (actor_memory, critic_memory) if memory else ()


class TrunkSettings(Protocol):
    """The settings of an algorithm's Config that say what its heads stand on."""

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
    """The settings of an algorithm's Config that say which actor-critic it has."""

    @property
    def share_trunk(self) -> bool: ...
    @property
    def log_std(self) -> float: ...


def largest_product(settings: TrunkSettings, rows: int) -> Work:
    """Multiplications of the largest matrix product when so many observations are learned from at
    once, unless they are images.
    """
    if settings.encoder != "mlp":
        return "images"
    widths = [settings.core_size * (1 if settings.core == "feedforward" else 4), *settings.hidden_sizes]
    return rows * max(widths) * max(settings.hidden_sizes, default=1)


def make_actor_critic(
    rng: np.random.Generator, observation_space: gym.Space, action_space: gym.Space, settings: NetworkSettings
) -> ActorCritic:
    """An ActorCritic for these spaces; orthogonal weights: √2 hidden, 0.01 policy head, 1 value
    head.
    """
    actor, critic = make_trunks(rng, observation_space, settings)
    policy_head = make_policy_head(rng, action_space, actor.core.size, settings.log_std)
    return ActorCritic(actor, critic, policy_head, make_linear(rng, actor.core.size, 1, scale=1.0))


def make_actor_q_critic(
    rng: np.random.Generator, observation_space: gym.Space, action_space: gym.Space, settings: NetworkSettings
) -> ActorQCritic:
    """An ActorQCritic for these spaces, with the scales of `make_actor_critic`."""
    actor, critic = make_trunks(rng, observation_space, settings)
    policy_head = make_policy_head(rng, action_space, actor.core.size, settings.log_std)
    return ActorQCritic(
        actor, critic, policy_head, make_action_value_head(rng, action_space, actor.core.size, settings.activation)
    )


def make_trunks(rng: np.random.Generator, space: gym.Space, settings: NetworkSettings) -> tuple[Trunk, Trunk | None]:
    """The actor's, and the critic's if it has one of its own."""
    actor = make_trunk(rng, space, settings)
    return actor, None if settings.share_trunk else make_trunk(rng, space, settings)


def make_trunk(rng: np.random.Generator, space: gym.Space, settings: TrunkSettings) -> Trunk:
    """Encoder and core for observations of this space."""
    encoder, width = make_encoder(rng, space, settings.encoder, settings.hidden_sizes, settings.activation)
    return Trunk(encoder, make_core(rng, settings.core, width, settings.core_size))


def make_action_value_head(
    rng: np.random.Generator, space: gym.Space, width: int, activation: Activation
) -> ActionValueHead:
    """The head that fits the action space."""
    if isinstance(space, spaces.Discrete):
        actions = int(space.n)
        return ActionValueHead(None, make_linear(rng, width, actions, scale=1.0), Vector(0, (actions,)), activation)
    sizes = tuple(int(n) for n in space.nvec.flat) if isinstance(space, spaces.MultiDiscrete) else ()
    inputs = sum(sizes) or int(np.prod(action_shape(space)))  # a rollout's actions are flat, whatever the space's shape
    joint = make_linear(rng, width + inputs, width)
    return ActionValueHead(joint, make_linear(rng, width, 1, scale=1.0), Vector(1, sizes), activation)


def make_policy_head(rng: np.random.Generator, space: gym.Space, inputs: int, log_std: float) -> PolicyHead:
    """The head that fits the action space, with weights so small that the first policy is almost
    uniform.
    """
    composite = is_composite(space)
    parts = tuple(_part_of(leaf, composite) for leaf in leaves_of(space))
    numbers = sum(part.outputs for part in parts if part.kind == "gaussian")
    linear = make_linear(rng, inputs, sum(part.outputs for part in parts), scale=0.01)
    return PolicyHead(linear, full((numbers,), log_std) if numbers else None, parts, composite)


def _part_of(space: gym.Space, within: bool) -> Part:
    match space:
        case spaces.Discrete():
            return Part(
                "multicategorical" if within else "categorical", (int(space.n),)
            )  # within others it needs an axis
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
