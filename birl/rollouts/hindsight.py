"""Hindsight: copies of finished episodes with goals that were reached later in them.

Hindsight experience replay, HER (Andrychowicz et al. 2017, arXiv 1707.01495), with goals of the
strategy "future". The copies are put into the replay when an episode ends, with rewards of the
environment's own `compute_reward`, so an algorithm learns from them as from any other steps.
"""

from typing import Any, NamedTuple

import jax
import numpy as np

from birl.config import require
from birl.errors import snapshot_errors
from birl.rollouts.transitions import TransitionArrays
from birl.types import Array, Envs, HasGoals, PyTree, Rollout, Snapshot

ACHIEVED, DESIRED = "achieved_goal", "desired_goal"  # parts of an observation


class Row(NamedTuple):
    """One step of an environment."""

    observations: PyTree
    actions: np.ndarray
    rewards: np.ndarray
    next_observations: PyTree
    terminated: np.ndarray
    truncated: np.ndarray
    action_masks: np.ndarray | None
    next_action_masks: np.ndarray | None


class Hindsight:
    """The unfinished episodes of B environments, of which copies are made when they end."""

    def __init__(self, envs: Envs, copies: int) -> None:
        self.copies = copies  # of each step, with a goal of its own
        self._envs = require_goals(envs)
        self._unfinished: list[list[Row]] = [[] for _ in range(envs.num_envs)]

    def add(self, rollout: Rollout, key: Array) -> TransitionArrays | None:
        """The copies of the episodes that ended in this rollout; None if none did."""
        rng = np.random.default_rng([*np.asarray(key).tolist(), self.copies])
        ended = rollout.terminated | rollout.truncated
        found = []
        for t, env in np.ndindex(*rollout.rewards.shape):
            rows = self._unfinished[env]
            if not rollout.valid[t, env]:  # an episode that was lost, or the reset after an end
                rows.clear()
                continue
            rows.append(_row(rollout, t, env))
            if ended[t, env]:
                found.append(self.relabelled(_stacked(rows), rng))
                rows.clear()
        return jax.tree.map(lambda *parts: np.concatenate(parts), *found) if found else None

    def relabelled(self, episode: TransitionArrays, rng: np.random.Generator) -> TransitionArrays:
        """Copies of each step of an episode, as if a goal reached later had been desired."""
        length = len(episode.rewards)
        steps = np.repeat(np.arange(length), self.copies)
        reached = rng.integers(steps, length)  # "future": what this step or a later one reached
        goals = episode.next_observations[ACHIEVED][reached]
        copied = jax.tree.map(lambda column: column[steps], episode)
        rewards, terminated = self._envs.goal_outcomes(copied.next_observations[ACHIEVED], goals)
        terminated = copied.terminated if terminated is None else terminated
        return copied._replace(
            observations=copied.observations | {DESIRED: goals},
            next_observations=copied.next_observations | {DESIRED: goals},
            rewards=rewards,
            terminated=terminated,
            truncated=copied.truncated & ~terminated,
        )

    def snapshot(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot with the unfinished episodes added."""
        arrays: dict[str, np.ndarray] = {}
        for env, rows in enumerate(self._unfinished):
            leaves = jax.tree.leaves(_stacked(rows)) if rows else []
            arrays |= {f"hindsight/{env}/{number}": leaf for number, leaf in enumerate(leaves)}
        return Snapshot(snapshot.arrays | arrays, snapshot.values, snapshot.exact, snapshot.reason)

    @snapshot_errors()
    def restore(self, snapshot: Snapshot, like: Rollout, fresh: np.ndarray) -> None:
        """Go on from a snapshot; where an environment begins a new episode, without its steps."""
        structure = jax.tree.structure(_row(like, 0, 0))
        for env, rows in enumerate(self._unfinished):
            saved: dict[str, Any] = {} if fresh[env] else snapshot.arrays_under(f"hindsight/{env}/")
            columns = [saved[str(number)] for number in range(len(saved))]
            rows[:] = [jax.tree.unflatten(structure, row) for row in zip(*columns, strict=True)]


def require_goals(envs: Envs) -> HasGoals:
    """The environments, which can say the reward of another goal; ConfigError if they cannot."""
    parts = getattr(envs.observation_space, "spaces", {})
    names = f"the parts observation, {ACHIEVED} and {DESIRED} of a Dict"
    wrong = f"hindsight needs goals, and observation space {envs.observation_space} has not {names}"
    require({ACHIEVED, DESIRED} <= set(parts), f"{wrong}; use hindsight 0")
    remedy = "environments in this process, made by their id, and workers 0"
    wrong = f"hindsight needs compute_reward of the environments, which {type(envs).__name__} cannot reach"
    require(isinstance(envs, HasGoals), f"{wrong}; use {remedy}")
    assert isinstance(envs, HasGoals)
    envs.require_goals()
    return envs


def _row(rollout: Rollout, t: int, env: int) -> Row:
    """Step t of one environment, copied: the rollout's arrays may be written again."""
    here, following = (
        jax.tree.map(lambda x, t=t: np.array(x[t, env]), (rollout.observations, rollout.action_masks))
        for t in (t, t + 1)
    )
    steps = rollout.actions, rollout.rewards, rollout.terminated, rollout.truncated
    actions, rewards, terminated, truncated = (np.array(column[t, env]) for column in steps)
    return Row(here[0], actions, rewards, following[0], terminated, truncated, here[1], following[1])


def _stacked(rows: list[Row]) -> TransitionArrays:
    return TransitionArrays(*jax.tree.map(lambda *steps: np.stack(steps), *rows))
