"""Rollouts of compiled environments: acting and stepping are one loop inside a program."""

from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from birl.envs.compiled.copies import CompiledCopies, Copies
from birl.maths.count import Count, count_of
from birl.maths.keys import step_keys
from birl.rollouts.episode_stats import RECENT_EPISODES
from birl.rollouts.finite import Problem, first_problem
from birl.rollouts.learning import UpdateState, learn_in_program
from birl.types import Act, Array, Metrics, PyTree, Rollout


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


State = TypeVar("State")


class Position(NamedTuple):
    """Where the environments, the policy's memory and the episode statistics are."""

    copies: Copies
    memory: PyTree  # [B, ...]
    episodes: EpisodeRing


class Row(NamedTuple):
    """One step of a rollout, [B, ...]."""

    observations: PyTree
    masks: Array | None
    actions: Array
    rewards: Array
    terminated: Array
    truncated: Array
    valid: Array
    returns: Array  # of the episodes, up to and with this step
    lengths: Array


@dataclass(frozen=True, eq=False)
class CompiledCollector:
    """How rollouts are collected: pure, for use inside a program."""

    copies: CompiledCopies
    act: Act
    length: int  # T

    def start(self, key: Array, memory: PyTree) -> Position:
        """All environments at the beginning of an episode, with the initial memory."""
        return Position(self.copies.reset(key), memory, empty_ring(self.copies.num_envs))

    def collect(
        self, position: Position, policy: PyTree, key: Array, steps_per_key: int = 1
    ) -> tuple[Position, Rollout]:
        """The next T steps of every environment, and where they are then.

        `act` gets a new random key after every `steps_per_key` steps.
        """
        keys = step_keys(key, self.length)
        steps = jnp.arange(self.length)
        after, rows = jax.lax.scan(
            lambda now, key: self._step(now, policy, key), position, keys[steps - steps % steps_per_key]
        )
        ended = rows.terminated | rows.truncated
        after = after._replace(episodes=add_finished(after.episodes, ended, rows.returns, rows.lengths))
        return after, Rollout(
            observations=_with_last(rows.observations, after.copies.observations),
            actions=rows.actions,
            rewards=rows.rewards,
            terminated=rows.terminated,
            truncated=rows.truncated,
            valid=rows.valid,
            memory=position.memory,
            action_masks=_with_last(rows.masks, after.copies.masks),
            resets=_begins(position.copies),
        )

    def _step(self, now: Position, policy: PyTree, key: Array) -> tuple[Position, Row]:
        """Act, and step the environments."""
        copies = now.copies
        action = self.act(policy, copies.observations, now.memory, _begins(copies), copies.masks, key)
        after, step = self.copies.step(copies, action.actions)
        returns = now.episodes.returns + step.rewards
        ended = step.terminated | step.truncated
        row = Row(
            copies.observations, copies.masks, action.actions,
            step.rewards, step.terminated, step.truncated, step.valid, returns, after.lengths,
        )  # fmt: skip
        episodes = now.episodes._replace(returns=jnp.where(ended, 0.0, returns))
        return Position(after, action.memory, episodes), row


class TracedSource:
    """The source of rollouts that a cycle sees while it is compiled: its arrays are tracers."""

    def __init__(self, collector: CompiledCollector, position: Position, clip_rewards: bool, replay: PyTree) -> None:
        self.position = position
        self.replay = replay
        self.problem: Problem | None = None  # of the newest rollout
        self._collector = collector
        self._clip_rewards = clip_rewards

    def collect(self, policy: PyTree, key: Array, steps_per_key: int = 1) -> Rollout:
        """The next rollout, ready to learn from."""
        self.position, rollout = self._collector.collect(self.position, policy, key, steps_per_key)
        self.problem = first_problem(rollout)
        return rollout._replace(rewards=jnp.sign(rollout.rewards)) if self._clip_rewards else rollout

    def learn(self, update: UpdateState[State], state: State, rollout: Rollout, config: Any) -> tuple[State, Metrics]:
        """Add the rollout to the replay, and update the state, with batches if steps are due."""
        state, self.replay, metrics = learn_in_program(update, state, self.replay, rollout, config)
        return state, metrics


def _begins(copies: Copies) -> Array:
    """[B] whether the next step is the first one of an episode."""
    return (copies.lengths == 0) & ~copies.ended


def _with_last(rows: PyTree, last: PyTree) -> PyTree:
    """[T, B, ...] leaves with one more row."""
    return jax.tree.map(lambda x, end: jnp.concatenate([x, end[None]]), rows, last)
