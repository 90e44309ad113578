"""Statistics of episodes on the device: what EpisodeStats counts, as arrays inside a program."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from birl.maths.count import Count, count_of
from birl.rollouts.episode_stats import RECENT_EPISODES
from birl.types import Array, Metrics


class EpisodeRing(NamedTuple):
    """The unfinished episodes of B environments, and the last finished ones."""

    returns: Array  # [B] of the unfinished episodes
    recent_returns: Array  # [20] of the last finished ones; the newest is at (finished - 1) % 20
    recent_lengths: Array  # [20]
    finished: Count  # episodes


def empty_ring(num_envs: int) -> EpisodeRing:
    """Before the first step."""
    recent = np.zeros(RECENT_EPISODES, np.float32)
    return EpisodeRing(np.zeros(num_envs, np.float32), recent, recent.astype(np.int32), count_of(0))


def add_finished(ring: EpisodeRing, ended: Array, returns: Array, lengths: Array) -> EpisodeRing:
    """The ring with the episodes added that `ended` [T, B], in the order of time.

    Of more than 20 episodes the last 20 are kept.
    """
    ended, returns, lengths = (x.reshape(-1) for x in (ended, returns, lengths))
    number = jnp.cumsum(ended, dtype=jnp.int32)  # of each episode in this rollout, from 1
    total = number[-1]
    kept = ended & (number > total - RECENT_EPISODES)
    place = (ring.finished.words[1].astype(jnp.int32) + number - 1) % RECENT_EPISODES
    place = jnp.where(kept, place, RECENT_EPISODES)  # beyond the end: dropped
    return ring._replace(
        recent_returns=ring.recent_returns.at[place].set(returns, mode="drop"),
        recent_lengths=ring.recent_lengths.at[place].set(lengths, mode="drop"),
        finished=ring.finished + total,
    )


def ring_metrics(ring: EpisodeRing, limit: int | None = None) -> Metrics:
    """Means over recent episodes, NaN before the first. Outside of JAX.

    With `limit`, the most steps of an episode, also the share of those that were cut there.
    """
    known = min(int(ring.finished), RECENT_EPISODES)
    means = [float(np.mean(np.asarray(x)[:known])) if known else np.nan for x in ring[1:3]]
    metrics: Metrics = {}
    if limit is not None and known:
        metrics["episode/truncated_share"] = float(np.mean(np.asarray(ring.recent_lengths)[:known] >= limit))
    return metrics | {"episode/return": means[0], "episode/length": means[1], "episode/count": int(ring.finished)}
