"""Heads: from features to an action distribution, or to the value of an action."""

from typing import Any, Literal, NamedTuple, Protocol

import equinox as eqx
import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jaxtyping import Array, Float

from birl.config import require
from birl.envs.spaces import action_shape, is_composite, leaves_of, shown
from birl.maths.distributions import (
    Bernoulli,
    Categorical,
    DiagonalGaussian,
    Distribution,
    Joint,
    MultiCategorical,
    mask_logits,
)
from birl.maths.scaled import ScaledGaussian
from birl.maths.squashed import BoundedGaussian
from birl.nets.continuous import ActionBounds, scale_of
from birl.nets.encoders import Vector
from birl.nets.layers import ACTIVATIONS, Linear, full, make_linear, zeros
from birl.parts import Activation


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
