"""Policy + environments -> Rollout. The only file that steps environments for training."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Literal

import jax
import numpy as np
from gymnasium import spaces

from birl.accel.numpy_acting import ActAt, Start, compiled, take_apart
from birl.envs.spaces import action_shape, is_composite
from birl.errors import NonFiniteError, snapshot_errors
from birl.rollouts.episode_stats import EpisodeStats
from birl.types import Action, Array, Envs, Metrics, PyTree, Rollout, Snapshot, Step

# What is kept of what the policy's encoder makes of the observations: nothing; its last layer's
# outputs, for who asks again what the policy makes of them; or those of all layers, for who goes
# back through them to a gradient.
Keep = Literal["nothing", "features", "layers"]
Act = Callable[
    [PyTree, PyTree, PyTree, Array, Array | None, Array | None], Action
]  # policy, observations, memory, resets, masks, key


class Collector:
    """Steps environments with a policy and keeps what lives between rollouts: observations, memory,
    unfinished episodes.
    """

    def __init__(
        self,
        envs: Envs,
        act: Act,
        length: int,
        memory: PyTree,
        until_end: bool = False,
        behaviour: PyTree = None,
        keep: Keep = "nothing",
    ):
        self.envs, self.act, self.length, self.behaviour = (
            envs,
            act,
            length,
            behaviour,
        )  # arrays [B, ...] like those to keep with each step
        self.until_end = until_end  # stop where the episodes end, too: the rows that are left are not valid
        self.keep: Keep = keep
        self.memory: PyTree = jax.tree.map(np.asarray, memory)  # [B, ...]
        self.resets = np.ones(envs.num_envs, bool)  # begins an episode: with the initial memory, not with this one
        self.observations: PyTree = None  # [B, ...]
        self.masks: np.ndarray | None = None  # [B, A]
        self._begin: Start | None = None  # how to begin a rollout
        self.episode_stats = EpisodeStats(envs.num_envs)
        self._for_envs = for_envs(envs.action_space)

    def start(self, seed: int, snapshot: Snapshot | None = None) -> None:
        """Begin with fresh episodes, or go on where `snapshot` was taken."""
        self.resets = np.ones_like(self.resets)
        self.observations, self.masks = self.envs.reset(seed) if snapshot is None else self._restore(snapshot)

    def __call__(self, policy: PyTree, key: Array) -> Rollout:
        """The next `length` steps of every environment."""
        rollout = self.empty_rollout()._replace(seen=[])
        try:
            self._fill(rollout, self._acting(policy, key))
        except Exception:
            check_finite(rollout)  # if a NaN came first, it is the cause
            raise
        check_finite(rollout)
        self.episode_stats.count(rollout)
        return rollout._replace(seen=rollout.seen or None)

    def empty_rollout(self) -> Rollout:
        """A rollout to fill, with its first observations and memory in place."""
        rollout = _empty_rollout(self.length, self.envs, self.observations, self.memory, self.masks, self.behaviour)
        return rollout._replace(resets=self.resets)

    def _acting(self, policy: PyTree, key: Array) -> ActAt:
        """How to act in the next rollout."""
        if self._begin is None:
            inputs = self.observations, self.memory, self.resets, self.masks
            act = partial(_keeping, self.act, self.behaviour is not None, self.keep)  # what is not kept is not computed
            self._begin = take_apart(act, policy, inputs, key, self.length) or compiled(act, policy, self.length)
        return self._begin(policy, key)

    def _fill(self, rollout: Rollout, act_at: ActAt) -> None:
        """All steps of a rollout."""
        seconds = self.episode_stats.seconds
        for t in range(self.length):
            start = time.perf_counter()
            action = act_at(t, self.observations, self.memory, self.resets, self.masks)
            action = action._replace(actions=np.asarray(action.actions))
            acted = time.perf_counter()
            step = self.envs.step(self._for_envs(action.actions))
            seconds["policy"] += acted - start
            seconds["environment"] += time.perf_counter() - acted
            _write(rollout, t, action, step)
            self.memory, self.resets = action.memory, ~step.valid
            self.observations, self.masks = step.observations, step.action_masks
            if self.until_end and np.all(step.terminated | step.truncated):
                return

    def metrics(self) -> Metrics:
        """Mean return and length of the last finished episodes, NaN before the first; seconds spent
        so far.
        """
        return self.episode_stats.metrics()

    def snapshot(self) -> Snapshot:
        """Everything needed to go on from here, exactly."""
        envs = self.envs.snapshot()
        memory = {f"collector/memory/{i}": np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(self.memory))}
        arrays = {"collector/resets": self.resets} | self.episode_stats.arrays() | memory
        values = self.episode_stats.values() | {"envs": envs.values}
        return Snapshot(
            arrays | {f"envs/{name}": a for name, a in envs.arrays.items()}, values, envs.exact, envs.reason
        )

    @snapshot_errors()
    def _restore(self, snapshot: Snapshot) -> tuple[PyTree, np.ndarray | None]:
        start = self.envs.restore(
            Snapshot(snapshot.arrays_under("envs/"), snapshot.values["envs"], snapshot.exact, snapshot.reason)
        )
        fresh = self.envs.fresh  # what was remembered of these episodes is of no use: they begin anew
        self.episode_stats.restore(snapshot)
        self.episode_stats.drop_unfinished(fresh)
        self.resets = snapshot.array_like("collector/resets", self.resets) | fresh
        leaves, structure = jax.tree.flatten(self.memory)
        self.memory = jax.tree.unflatten(
            structure, [snapshot.array_like(f"collector/memory/{i}", leaf) for i, leaf in enumerate(leaves)]
        )
        return start

    def timed(self, name: str) -> AbstractContextManager[None]:
        """Add what runs inside to `time/NAME_seconds`."""
        return self.episode_stats.timed(name)


def check_finite(rollout: Rollout) -> None:
    """Raise NonFiniteError, naming array, environment and step, if an observation or a reward is
    not a number.
    """
    arrays = {"reward": rollout.rewards}
    observations = rollout.observations if isinstance(rollout.observations, dict) else {"": rollout.observations}
    arrays |= {f"observation {name}".strip(): array for name, array in observations.items() if array.dtype.kind == "f"}
    for name, array in arrays.items():
        bad = ~np.isfinite(array)
        if bad.any():
            t, i = np.argwhere(bad)[0][:2]
            raise NonFiniteError(
                f"{name} of environment {i} is {array[t, i]} at step {t} of the rollout; training stopped before learning from it"
            )


def learnable(rollout: Rollout, clip_rewards: bool) -> Rollout:
    """What is learned from of a rollout that has been counted: if they are clipped, of its rewards
    only the signs (Mnih et al. 2015).
    """
    return rollout._replace(game_over=None, rewards=np.sign(rollout.rewards) if clip_rewards else rollout.rewards)


def finite_metrics(metrics: Metrics) -> Metrics:
    """The metrics as plain numbers; NonFiniteError if a gradient is not finite, so that its step is
    never handed on.
    """
    numbers = {
        name: float(np.asarray(value)) for name, value in metrics.items()
    }  # float() of JAX's own takes 17 µs more each
    broken = [value for name, value in numbers.items() if name.endswith("grad_norm") and not np.isfinite(value)]
    if broken:
        raise NonFiniteError(
            f"the gradient's norm is {broken[0]}; the update was thrown away. Lower learning_rate, set max_grad_norm or switch on "
            f"normalize_observations; metrics of the update: { {name: round(value, 4) for name, value in numbers.items()} }"
        )
    return numbers


def _empty_rollout(
    length: int, envs: Envs, observations: PyTree, memory: PyTree, masks: np.ndarray | None, behaviour: PyTree
) -> Rollout:
    shape, space = (length, envs.num_envs), envs.action_space
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
        game_over=np.zeros(shape, bool) if envs.has_lives else None,
    )
    _put(rollout.observations, 0, observations)
    _put(rollout.action_masks, 0, masks)
    return rollout


def _write(rollout: Rollout, t: int, action: Action, step: Step) -> None:
    _put(rollout.observations, t + 1, step.observations)
    _put(rollout.action_masks, t + 1, step.action_masks)
    rollout.actions[t], rollout.rewards[t] = action.actions, step.rewards
    rollout.terminated[t], rollout.truncated[t], rollout.valid[t] = step.terminated, step.truncated, step.valid
    _put(rollout.behaviour, t, action.behaviour)
    _put(rollout.game_over, t, step.game_over)
    if action.seen is not None and rollout.seen is not None:
        rollout.seen.append(action.seen)


def _put(columns: PyTree, t: int, arrays: PyTree) -> None:
    """Write row t of a rollout, unless it has no such columns."""
    if isinstance(columns, np.ndarray):  # by itself: taking it out of a tree is 4 µs
        columns[t] = arrays
    elif columns is not None:
        for column, array in zip(jax.tree.leaves(columns), jax.tree.leaves(arrays), strict=True):
            column[t] = array


def _keeping(act: Act, behaviour: bool, keep: Keep, *inputs: PyTree) -> Action:
    action = act(*inputs)
    action = action if behaviour else action._replace(behaviour=None)
    if keep == "layers" or action.seen is None:
        return action
    return action._replace(seen=None if keep == "nothing" else (*[None] * (len(action.seen) - 1), action.seen[-1]))


def for_envs(space: spaces.Space) -> Callable[[np.ndarray], np.ndarray]:
    """What to do with a policy's actions [B, ...] before the environment gets them: a Box's are
    clipped, the stored ones are not.

    Those of a Dict or Tuple stay flat, and are clipped where the tree is made of them.
    """
    if isinstance(space, spaces.Box):
        shape, low, high = space.shape, space.low, space.high
        return lambda actions: np.minimum(np.maximum(actions.reshape(-1, *shape), low), high)
    shape = action_shape(space)
    return lambda actions: actions.reshape(-1, *shape)
