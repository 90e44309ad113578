"""Policy + environments -> Rollout. The only file that steps environments for training."""

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import jax
import numpy as np
from gymnasium import spaces

from birl.errors import NonFiniteError
from birl.nets.cores import forget
from birl.types import Action, Array, Envs, Metrics, PyTree, Rollout, Step, World

RECENT_EPISODES = 20  # `episode/return` is the mean over this many finished episodes


Act = Callable[[PyTree, PyTree, PyTree, Array, Array | None, Array | None], Action]  # policy, observations, memory, resets, masks, key


class Collector:
    """Steps environments with a policy and keeps what lives between rollouts: observations, memory, unfinished episodes."""

    def __init__(self, envs: Envs, act: Act, length: int, memory: PyTree):
        self.envs, self.act, self.length, self.memory = envs, act, length, memory
        self.observations: PyTree = None
        self.masks: np.ndarray | None = None
        self.resets = np.zeros(envs.num_envs, bool)  # begins an episode: its memory must be emptied
        self.returns = np.zeros(envs.num_envs)  # of the unfinished episodes
        self.lengths = np.zeros(envs.num_envs, np.int64)
        self.recent: deque[tuple[float, int]] = deque(maxlen=RECENT_EPISODES)
        self.episodes = 0
        self._structure: PyTree = jax.tree.structure(None)
        self._act: Callable[..., Action] = act
        self.seconds = {"environment": 0.0, "policy": 0.0, "learning": 0.0}

    def start(self, seed: int, world: World | None = None) -> None:
        """Begin with fresh episodes, or go on where `world` was taken."""
        if world is None:
            self.observations, self.masks = self.envs.reset(seed)
        else:
            self._restore(world)

    def __call__(self, policy: PyTree, key: Array) -> Rollout:
        """The next `length` steps of every environment."""
        keys = _act_keys(key, self.length)
        self.memory = _forget(self.memory, self.resets)
        self.resets = np.zeros_like(self.resets)
        rollout = _empty_rollout(self.length, self.envs, self.observations, self.memory, self.masks)
        try:
            self._fill(rollout, self._prepare(policy), keys)
        except Exception:
            check_finite(rollout)  # if a NaN came first, it is the cause
            raise
        check_finite(rollout)
        self._count_episodes(rollout)
        return rollout

    def _prepare(self, policy: PyTree) -> Callable[..., Action]:
        # A policy of Equinox modules is taken apart in Python at each call; its bare arrays are not (94 against 50 µs a call).
        leaves, structure = jax.tree.flatten(policy)
        if structure != self._structure:
            self._structure = structure
            self._act = jax.jit(lambda leaves, *inputs: self.act(jax.tree.unflatten(structure, leaves), *inputs))
        return partial(self._act, leaves)

    def _fill(self, rollout: Rollout, act: Callable[..., Action], keys: np.ndarray) -> None:
        clock, for_env = time.perf_counter, for_envs(self.envs.action_space)
        policy_seconds = environment_seconds = 0.0
        before = clock()
        for t in range(self.length):
            action = act(self.observations, self.memory, self.resets, self.masks, keys[t])
            actions = np.asarray(action.actions)
            acted = clock()
            step = self.envs.step(for_env(actions))
            stepped = clock()
            _write(rollout, t, actions, np.asarray(action.log_probs), step, self.masks)
            self.memory, self.observations, self.masks = action.memory, step.observations, step.action_masks
            self.resets = ~step.valid
            policy_seconds += acted - before
            environment_seconds += stepped - acted
            before = stepped
        self.seconds["policy"] += policy_seconds
        self.seconds["environment"] += environment_seconds

    def _count_episodes(self, rollout: Rollout) -> None:
        returns = self.returns + np.cumsum(rollout.rewards, axis=0, dtype=np.float64)
        lengths = self.lengths + np.cumsum(rollout.valid, axis=0)
        offsets = np.zeros((2, len(self.returns)))  # what belongs to episodes finished before, in this rollout
        ended = rollout.terminated | rollout.truncated
        for t, i in zip(*np.nonzero(ended | ~rollout.valid), strict=True):  # a reset without an end: the episode was lost, see envs/workers
            if ended[t, i]:
                self.recent.append((float(returns[t, i] - offsets[0, i]), int(lengths[t, i] - offsets[1, i])))
                self.episodes += 1
            offsets[:, i] = returns[t, i], lengths[t, i]
        self.returns, self.lengths = returns[-1] - offsets[0], (lengths[-1] - offsets[1]).astype(np.int64)

    def metrics(self) -> Metrics:
        """Mean return and length of the last finished episodes, NaN before the first; seconds spent so far."""
        returns, lengths = zip(*self.recent, strict=True) if self.recent else ((np.nan,), (np.nan,))
        episodes = {"episode/return": float(np.mean(returns)), "episode/length": float(np.mean(lengths)), "episode/count": self.episodes}
        return episodes | {f"time/{name}_seconds": seconds for name, seconds in self.seconds.items()}

    def world(self) -> World:
        """Everything needed to go on from here, exactly."""
        envs = self.envs.snapshot()
        memory = {f"collector/memory/{i}": np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(self.memory))}
        arrays = {
            "collector/resets": self.resets.copy(),
            "collector/returns": self.returns.copy(),
            "collector/lengths": self.lengths.copy(),
        }
        values = {"recent": list(self.recent), "episodes": self.episodes, "seconds": dict(self.seconds), "envs": envs.values}
        return World(arrays | memory | {f"envs/{name}": a for name, a in envs.arrays.items()}, values, envs.exact, envs.reason)

    def _counters(self) -> dict[str, np.ndarray]:
        return {"resets": self.resets, "returns": self.returns, "lengths": self.lengths}

    def _restore(self, world: World) -> None:
        arrays, values = world.arrays, world.values
        envs = {name.removeprefix("envs/"): array for name, array in arrays.items() if name.startswith("envs/")}
        self.observations, self.masks = self.envs.restore(World(envs, values["envs"], world.exact, world.reason))
        fresh = self.envs.fresh  # what was remembered of these episodes is of no use: they begin anew
        self.resets = arrays["collector/resets"] | fresh
        self.returns = np.where(fresh, 0.0, arrays["collector/returns"])
        self.lengths = np.where(fresh, 0, arrays["collector/lengths"])
        leaves = [arrays[f"collector/memory/{i}"] for i in range(len(jax.tree.leaves(self.memory)))]
        self.memory = jax.tree.unflatten(jax.tree.structure(self.memory), leaves)
        self.recent.extend((float(total), int(length)) for total, length in values["recent"])
        self.episodes, self.seconds = values["episodes"], dict(values["seconds"])

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Add what runs inside to `time/NAME_seconds`."""
        before = time.perf_counter()
        yield
        self.seconds[name] += time.perf_counter() - before


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


def finite_metrics(metrics: Metrics) -> Metrics:
    """The metrics as plain numbers; NonFiniteError if a gradient is not finite, so that its step is never handed on."""
    numbers = {name: float(value) for name, value in metrics.items()}
    broken = [value for name, value in numbers.items() if name.endswith("grad_norm") and not np.isfinite(value)]
    if broken:
        raise NonFiniteError(
            f"the gradient's norm is {broken[0]}; the update was thrown away. Lower learning_rate, set max_grad_norm or switch on "
            f"normalize_observations; metrics of the update: { {name: round(value, 4) for name, value in numbers.items()} }"
        )
    return numbers


def _empty_rollout(length: int, envs: Envs, observations: PyTree, memory: PyTree, masks: np.ndarray | None) -> Rollout:
    shape = (length, envs.num_envs)
    space = envs.action_space
    action_shape = () if isinstance(space, spaces.Discrete) else (int(np.prod(space.shape)),)
    rollout = Rollout(
        observations=jax.tree.map(lambda o: np.zeros((length + 1, *o.shape), o.dtype), observations),
        actions=np.zeros((*shape, *action_shape), np.float32 if isinstance(space, spaces.Box) else np.int32),
        rewards=np.zeros(shape, np.float32),
        terminated=np.zeros(shape, bool),
        truncated=np.zeros(shape, bool),
        valid=np.zeros(shape, bool),
        log_probs=np.zeros(shape, np.float32),
        memory=memory,
        action_masks=None if masks is None else np.zeros((length, *masks.shape), bool),
    )
    _write_observations(rollout, 0, observations)
    return rollout


def _write(rollout: Rollout, t: int, actions: np.ndarray, log_probs: np.ndarray, step: Step, masks: np.ndarray | None) -> None:
    _write_observations(rollout, t + 1, step.observations)
    rollout.actions[t], rollout.log_probs[t], rollout.rewards[t] = actions, log_probs, step.rewards
    rollout.terminated[t], rollout.truncated[t], rollout.valid[t] = step.terminated, step.truncated, step.valid
    if rollout.action_masks is not None:
        rollout.action_masks[t] = masks


def _write_observations(rollout: Rollout, t: int, observations: PyTree) -> None:
    if isinstance(observations, dict):
        for name, array in observations.items():
            rollout.observations[name][t] = array
    else:
        rollout.observations[t] = observations


def for_envs(space: spaces.Space) -> Callable[[np.ndarray], np.ndarray]:
    """What to do with a policy's actions [B, ...] before the environment gets them: a Box's are clipped, the stored ones are not."""
    if isinstance(space, spaces.Box):
        return lambda actions: np.clip(actions.reshape(-1, *space.shape), space.low, space.high)
    shape = space.shape or ()
    return lambda actions: actions.reshape(-1, *shape)


def _act_keys(key: Array, count: int) -> np.ndarray:
    """A random key for each step, made by NumPy's mixer: nothing is compiled, and no split of the same key gives one of these."""
    return np.random.SeedSequence(np.asarray(key).tolist()).generate_state(2 * count).reshape(count, 2)


_forget = jax.jit(forget)
