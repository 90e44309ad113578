"""Observation and reward normalisation, as part of an algorithm's State and of every checkpoint.

The statistics do not change while a rollout is collected and learned from, so the update evaluates
the same policy that acted.
"""

from typing import NamedTuple

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from birl.config import ConfigError
from birl.envs.spaces import holds_pixels, shown
from birl.maths.returns import backward_recurrence
from birl.maths.statistics import Moments, initial_moments, normalize_by, update_moments
from birl.nets.layers import zeros
from birl.parts import NormalizeConfig
from birl.types import Array, PyTree, Rollout


class Normalizer(NamedTuple):
    """Running statistics of observations and returns; each part is None if it is switched off."""

    observations: PyTree  # Moments, or a dict of them; pixels, categories and bits are not normalised
    returns: Moments | None  # of each environment's discounted sum of rewards
    running_returns: Array  # [B] these sums for the unfinished episodes; None without `returns`


def initial_normalizer(space: gym.Space, num_envs: int, config: NormalizeConfig) -> Normalizer:
    """A Normalizer before the first sample: mean 0, variance 1.

    ConfigError if observations should be normalised but none of their parts are numbers.
    """
    observations, rewards = config.normalize_observations, config.normalize_rewards
    if observations:
        _require_numbers(space)
    return Normalizer(
        observations=_initial_observation_moments(space) if observations else None,
        returns=initial_moments(()) if rewards else None,
        running_returns=zeros(num_envs) if rewards else None,
    )


def normalize_observations(moments: PyTree, observations: PyTree) -> PyTree:
    """Observations with zero mean and unit variance, clipped to ±10; unchanged without moments."""
    if moments is None:
        return observations
    if isinstance(observations, dict):
        return {name: normalize_observations(moments.get(name), o) for name, o in observations.items()}
    return normalize_by(moments, observations.astype(np.float32))


def update_observation_moments(moments: PyTree, observations: PyTree, counted: Array | None = None) -> PyTree:
    """Moments updated with observations [T, B, ...], or only with those where `counted` [T, B].

    The first and the last observation of an episode count, too.
    """
    if moments is None:
        return None
    if isinstance(observations, dict):
        return {name: update_observation_moments(m, observations[name], counted) for name, m in moments.items()}
    weights = None if counted is None else counted.reshape(-1)
    return update_moments(moments, observations.reshape(-1, *observations.shape[2:]).astype(np.float32), weights)


def normalize_rewards(normalizer: Normalizer, rollout: Rollout, discount: float) -> tuple[Array, Normalizer]:
    """Normalised rewards, and the updated Normalizer (Engstrom et al. 2020).

    Rewards are divided by the standard deviation of discounted returns, and clipped to ±10.
    """
    if normalizer.returns is None:
        return rollout.rewards, normalizer
    # G_t = r_t + γ G_{t-1}: the backward recurrence over reversed time. A reset step sets it to 0.
    rewards = jnp.where(rollout.valid, rollout.rewards, 0.0)
    before = normalizer.running_returns
    if rollout.resets is not None:
        before = jnp.where(rollout.resets, 0.0, before)
    sums = backward_recurrence(rewards[::-1], (discount * rollout.valid)[::-1], before)[::-1]
    moments = update_moments(normalizer.returns, sums.reshape(-1), rollout.valid.reshape(-1))
    ended = rollout.terminated[-1] | rollout.truncated[-1]
    running_returns = jnp.where(ended, 0.0, sums[-1])
    return scale_rewards(moments, rollout), normalizer._replace(returns=moments, running_returns=running_returns)


def scale_rewards(returns: Moments | None, rollout: Rollout) -> Array:
    """Rewards divided by the standard deviation of returns, clipped to ±10.

    Without moments they are unchanged.
    """
    if returns is None:
        return rollout.rewards
    rewards = jnp.where(rollout.valid, rollout.rewards, 0.0)
    return jnp.clip(rewards * jax.lax.rsqrt(returns.variance + 1e-8), -10.0, 10.0)


def update_normalizer(
    normalizer: Normalizer, rollout: Rollout, discount: float, counted: Array | None = None
) -> Normalizer:
    """The Normalizer updated with a rollout, whose rewards stay as they are.

    For algorithms that normalise when they learn. Only observations where `counted` [T, B] count.
    """
    _, normalizer = normalize_rewards(normalizer, rollout, discount)
    observations = jax.tree.map(lambda x: x[:-1], rollout.observations)
    moments = update_observation_moments(normalizer.observations, observations, counted)
    return normalizer._replace(observations=moments)


def reward_scale(normalizer: Normalizer) -> Array:
    """The factor for rewards from a replay: 1 / standard deviation of returns; 1 if off."""
    return jnp.float32(1.0) if normalizer.returns is None else jax.lax.rsqrt(normalizer.returns.variance + 1e-8)


def merge_moments(rows: PyTree) -> PyTree:
    """Merge the moments of n workers (Chan et al. 1979).

    The arrays have a leading axis [n]. NumPy arrays give NumPy arrays, and JAX arrays JAX arrays.
    """
    if rows is None:
        return None
    if isinstance(rows, dict):
        return {name: merge_moments(part) for name, part in rows.items()}
    count = rows.count.sum()
    shares = (rows.count / (count + (count == 0))).reshape(-1, *[1] * (rows.mean.ndim - 1))
    mean = (shares * rows.mean).sum(0)
    variance = (shares * (rows.variance + (rows.mean - mean) ** 2)).sum(0)
    return Moments(count, mean, variance + (count == 0))


def normalize_for_worker(
    rows: Normalizer, index: Array, rollout: Rollout, discount: float, counted: Array | None = None
) -> tuple[PyTree, Rollout, Normalizer]:
    """Normalise the rollout of worker `index` by the merged statistics of n workers.

    Each worker has a row of `rows`. Returns the merged observation moments before this rollout, the
    rollout with rewards scaled by the merged return moments after it, and the worker's new row.
    Only observations where `counted` [T, B] count.
    """
    own = update_normalizer(jax.tree.map(lambda x: x[index], rows), rollout, discount, counted)
    after = jax.tree.map(lambda x, mine: x.at[index].set(mine), rows, own)
    scaled = rollout._replace(rewards=scale_rewards(merge_moments(after.returns), rollout))
    return merge_moments(rows.observations), scaled, own


def _initial_observation_moments(space: gym.Space) -> PyTree:
    if isinstance(space, spaces.Dict):
        return {name: _initial_observation_moments(part) for name, part in space.items() if _is_numbers(part)}
    return initial_moments(space.shape or ())


def _is_numbers(space: gym.Space) -> bool:
    """Whether the values of this space are numbers that can be normalised."""
    return isinstance(space, spaces.Box) and not holds_pixels(space)


def _require_numbers(space: gym.Space) -> None:
    parts = dict(space.spaces) if isinstance(space, spaces.Dict) else {"": space}
    if any(_is_numbers(part) for part in parts.values()):
        return
    reasons = [f"{name}: {_why_not_numbers(part)}".removeprefix(": ") for name, part in parts.items()]
    raise ConfigError(
        f"normalize_observations: the observation has no numbers to normalise: {'; '.join(reasons)}. So leave it off"
    )


def _why_not_numbers(space: gym.Space) -> str:
    if isinstance(space, spaces.Box):
        return f"{shown(space)}: images are divided by 255 anyway"
    reason = "bits are 0 and 1" if isinstance(space, spaces.MultiBinary) else "categories are one-hot"
    return f"{shown(space)}: {reason}"
