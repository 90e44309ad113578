"""Policy + environments -> Rollout. The only file that steps environments for training."""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Literal

import jax
import numpy as np
from gymnasium import spaces

from birl.data.stepwise import ActAt, Start, compiled, take_apart
from birl.data.tally import Tally
from birl.envs.halves import joined_masks
from birl.envs.spaces import action_shape, is_composite
from birl.errors import NonFiniteError
from birl.types import Action, Array, Envs, Metrics, PyTree, Rollout, Step, World

# What is kept of what the policy's encoder makes of the observations: nothing; its last layer's outputs, for who asks again what the policy
# makes of them; or those of all layers, for who goes back through them to a gradient.
Keep = Literal["nothing", "features", "layers"]
Act = Callable[[PyTree, PyTree, PyTree, Array, Array | None, Array | None], Action]  # policy, observations, memory, resets, masks, key


@dataclass
class Part:
    """Environments that step together, where they stand, and what was last done with them."""

    envs: Envs
    rows: slice  # where they are among all
    memory: PyTree  # [b, ...]
    resets: np.ndarray  # [b] begins an episode: its memory must be emptied
    observations: PyTree = None  # [b, ...]
    masks: np.ndarray | None = None
    start: Start | None = None  # how to begin a rollout
    act_at: ActAt = field(init=False)  # how to act in this one
    action: Action = field(init=False)  # sent, and its outcome not yet received


class Collector:
    """Steps environments with a policy and keeps what lives between rollouts: observations, memory, unfinished episodes."""

    def __init__(
        self, envs: Envs, act: Act, length: int, memory: PyTree, until_end: bool = False, behaviour: PyTree = None, keep: Keep = "nothing"
    ):
        self.envs, self.act, self.length, self.behaviour = envs, act, length, behaviour  # arrays [B, ...] like those to keep with each step
        self.until_end = until_end  # stop where the episodes end, too: the rows that are left are not valid
        self.parts = [
            Part(part, rows, _rows_of(memory, rows), np.zeros(part.num_envs, bool)) for part, rows in zip(*_divide(envs), strict=True)
        ]
        self.keep: Keep = keep if len(self.parts) == 1 else "nothing"  # what two parts have seen is not in one array
        self.tally = Tally(envs.num_envs)
        self._for_envs = for_envs(envs.action_space)

    def start(self, seed: int, world: World | None = None) -> None:
        """Begin with fresh episodes, or go on where `world` was taken."""
        observations, masks = self.envs.reset(seed) if world is None else self._restore(world)
        for part in self.parts:
            part.observations, part.masks = _rows_of((observations, masks), part.rows)

    def __call__(self, policy: PyTree, key: Array) -> Rollout:
        """The next `length` steps of every environment."""
        for number, part in enumerate(self.parts):
            part.memory, part.resets = jax.tree.map(partial(_forget, part.resets), part.memory), np.zeros_like(part.resets)
            part.act_at = self._start(part, policy, key if number == 0 else np.asarray(key) ^ np.uint32(number))
        rollout = self.empty_rollout()._replace(seen=[])
        try:
            self._fill(rollout)
        except Exception:
            check_finite(rollout)  # if a NaN came first, it is the cause
            raise
        check_finite(rollout)
        self.tally.count(rollout)
        return rollout._replace(seen=rollout.seen or None)

    def empty_rollout(self) -> Rollout:
        """A rollout to fill, with its first observations and memory in place."""
        return _empty_rollout(self.length, self.envs, *self._joined(), self.behaviour)

    def _joined(self) -> tuple[PyTree, PyTree, np.ndarray | None]:
        """Observations, memory and masks of all environments."""
        observations, memory = (_concatenate([getattr(part, name) for part in self.parts]) for name in ("observations", "memory"))
        return observations, memory, joined_masks([part.masks for part in self.parts], [part.envs.num_envs for part in self.parts])

    def _start(self, part: Part, policy: PyTree, key: Array) -> ActAt:
        if part.start is None:
            inputs = part.observations, part.memory, part.resets, part.masks
            act = partial(_keeping, self.act, self.behaviour is not None, self.keep)  # what is not kept is not computed
            part.start = take_apart(act, policy, inputs, key, self.length) or compiled(act, policy, self.length)
        return part.start(policy, key)

    def _fill(self, rollout: Rollout) -> None:
        """All steps of a rollout. Of two parts, one steps while the other is acted on."""
        for t in range(self.length):
            for part in self.parts:
                if t > 0:
                    self._receive(part, rollout, t - 1)
                if t > 0 and self.until_end and np.all(rollout.terminated[t - 1] | rollout.truncated[t - 1]):
                    return
                self._send(part, t)
        for part in self.parts:
            self._receive(part, rollout, self.length - 1)

    def _send(self, part: Part, t: int) -> None:
        before = time.perf_counter()
        action = part.act_at(t, part.observations, part.memory, part.resets, part.masks)
        part.action = action._replace(actions=np.asarray(action.actions))
        self.tally.seconds["policy"] += time.perf_counter() - before
        part.envs.send(self._for_envs(part.action.actions))

    def _receive(self, part: Part, rollout: Rollout, t: int) -> None:
        before = time.perf_counter()
        step = part.envs.receive()
        self.tally.seconds["environment"] += time.perf_counter() - before
        _write(rollout, t, part, step)
        part.memory, part.resets = part.action.memory, ~step.valid
        part.observations, part.masks = step.observations, step.action_masks

    def masks_after(self, rollout: Rollout) -> np.ndarray | None:
        """[T, B, A] true where an action is allowed after each step of the rollout that has just been collected; None if everything is."""
        now = self._joined()[2]
        if rollout.action_masks is None or now is None:
            return None
        return np.concatenate([rollout.action_masks[1:], now[None]])

    def metrics(self) -> Metrics:
        """Mean return and length of the last finished episodes, NaN before the first; seconds spent so far."""
        return self.tally.metrics()

    def world(self) -> World:
        """Everything needed to go on from here, exactly."""
        envs = self.envs.snapshot()
        memory = {f"collector/memory/{i}": np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(self._joined()[1]))}
        arrays = {"collector/resets": np.concatenate([part.resets for part in self.parts])} | self.tally.arrays() | memory
        values = self.tally.values() | {"envs": envs.values}
        return World(arrays | {f"envs/{name}": a for name, a in envs.arrays.items()}, values, envs.exact, envs.reason)

    def _restore(self, world: World) -> tuple[PyTree, np.ndarray | None]:
        arrays, values = world.arrays, world.values
        start = self.envs.restore(World(world.arrays_under("envs/"), values["envs"], world.exact, world.reason))
        fresh = self.envs.fresh  # what was remembered of these episodes is of no use: they begin anew
        self.tally.restore(world)
        self.tally.lose(fresh)
        for part in self.parts:
            part.resets = (arrays["collector/resets"] | fresh)[part.rows]
            leaves = [arrays[f"collector/memory/{i}"][part.rows] for i in range(len(jax.tree.leaves(part.memory)))]
            part.memory = jax.tree.unflatten(jax.tree.structure(part.memory), leaves)
        return start

    def timed(self, name: str) -> AbstractContextManager[None]:
        """Add what runs inside to `time/NAME_seconds`."""
        return self.tally.timed(name)


def check_finite(rollout: Rollout) -> None:
    """Raise NonFiniteError, naming array, environment and step, if an observation or a reward is not a number."""
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
    """What is learned from of a rollout that has been counted: if they are clipped, of its rewards only the signs (Mnih et al. 2015)."""
    return rollout._replace(game_over=None, rewards=np.sign(rollout.rewards) if clip_rewards else rollout.rewards)


def finite_metrics(metrics: Metrics) -> Metrics:
    """The metrics as plain numbers; NonFiniteError if a gradient is not finite, so that its step is never handed on."""
    numbers = {name: float(np.asarray(value)) for name, value in metrics.items()}  # float() of JAX's own takes 17 µs more each
    broken = [value for name, value in numbers.items() if name.endswith("grad_norm") and not np.isfinite(value)]
    if broken:
        raise NonFiniteError(
            f"the gradient's norm is {broken[0]}; the update was thrown away. Lower learning_rate, set max_grad_norm or switch on "
            f"normalize_observations; metrics of the update: { {name: round(value, 4) for name, value in numbers.items()} }"
        )
    return numbers


def _empty_rollout(length: int, envs: Envs, observations: PyTree, memory: PyTree, masks: np.ndarray | None, behaviour: PyTree) -> Rollout:
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
        action_masks=None if masks is None else np.ones((length, *masks.shape), bool),
        behaviour=jax.tree.map(lambda x: np.zeros((length, *x.shape), x.dtype), behaviour),
        game_over=np.zeros(shape, bool) if envs.has_lives else None,
    )
    _put(rollout.observations, 0, slice(None), observations)
    return rollout


def _write(rollout: Rollout, t: int, part: Part, step: Step) -> None:
    rows, action = part.rows, part.action
    _put(rollout.observations, t + 1, rows, step.observations)
    rollout.actions[t, rows], rollout.rewards[t, rows] = action.actions, step.rewards
    rollout.terminated[t, rows], rollout.truncated[t, rows], rollout.valid[t, rows] = step.terminated, step.truncated, step.valid
    _put(rollout.behaviour, t, rows, action.behaviour)
    _put(rollout.game_over, t, rows, step.game_over)
    _put(rollout.action_masks, t, rows, True if part.masks is None else part.masks)
    if action.seen is not None and rollout.seen is not None:
        rollout.seen.append(action.seen)


def _put(columns: PyTree, t: int, rows: slice, arrays: PyTree) -> None:
    """Write row t of a rollout, unless it has no such columns."""
    if isinstance(columns, np.ndarray):  # by itself: taking it out of a tree is 4 µs
        columns[t, rows] = arrays
    elif columns is not None:
        for column, array in zip(jax.tree.leaves(columns), jax.tree.leaves(arrays), strict=True):
            column[t, rows] = array


def _keeping(act: Act, behaviour: bool, keep: Keep, *inputs: PyTree) -> Action:
    action = act(*inputs)
    action = action if behaviour else action._replace(behaviour=None)
    if keep == "layers" or action.seen is None:
        return action
    return action._replace(seen=None if keep == "nothing" else (*[None] * (len(action.seen) - 1), action.seen[-1]))


def _divide(envs: Envs) -> tuple[Sequence[Envs], list[slice]]:
    """The parts that step by themselves, and their rows among all."""
    parts: Sequence[Envs] = getattr(envs, "halves", (envs,))
    bounds = np.cumsum([0, *[part.num_envs for part in parts]]).tolist()
    return parts, [slice(first, end) for first, end in pairwise(bounds)]


def _rows_of(tree: PyTree, rows: slice) -> PyTree:
    return jax.tree.map(lambda x: np.asarray(x)[rows], tree)


def _concatenate(trees: list[PyTree]) -> PyTree:
    return trees[0] if len(trees) == 1 else jax.tree.map(lambda *arrays: np.concatenate(arrays), *trees)


def _forget(resets: np.ndarray, memory: np.ndarray) -> np.ndarray:
    """Memory with the rows of environments that begin an episode emptied: every core's empty memory is zero."""
    return np.where(resets[:, None], memory.dtype.type(0), memory)


def for_envs(space: spaces.Space) -> Callable[[np.ndarray], np.ndarray]:
    """What to do with a policy's actions [B, ...] before the environment gets them: a Box's are clipped, the stored ones are not.

    Those of a Dict or Tuple stay flat, and are clipped where the tree is made of them.
    """
    if isinstance(space, spaces.Box):
        shape, low, high = space.shape, space.low, space.high
        return lambda actions: np.minimum(np.maximum(actions.reshape(-1, *shape), low), high)
    shape = action_shape(space)
    return lambda actions: actions.reshape(-1, *shape)
