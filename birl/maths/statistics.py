"""Running moments for normalisation, explained variance, and the IQM with its interval."""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float


class Moments(NamedTuple):
    """The number of samples so far, their mean and their variance."""

    # In float32, a small batch no longer adds to a count beyond 2²⁷: from there on, old samples
    # slowly lose weight.
    count: Array  # type: ignore[assignment]  # [] hides tuple.count
    mean: Array  # [...]
    variance: Array  # [...] of the population


def initial_moments(shape: tuple[int, ...]) -> Moments:
    """Moments of no samples: mean 0 and variance 1, so that normalising changes nothing."""
    return Moments(jnp.zeros(()), jnp.zeros(shape), jnp.ones(shape))


def update_moments(
    moments: Moments, batch: Float[Array, "N *shape"], weights: Bool[Array, " N"] | Float[Array, " N"] | None = None
) -> Moments:
    """Moments of all samples so far and the batch (Chan et al. 1979).

    Rows of weight 0 do not count.
    """
    weights = jnp.ones(batch.shape[0]) if weights is None else weights.astype(jnp.float32)
    weights = weights.reshape(-1, *[1] * (batch.ndim - 1))
    batch = jnp.where(weights > 0, batch, 0.0)
    batch_count = jnp.sum(weights)
    divisor = jnp.where(batch_count > 0, batch_count, 1.0)
    batch_mean = jnp.sum(batch * weights, axis=0) / divisor
    batch_variance = jnp.sum((batch - batch_mean) ** 2 * weights, axis=0) / divisor

    count = moments.count + batch_count
    share = batch_count / jnp.where(count > 0, count, 1.0)
    difference = batch_mean - moments.mean
    mean = moments.mean + share * difference
    variance = (1.0 - share) * moments.variance + share * batch_variance + share * (1.0 - share) * difference**2
    return Moments(count, mean, variance)


def normalize_by(moments: Moments, x: Float[Array, "*batch"], clip: float = 10.0) -> Float[Array, "*batch"]:
    """(x - mean) / standard deviation, clipped to [-clip, clip]."""
    return jnp.clip((x - moments.mean) / jnp.sqrt(moments.variance + 1e-8), -clip, clip)


def iqm(scores: np.ndarray) -> float:
    """Interquartile mean: the mean of the middle half of all scores (Agarwal et al. 2021)."""
    ordered = np.sort(scores, axis=None)
    cut = ordered.size // 4
    return float(np.mean(ordered[cut : ordered.size - cut]))


def bootstrap_interval(
    scores: np.ndarray,
    statistic: Callable[[np.ndarray], float] = iqm,
    level: float = 0.95,
    repetitions: int = 2000,
    seed: int = 0,
) -> tuple[float, float]:
    """Percentile bootstrap interval of a statistic of scores [runs, tasks] (Agarwal et al. 2021).

    Runs are resampled for each task separately (stratified), so that every task keeps its weight.
    """
    if scores.ndim != 2 or scores.size == 0:
        raise ValueError(f"scores have shape {scores.shape}; use [runs, tasks], or scores[:, None] for one task")
    generator = np.random.default_rng(seed)
    runs, tasks = scores.shape
    drawn = generator.integers(runs, size=(repetitions, runs, tasks))
    estimates = [statistic(scores[rows, np.arange(tasks)]) for rows in drawn]
    return percentile_interval(np.array(estimates), level)


def percentile_interval(estimates: np.ndarray, level: float = 0.95) -> tuple[float, float]:
    """The ends of the middle `level` of these estimates, such as those of a bootstrap."""
    low, high = np.quantile(estimates, [(1.0 - level) / 2.0, (1.0 + level) / 2.0])
    return float(low), float(high)
