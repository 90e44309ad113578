"""Heads: from features to an action distribution, or to the value of an action.

With gSDE exploration noise is a function of the state (Raffin et al. 2021). A matrix is drawn from
each random key that acting gets, and the collector gives several steps the same key. So nothing is
remembered between steps, and learning does not need the matrix. As in Stable-Baselines3, the
features of PPO and A2C are not changed by the gradient of the standard deviation.
"""

from typing import Any, Literal, NamedTuple, Protocol

import equinox as eqx
import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jaxtyping import Array, Float

from birl.config import ConfigError, require
from birl.envs.spaces import action_shape, far_from_one, is_composite, leaves_of, shown, width_of
from birl.maths.distributions import (
    Bernoulli,
    Categorical,
    DiagonalGaussian,
    Distribution,
    Joint,
    MultiCategorical,
    mask_logits,
)
from birl.maths.gaussians import BoundedGaussian, ScaledGaussian, state_dependent_gaussian
from birl.nets.encoders import Vector
from birl.nets.layers import ACTIVATIONS, Linear, full, make_linear, zeros
from birl.parts import ActionConfig, Activation


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


class Part(NamedTuple):
    """The distribution that one part of an action space needs."""

    kind: Literal["categorical", "multicategorical", "bernoulli", "gaussian"]
    sizes: tuple[int, ...]  # choices of each component; (2,) * n for n bits, (1,) * n for n numbers
    scale: ActionBounds | None = None  # what the numbers are scaled to; None: they are as they are

    @property
    def outputs(self) -> int:
        """The number of network outputs."""
        return sum(self.sizes) if self.kind in ("categorical", "multicategorical") else len(self.sizes)

    @property
    def choices(self) -> int:
        """The number of entries in an action mask."""
        return self.outputs if self.kind in ("categorical", "multicategorical") else 0


class PolicyHeadLike(Protocol):
    """From features [T, B, F] to a distribution over actions."""

    def __call__(self, features: Array, action_masks: Array | None) -> Distribution: ...


class PolicyHead(eqx.Module):
    """A linear layer from features to a distribution over the actions of a space."""

    linear: Linear  # the outputs of all parts, concatenated
    log_std: Float[Array, " A"] | None  # of all Gaussian parts, concatenated; the same for every state
    parts: tuple[Part, ...] = eqx.field(static=True)
    composite: bool = eqx.field(static=True)  # the action space is a Dict or Tuple
    log_std_layer: Linear | None = None  # in place of `log_std`, where it depends on the state

    def __call__(self, features: Array, action_masks: Array | None) -> Distribution:
        outputs = self.linear(features)
        log_std = self.log_std if self.log_std_layer is None else self.log_std_layer(features)
        if not self.composite:
            return _distribution(self.parts[0], outputs, log_std, action_masks)
        logits = _split(outputs, [part.outputs for part in self.parts])
        masks = _split(action_masks, [part.choices for part in self.parts])
        log_stds = _split(log_std, [part.outputs if part.kind == "gaussian" else 0 for part in self.parts])
        parts = tuple(map(_distribution, self.parts, logits, log_stds, masks))
        return Joint(parts, tuple(len(part.sizes) for part in self.parts))


class SquashedHead(eqx.Module):
    """The Gaussian of another head, squashed by tanh into the bounds of a Box."""

    head: PolicyHeadLike
    bounds: ActionBounds

    def __call__(self, features: Array, action_masks: Array | None) -> BoundedGaussian:
        return BoundedGaussian(self.head(features, action_masks), self.bounds.low, self.bounds.high)


class StateDependentHead(eqx.Module):
    """A linear layer to the mean, and an exploration matrix's standard deviations."""

    linear: Linear
    log_std: Float[Array, "F A"]
    scale: ActionBounds | None = None  # what the actions are scaled to; None: they are as they are

    def __call__(self, features: Array, action_masks: Array | None) -> Distribution:
        gaussian = state_dependent_gaussian(self.linear(features), jax.lax.stop_gradient(features), self.log_std)
        return scaled(gaussian, self.scale)


class ActionValueHead(eqx.Module):
    """Features and actions to Q(s, a).

    For Discrete actions there is an output for each action. Otherwise the action is an input.
    """

    joint: Linear | None  # takes features and action together; None: there is an output for each action
    linear: Linear
    encode: Vector  # turns an action into numbers; Discrete and MultiDiscrete choices become one-hot
    activation: str = eqx.field(static=True)
    scale: ActionBounds | None = None  # of the actions, which the head takes scaled to [-1, 1]

    def __call__(self, features: Array, actions: Array) -> Float[Array, "T B"]:
        encoded = self.encode(actions)
        if self.joint is None:
            return jnp.sum(self.linear(features) * encoded, axis=-1)
        encoded = encoded if self.scale is None else self.scale.to_unit(encoded)
        together = jnp.concatenate([features, encoded], axis=-1)
        return self.linear(ACTIVATIONS[self.activation](self.joint(together)))[..., 0]

    def expected(self, features: Array, distribution: Categorical) -> Float[Array, "T B"]:
        """Σ_a π(a|s) Q(s, a); for Discrete actions only."""
        return jnp.sum(jax.nn.softmax(distribution.logits) * self.linear(features), axis=-1)


def make_policy_head(
    rng: np.random.Generator,
    space: gym.Space,
    inputs: int,
    log_std: float,
    state_dependent_std: bool = False,
    scale_actions: bool = False,
) -> PolicyHead:
    """A PolicyHead for the action space, with small weights: the first policy is almost uniform.

    A log standard deviation that depends on the state is `log_std` in every state at first. With
    `scale_actions` it is that of actions on [-1, 1], where the bounds of a Box are far from these.
    """
    composite = is_composite(space)
    parts = tuple(_part_of(leaf, composite) for leaf in leaves_of(space))
    if scale_actions:
        parts = tuple(part._replace(scale=scale_of(leaf)) for part, leaf in zip(parts, leaves_of(space), strict=True))
    numbers = sum(part.outputs for part in parts if part.kind == "gaussian")
    linear = make_linear(rng, inputs, sum(part.outputs for part in parts), scale=0.01)
    if not state_dependent_std:
        return PolicyHead(linear, full((numbers,), log_std) if numbers else None, parts, composite)
    wrong = f"state_dependent_std True needs Box actions, and action space {shown(space)} has none"
    require(numbers > 0, f"{wrong}; use state_dependent_std False")
    layer = Linear(zeros(inputs, numbers), full((numbers,), log_std))
    return PolicyHead(linear, None, parts, composite, layer)


def make_action_value_head(
    rng: np.random.Generator, space: gym.Space, width: int, activation: Activation, scale_actions: bool = False
) -> ActionValueHead:
    """An ActionValueHead for the action space and `width` features."""
    if isinstance(space, spaces.Discrete):
        actions = int(space.n)
        return ActionValueHead(None, make_linear(rng, width, actions, scale=1.0), Vector(0, (actions,)), activation)
    sizes = tuple(int(n) for n in space.nvec.flat) if isinstance(space, spaces.MultiDiscrete) else ()
    inputs = sum(sizes) or int(np.prod(action_shape(space)))  # the actions of a rollout are flat rows
    joint = make_linear(rng, width + inputs, width)
    scale = scale_of(space) if scale_actions else None
    return ActionValueHead(joint, make_linear(rng, width, 1, scale=1.0), Vector(1, sizes), activation, scale)


def scaled(gaussian: Any, scale: ActionBounds | None) -> Distribution:
    """A Gaussian on [-1, 1] scaled to these bounds; the Gaussian itself for None."""
    return gaussian if scale is None else ScaledGaussian(gaussian, scale.low, scale.high)


def _part_of(space: gym.Space, within: bool) -> Part:
    match space:
        case spaces.Discrete():
            # Inside a Dict or Tuple, a choice needs an event axis of its own.
            return Part("multicategorical" if within else "categorical", (int(space.n),))
        case spaces.MultiDiscrete():
            return Part("multicategorical", tuple(int(n) for n in space.nvec.flat))
        case spaces.MultiBinary():
            return Part("bernoulli", (2,) * int(np.prod(space.shape)))
        case _:
            return Part("gaussian", (1,) * int(np.prod(space.shape or ())))


def _distribution(part: Part, outputs: Any, log_std: Any, action_masks: Any) -> Distribution:
    if part.kind == "gaussian":
        return scaled(DiagonalGaussian(outputs, jnp.broadcast_to(log_std, outputs.shape)), part.scale)
    if part.kind == "bernoulli":
        return Bernoulli(outputs)
    logits = outputs if action_masks is None else mask_logits(outputs, action_masks)
    return Categorical(logits) if part.kind == "categorical" else MultiCategorical(logits, part.sizes)


def _split(array: Array | None, widths: list[int]) -> list[Array] | list[None]:
    """The array split on its last axis into these widths; a list of None if there is no array."""
    if array is None:
        return [None] * len(widths)
    return jnp.split(array, np.cumsum(widths)[:-1], axis=-1)


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


def make_gaussian_head(
    rng: np.random.Generator, space: gym.Space, inputs: int, settings: ActionConfig
) -> PolicyHeadLike:
    """The policy head that these settings ask for; ConfigError if the space cannot have it."""
    scale = settings.scale_actions and not settings.squash_actions
    if settings.gsde:
        head: PolicyHeadLike = make_state_dependent_head(rng, space, inputs, settings.log_std, scale)
    else:
        head = make_policy_head(rng, space, inputs, settings.log_std, settings.state_dependent_std, scale)
    if not settings.squash_actions:
        return head
    try:
        return SquashedHead(head, bounds_of(space))
    except ConfigError as problem:
        raise ConfigError(f"squash_actions True: {problem}; or use squash_actions False") from problem


def make_state_dependent_head(
    rng: np.random.Generator, space: gym.Space, inputs: int, log_std: float, scale_actions: bool = False
) -> StateDependentHead:
    """A StateDependentHead for a Box, with small weights; ConfigError for another space."""
    wrong = f"gsde True needs Box actions, and action space {shown(space)} is none"
    require(isinstance(space, spaces.Box), f"{wrong}; use gsde False")
    actions = int(np.prod(space.shape or ()))
    linear = make_linear(rng, inputs, actions, scale=0.01)
    return StateDependentHead(linear, full((inputs, actions), log_std), scale_of(space) if scale_actions else None)
