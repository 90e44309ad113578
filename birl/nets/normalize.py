"""Observation and reward normalisation as part of the policy's state: pure, inside the compiled
update, in every checkpoint.

Statistics stand still while a rollout is collected and learned from, so the policy that learns is
the policy that acted.
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
from birl.types import Array, PyTree, Rollout


class Normalizer(NamedTuple):
    """What has been seen so far; each part is None if it is switched off."""

    observations: PyTree  # Moments, or a dict of them; pixels, categories and bits are left as they are
    returns: Moments | None  # of each environment's discounted sum of rewards
    running_returns: Array  # [B] those sums, of the unfinished episodes; None without `returns`


def initial_normalizer(space: gym.Space, num_envs: int, observations: bool, rewards: bool) -> Normalizer:
    """Nothing seen yet: mean 0, variance 1. ConfigError if observations should be normalised, and
    none of them are numbers.
    """
    if observations:
        _require_numbers(space)
    return Normalizer(
        observations=_initial_observation_moments(space) if observations else None,
        returns=initial_moments(()) if rewards else None,
        running_returns=jnp.asarray(np.zeros(num_envs, np.float32)) if rewards else None,
    )


def normalize_observations(moments: PyTree, observations: PyTree) -> PyTree:
    """Observations with zero mean and unit variance, clipped at 10; unchanged where there are no
    moments.
    """
    if moments is None:
        return observations
    if isinstance(observations, dict):
        return {name: normalize_observations(moments.get(name), o) for name, o in observations.items()}
    return normalize_by(moments, observations.astype(np.float32))


def update_observation_moments(moments: PyTree, observations: PyTree, counted: Array | None = None) -> PyTree:
    """Moments with T·B more observations, or those `counted` [T, B]; reset observations count, as
    does an episode's last.
    """
    if moments is None:
        return None
    if isinstance(observations, dict):
        return {name: update_observation_moments(m, observations[name], counted) for name, m in moments.items()}
    weights = None if counted is None else counted.reshape(-1)
    return update_moments(moments, observations.reshape(-1, *observations.shape[2:]).astype(np.float32), weights)


def normalize_rewards(normalizer: Normalizer, rollout: Rollout, discount: float) -> tuple[Array, Normalizer]:
    """Rewards divided by the deviation of discounted returns, clipped at 10 (Engstrom et al. 2020),
    and what has been seen by then.
    """
    if normalizer.returns is None:
        return rollout.rewards, normalizer
    # G_t = r_t + γ G_{t-1}: the library's backward recurrence, run over reversed time. The reset
    # step begins anew.
    rewards = jnp.where(rollout.valid, rollout.rewards, 0.0)
    before = (
        normalizer.running_returns
        if rollout.resets is None
        else jnp.where(rollout.resets, 0.0, normalizer.running_returns)
    )
    sums = backward_recurrence(rewards[::-1], (discount * rollout.valid)[::-1], before)[::-1]
    moments = update_moments(normalizer.returns, sums.reshape(-1), rollout.valid.reshape(-1))
    ended = rollout.terminated[-1] | rollout.truncated[-1]
    return scale_rewards(moments, rollout), normalizer._replace(
        returns=moments, running_returns=jnp.where(ended, 0.0, sums[-1])
    )


def scale_rewards(returns: Moments | None, rollout: Rollout) -> Array:
    """Rewards divided by the deviation of returns, clipped at 10; as they are without moments."""
    if returns is None:
        return rollout.rewards
    return jnp.clip(
        jnp.where(rollout.valid, rollout.rewards, 0.0) * jax.lax.rsqrt(returns.variance + 1e-8), -10.0, 10.0
    )


def update_normalizer(
    normalizer: Normalizer, rollout: Rollout, discount: float, counted: Array | None = None
) -> Normalizer:
    """What has been seen once a rollout is, for algorithms that do not normalise what they collect;
    of observations, those `counted`.
    """
    _, normalizer = normalize_rewards(normalizer, rollout, discount)
    seen = jax.tree.map(lambda x: x[:-1], rollout.observations)
    return normalizer._replace(observations=update_observation_moments(normalizer.observations, seen, counted))


def reward_scale(normalizer: Normalizer) -> Array:
    """What rewards are multiplied by that were not normalised when they came: 1 over the deviation
    of returns seen by now.
    """
    return jnp.float32(1.0) if normalizer.returns is None else jax.lax.rsqrt(normalizer.returns.variance + 1e-8)


def merge_moments(rows: PyTree) -> PyTree:
    """Moments of what n have seen apart, each with an axis [n] in front (Chan et al. 1979); in
    NumPy or JAX, as they are given.
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
    """Of n that see apart, each with a row: the moments of all observations before this rollout of
    number `index`; the rollout with rewards scaled by what all have seen with it; the row of
    `index` after it. `counted` tells which of its observations were seen at all.
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
    """Whether its values have a mean and a deviation to normalise by, of whichever type they
    are.
    """
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
    return (
        f"{shown(space)}: {'bits are 0 and 1' if isinstance(space, spaces.MultiBinary) else 'categories are one-hot'}"
    )
