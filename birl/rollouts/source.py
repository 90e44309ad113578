"""Where rollouts come from: policy + environments -> Rollout.

Collector has the loop that acts and steps environments. HostSource is what an algorithm trains
with: a collector here, in worker processes or on Ray, and the replay. Compiled environments have
theirs in compiled_source.py.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import gymnasium as gym
import jax
import numpy as np
from gymnasium import spaces

from birl import speed
from birl.config import is_compiled, require
from birl.envs.actions import action_clipper
from birl.envs.make import open_envs
from birl.envs.snapshot import ATTRIBUTES
from birl.envs.spaces import action_shape, has_images, is_composite
from birl.errors import snapshot_errors
from birl.nets.models import shared_encoder
from birl.parts import ReplayConfig
from birl.registry import require_compiled_supported, require_ray_supported
from birl.rollouts.episode_stats import EpisodeStats, without_unknown
from birl.rollouts.finite import check_finite, check_finite_metrics, for_learning
from birl.rollouts.hindsight import Hindsight
from birl.rollouts.learning import learn_on_host
from birl.rollouts.replay import Replay, kept_whole, make_replay
from birl.rollouts.transitions import Now, insert
from birl.rollouts.user_replay import UserReplay
from birl.traced import place_together
from birl.types import (
    NEW_EPISODES,
    NOT_SAID,
    Act,
    ActAt,
    Action,
    Array,
    Cycle,
    Envs,
    HasAttributes,
    Metrics,
    PyTree,
    Rollout,
    RolloutSource,
    Snapshot,
    StartActing,
    Step,
    Update,
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

    def now(self) -> Now:
        """The observations and masks that the next step acts on."""
        return Now(self.observations, self.masks)

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


State = TypeVar("State")


class HostSource:
    """Rollouts of environments on the host (see types.Source and types.RolloutSource)."""

    replay: Replay | None = None
    _hindsight: Hindsight | None = None

    def __init__(
        self,
        config: Any,
        num_envs: int,
        spaces: tuple[gym.Space, gym.Space],
        make_collector: Callable[..., Any],  # a Collector here or on Ray, for these steps and this memory
    ) -> None:
        self.config = config
        self.num_envs = num_envs
        self.spaces = spaces  # observation space, action space
        self._make_collector = make_collector
        self._snapshot: Snapshot | None = None  # that the run continues from
        self._user_replay: UserReplay | None = None
        self._collected_at = 0.0

    def start(
        self, state: State, snapshot: Snapshot | None = None, memory: PyTree = None, behaviour: PyTree = None
    ) -> State:
        """Reset the environments, or restore them; the state, ready to be learned with."""
        if memory is None:
            memory = state.network.initial_memory(self.num_envs)  # type: ignore[attr-defined]
        options = {} if behaviour is None else {"behaviour": behaviour}
        self.collector = self._make_collector(self.config.rollout_length, memory, **options)
        self.collector.start(self.config.run.seed, snapshot)
        self._snapshot = snapshot
        return place_together(speed.replicate_unplaced, state, self.config)

    def add_replay(self, replay: ReplayConfig, keep: Callable[[Rollout], Rollout] = kept_whole) -> None:
        """Keep rollouts in a replay; it is reported and saved with the rest."""
        here = self.collector
        assert isinstance(here, Collector), "algorithms with a replay take no rollouts from Ray"
        like = keep(here.empty_rollout())
        self.replay = make_replay(replay, like, self.config.discount)
        clip_rewards = self.config.normalize.clip_rewards
        self._user_replay = UserReplay(self.replay, self.spaces, clip_rewards, here.now)
        if replay.hindsight:
            wrong = "hindsight copies single steps, and a recurrent network learns from sequences"
            require(not self.replay.recurrent, f"{wrong}; use hindsight 0, or core feedforward")
            self._hindsight = Hindsight(here.envs, replay.hindsight)
        if self._snapshot is not None:
            self.replay.restore(self._snapshot, here.fresh)
            if self._hindsight is not None:
                self._hindsight.restore(self._snapshot, like, here.fresh)
        elif replay.prefill is not None:
            self._user_replay.prefill(replay.prefill)

    def advance(self, cycle: Cycle[State], state: State) -> tuple[State, Metrics]:
        """The state and the metrics after one cycle: a rollout, and what is learned from it."""
        return cycle(state, self, self.config)

    def collect(self, policy: PyTree, key: Array, steps_per_key: int = 1) -> Rollout:
        """The next rollout, checked and ready to learn from."""
        rollout = self.collector.collect(policy, key, steps_per_key)
        self._collected_at = time.perf_counter()
        return for_learning(rollout, self.config.normalize.clip_rewards)

    def learn(self, update: Callable[..., Any], state: State, rollout: Rollout, config: Any) -> tuple[State, Metrics]:
        """Add the rollout to the replay, and update the state, with batches if steps are due."""
        assert self.replay is not None, "add_replay comes first"
        key = state.key  # type: ignore[attr-defined]
        state, metrics = learn_on_host(update, state, self.replay, rollout, config)
        copies = None if self._hindsight is None else self._hindsight.add(rollout, key)
        if copies is not None:
            clipped = np.sign(copies.rewards) if self.config.normalize.clip_rewards else copies.rewards
            insert(self.replay, copies._replace(rewards=clipped), self.collector.now())
        return state, metrics

    def report(self, state: Any, metrics: Metrics) -> Update:
        """The Update to yield: checked metrics, episode statistics, times, a way to snapshot."""
        metrics = check_finite_metrics(metrics)
        self.collector.episode_stats.seconds["learning"] += time.perf_counter() - self._collected_at
        metrics |= without_unknown(self.collector.episode_stats.metrics())
        if self.replay is not None:
            metrics |= {"replay/steps": len(self.replay), "replay/bytes": self.replay.bytes}
        return Update(state, metrics, self.snapshot, self._user_replay, self.collector.set_env_attribute)

    def snapshot(self) -> Snapshot:
        """Everything needed to go on from here, exactly."""
        snapshot = self.collector.snapshot()
        snapshot = snapshot if self.replay is None else self.replay.snapshot(snapshot)
        return snapshot if self._hindsight is None else self._hindsight.snapshot(snapshot)


@contextmanager
def open_rollouts(config: Any, act: Act, envs: Envs | gym.vector.VectorEnv | None = None) -> Iterator[RolloutSource]:
    """The source of rollouts that an algorithm's Config asks for; it is closed at the end.

    Environments that were passed in are left open for their owner to close.
    """
    require_ray_supported(config)
    require_compiled_supported(config)
    if is_compiled(config.env):
        from birl.rollouts.compiled_source import CompiledSource

        speed.prepare_jax(config)
        wrong = f"envs {envs!r} cannot be compiled: env.backend 'compiled' makes environments of its own"
        require(envs is None, f"{wrong}; name them by env.id, or use backend gymnasium")
        yield CompiledSource(config, act)
        return
    if config.env.ray_actors == 0:
        with open_envs(config.env, config.run.seed, envs) as here:
            spaces = here.observation_space, here.action_space
            speed.prepare_jax(config, has_images(spaces[0]))
            make = partial(Collector, here, speed.act_in_rollouts(act, config, shared_encoder))
            yield HostSource(config, here.num_envs, spaces, make)
        return
    wrong = f"envs {envs!r} cannot go to env.ray_actors {config.env.ray_actors}, which make environments of their own"
    remedy = "name them by env.id; module:Id-v0 imports the module that registers your own"
    require(envs is None, f"{wrong}; {remedy}")
    from birl.rollouts.ray_rollouts import RayCollector, open_ray_actors  # which needs an extra

    with open_ray_actors(config.env) as (actors, spaces):
        speed.prepare_jax(config, has_images(spaces[0]))
        yield HostSource(config, config.env.num_envs, spaces, partial(RayCollector, config.env, actors, act))
