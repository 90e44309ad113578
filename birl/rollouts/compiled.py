"""Rollouts of compiled environments: acting and stepping are one loop inside a program."""

from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from birl.envs.compiled.copies import CompiledCopies, Copies
from birl.maths.keys import step_keys
from birl.rollouts.episode_ring import EpisodeRing, add_finished, empty_ring
from birl.rollouts.learning import UpdateState, learn_from_replay
from birl.rollouts.problems import Problem, first_problem
from birl.types import Act, Array, Metrics, PyTree, Rollout

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
        state, self.replay, metrics = learn_from_replay(update, state, self.replay, rollout, config)
        return state, metrics


def _begins(copies: Copies) -> Array:
    """[B] whether the next step is the first one of an episode."""
    return (copies.lengths == 0) & ~copies.ended


def _with_last(rows: PyTree, last: PyTree) -> PyTree:
    """[T, B, ...] leaves with one more row."""
    return jax.tree.map(lambda x, end: jnp.concatenate([x, end[None]]), rows, last)
