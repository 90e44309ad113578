"""gSDE: heads whose exploration noise is a function of the state (Raffin et al. 2021).

A matrix is drawn from each random key that acting gets, and the collector gives several steps the
same key. So nothing is remembered between steps, and learning does not need the matrix.

As in Stable-Baselines3, the features of PPO and A2C are not changed by the gradient of the standard
deviation, those of SAC are, and the mean of SAC is clipped.
"""

import equinox as eqx
import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jaxtyping import Array, Float

from birl.config import ConfigError, require
from birl.envs.spaces import shown
from birl.maths.distributions import Distribution
from birl.maths.squashed import BoundedGaussian
from birl.maths.state_dependent import state_dependent_gaussian
from birl.nets.continuous import ActionBounds, bounds_of, make_actor_encoder, scale_of
from birl.nets.critics import GaussianActor, make_gaussian_actor
from birl.nets.encoders import Encoder
from birl.nets.heads import PolicyHeadLike, SquashedHead, make_policy_head, scaled
from birl.nets.layers import Linear, full, make_linear
from birl.parts import ActionConfig, NetworkConfig
from birl.types import PyTree

MEAN_RANGE = (-2.0, 2.0)  # of SAC's u, before tanh


class StateDependentHead(eqx.Module):
    """A linear layer to the mean, and an exploration matrix's standard deviations."""

    linear: Linear
    log_std: Float[Array, "F A"]
    scale: ActionBounds | None = None  # what the actions are scaled to; None: they are as they are

    def __call__(self, features: Array, action_masks: Array | None) -> Distribution:
        gaussian = state_dependent_gaussian(self.linear(features), jax.lax.stop_gradient(features), self.log_std)
        return scaled(gaussian, self.scale)


class StateDependentActor(eqx.Module):
    """SAC's π(·|s) with gSDE: a squashed Gaussian of actions in [-1, 1]."""

    encoder: Encoder
    head: Linear
    log_std: Float[Array, "F A"]

    def __call__(self, observations: PyTree) -> BoundedGaussian:
        features = self.encoder(observations)
        means = jnp.clip(self.head(features), *MEAN_RANGE)
        ones = (1.0,) * means.shape[-1]
        return BoundedGaussian(
            state_dependent_gaussian(means, features, self.log_std), tuple(-one for one in ones), ones
        )


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


def make_sac_actor(
    rng: np.random.Generator, space: gym.Space, numbers: int, network: NetworkConfig, actions: ActionConfig
) -> GaussianActor | StateDependentActor:
    """SAC's actor for observations of this space, with or without gSDE."""
    if not actions.gsde:
        return make_gaussian_actor(rng, space, numbers, network)
    encoder, width = make_actor_encoder(rng, space, network)
    head = make_linear(rng, width, numbers, scale=0.01)
    return StateDependentActor(encoder, head, full((width, numbers), actions.log_std))


def steps_per_matrix(actions: ActionConfig, rollout_length: int) -> int:
    """The steps of a rollout that share an exploration matrix; 1 without gSDE."""
    if not actions.gsde:
        return 1
    return rollout_length if actions.gsde_every is None else actions.gsde_every


def matrix_steps(actions: ActionConfig, rollout_length: int, in_warmup: Array) -> int | Array:
    """The same as long as actions are not uniform random: those are not repeated."""
    steps = steps_per_matrix(actions, rollout_length)
    if isinstance(in_warmup, jax.core.Tracer):
        return jnp.where(in_warmup, 1, steps)
    return 1 if in_warmup else steps


def validate_gsde(actions: ActionConfig, length: int) -> None:
    """Check that the settings of gSDE belong to a run with gSDE, and go with the others."""
    every = actions.gsde_every
    remedy = "use gsde True, or gsde_every None"
    require(actions.gsde or every is None, f"gsde_every {every} does nothing without gsde; {remedy}")
    wrong = f"gsde_every {every} exceeds rollout_length {length}, and each rollout begins with a new matrix"
    require(every is None or every <= length, f"{wrong}; use at most {length}, or None for one a rollout")
    wrong = "state_dependent_std True does not go with gsde True: with gSDE the deviation depends on the state already"
    require(not (actions.gsde and actions.state_dependent_std), f"{wrong}; use one of them")


def require_own_head(actions: ActionConfig, make_network: object) -> None:
    """Raise ConfigError if gSDE should explore with a network that has no exploration matrix."""
    wrong = (
        f"gsde True does not go with make_network {make_network!r}: the exploration matrix is part of Birl's network"
    )
    require(make_network is None or not actions.gsde, f"{wrong}; use gsde False")
