"""Policy + environments -> Rollout. The only file that steps environments for training."""

import time
from functools import partial
from typing import Any

import gymnasium as gym
import jax
import numpy as np
from gymnasium import spaces

from birl import speed
from birl.config import require
from birl.envs.actions import action_clipper
from birl.envs.snapshot import ATTRIBUTES
from birl.envs.spaces import action_shape, is_composite
from birl.errors import snapshot_errors
from birl.rollouts.episode_stats import EpisodeStats
from birl.rollouts.finite import check_finite
from birl.types import (
    NEW_EPISODES,
    NOT_SAID,
    Act,
    ActAt,
    Action,
    Array,
    Envs,
    HasAttributes,
    PyTree,
    Rollout,
    Snapshot,
    StartActing,
    Step,
)


class Collector:
    """Steps environments with a policy.

    It keeps observations, memory and the statistics of unfinished episodes between rollouts.
    """

    def __init__(
        self, envs: Envs, act: Act, length: int, memory: PyTree, until_end: bool = False, behaviour: PyTree = None
    ):
        self.envs = envs
        self.act = act
        self.length = length
        self.until_end = until_end  # also stop where all episodes end: the rows that are left are not valid
        self.behaviour = behaviour  # a template, [B, ...] zeros like the distributions to keep; None: keep none
        self.memory: PyTree = jax.tree.map(np.asarray, memory)  # [B, ...]
        self.resets = np.ones(envs.num_envs, bool)  # the next step begins an episode, with the initial memory
        self.fresh = np.zeros(envs.num_envs, bool)  # where a start from a snapshot began a new episode
        self.observations: PyTree = None  # [B, ...]
        self.masks: np.ndarray | None = None  # [B, A]
        self.episode_stats = EpisodeStats(envs.num_envs)
        self._start_acting: StartActing | None = None
        self._to_env = action_clipper(envs.action_space)

    def start(self, seed: int, snapshot: Snapshot | None = None) -> None:
        """Begin with fresh episodes, or continue from a snapshot."""
        self.resets = np.ones_like(self.resets)
        self.observations, self.masks = self.envs.reset(seed) if snapshot is None else self._restore(snapshot)

    def collect(self, policy: PyTree, key: Array, steps_per_key: int = 1) -> Rollout:
        """The next `length` steps of every environment.

        `act` gets a new random key after every `steps_per_key` steps.
        """
        rollout = self.empty_rollout()._replace(extras=[])
        try:
            successes = self._fill(rollout, self._acting(policy, key, steps_per_key))
        except Exception:
            check_finite(rollout)  # a NaN that came first is the cause
            raise
        check_finite(rollout)
        rollout = rollout._replace(extras=rollout.extras or None, successes=successes)
        self.episode_stats.count(rollout)
        return rollout

    def empty_rollout(self) -> Rollout:
        """A rollout to fill, with its first observations and memory in place."""
        shape, space = (self.length, self.envs.num_envs), self.envs.action_space
        rollout = empty_rollout(shape, space, self.observations, self.memory, self.masks, self.behaviour)
        game_over = np.zeros(shape, bool) if self.envs.has_lives else None
        return rollout._replace(resets=self.resets, game_over=game_over)

    def snapshot(self) -> Snapshot:
        """Everything needed to continue from here, exactly."""
        envs = self.envs.snapshot()
        memory = {f"collector/memory/{i}": np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(self.memory))}
        arrays = {"collector/resets": self.resets} | self.episode_stats.arrays() | memory
        arrays |= {f"envs/{name}": array for name, array in envs.arrays.items()}
        return Snapshot(arrays, self.episode_stats.values() | {"envs": envs.values}, envs.exact, envs.reason)

    def set_env_attribute(self, name: str, value: Any) -> None:
        """Set an attribute of every environment when its next episode begins."""
        envs: object = self.envs
        require(isinstance(envs, HasAttributes), f"attribute {name!r} cannot be set in {envs!r}; give it set_attribute")
        assert isinstance(envs, HasAttributes)
        envs.set_attribute(name, value)

    def _acting(self, policy: PyTree, key: Array, steps_per_key: int) -> ActAt:
        """How to act in the next rollout: in NumPy if that is faster, else by a compiled call."""
        if self._start_acting is None:
            inputs = self.observations, self.memory, self.resets, self.masks
            act = self.act if self.behaviour is not None else partial(_without_behaviour, self.act)
            self._start_acting = speed.start_acting(act, policy, inputs, key, self.length)
        return self._start_acting(policy, key, steps_per_key)

    def _fill(self, rollout: Rollout, act_at: ActAt) -> np.ndarray | None:
        """The collection loop: act, step the environments, write the step; `length` times.

        [T, B] successes are returned; None if no environment says anything about them.
        """
        seconds = self.episode_stats.seconds
        successes: np.ndarray | None = None
        for t in range(self.length):
            start = time.perf_counter()
            action = act_at(t, self.observations, self.memory, self.resets, self.masks)
            action = action._replace(actions=np.asarray(action.actions))
            acted = time.perf_counter()
            step = self.envs.step(self._to_env(action.actions))
            seconds["policy"] += acted - start
            seconds["environment"] += time.perf_counter() - acted
            _write(rollout, t, action, step)
            if step.successes is not None:
                successes = np.full(rollout.rewards.shape, NOT_SAID, np.int8) if successes is None else successes
                successes[t] = step.successes
            self.memory = action.memory
            self.resets = ~step.valid
            self.observations = step.observations
            self.masks = step.action_masks
            if self.until_end and np.all(step.terminated | step.truncated):
                break
        return successes

    @snapshot_errors()
    def _restore(self, snapshot: Snapshot) -> tuple[PyTree, np.ndarray | None]:
        envs = Snapshot(snapshot.arrays_under("envs/"), snapshot.values["envs"], snapshot.exact, snapshot.reason)
        if NEW_EPISODES in snapshot.values:
            start = self._begin_new(envs, snapshot.values[NEW_EPISODES])
        else:
            start = self.envs.restore(envs)
            self.fresh = self.envs.fresh
        self.episode_stats.restore(snapshot)
        self.episode_stats.drop_unfinished(self.fresh)
        self.resets = snapshot.array_like("collector/resets", self.resets) | self.fresh
        leaves, structure = jax.tree.flatten(self.memory)
        saved = [snapshot.array_like(f"collector/memory/{i}", leaf) for i, leaf in enumerate(leaves)]
        self.memory = jax.tree.unflatten(structure, saved)
        return start

    def _begin_new(self, envs: Snapshot, seed: int) -> tuple[PyTree, np.ndarray | None]:
        """Begin new episodes in all environments; only attributes that were set in them stay."""
        for name, value in envs.values.get(ATTRIBUTES, {}).items():
            self.set_env_attribute(name, value)
        self.fresh = np.ones(self.envs.num_envs, bool)
        return self.envs.reset(int(seed))


def _without_behaviour(act: Act, *inputs: PyTree) -> Action:
    return act(*inputs)._replace(behaviour=None)  # what is not kept is not computed


def empty_rollout(
    shape: tuple[int, int],
    space: gym.Space,
    observations: PyTree,
    memory: PyTree,
    masks: np.ndarray | None,
    behaviour: PyTree = None,
) -> Rollout:
    """A rollout [T, B] of zeros to write to, with the first observations, masks and memory."""
    length = shape[0]
    columns = () if isinstance(space, spaces.Discrete) else (int(np.prod(action_shape(space))),)
    numbers = isinstance(space, spaces.Box) or is_composite(space)
    rollout = Rollout(
        observations=jax.tree.map(lambda o: np.zeros((length + 1, *o.shape), o.dtype), observations),
        actions=np.zeros((*shape, *columns), np.float32 if numbers else np.int32),
        rewards=np.zeros(shape, np.float32),
        terminated=np.zeros(shape, bool),
        truncated=np.zeros(shape, bool),
        valid=np.zeros(shape, bool),
        memory=memory,
        action_masks=None if masks is None else np.ones((length + 1, *masks.shape), bool),
        behaviour=jax.tree.map(lambda x: np.zeros((length, *x.shape), x.dtype), behaviour),
    )
    _put(rollout.observations, 0, observations)
    _put(rollout.action_masks, 0, masks)
    return rollout


def _write(rollout: Rollout, t: int, action: Action, step: Step) -> None:
    """Write step t of a rollout."""
    _put(rollout.observations, t + 1, step.observations)
    _put(rollout.action_masks, t + 1, step.action_masks)
    rollout.actions[t] = action.actions
    rollout.rewards[t] = step.rewards
    rollout.terminated[t] = step.terminated
    rollout.truncated[t] = step.truncated
    rollout.valid[t] = step.valid
    _put(rollout.behaviour, t, action.behaviour)
    _put(rollout.game_over, t, step.game_over)
    if action.extras is not None and rollout.extras is not None:
        rollout.extras.append(action.extras)


def _put(columns: PyTree, t: int, arrays: PyTree) -> None:
    """Write row t of these columns, if there are any."""
    if isinstance(columns, np.ndarray):  # without jax.tree.leaves, which takes 4 µs
        columns[t] = arrays
    elif columns is not None:
        for column, array in zip(jax.tree.leaves(columns), jax.tree.leaves(arrays), strict=True):
            column[t] = array
