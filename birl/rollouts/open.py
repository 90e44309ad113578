"""Where rollouts come from: environments in this process, in worker processes or on Ray."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol, TypeVar

import gymnasium as gym
import numpy as np

from birl import speed
from birl.compiled_ids import is_compiled
from birl.config import require
from birl.envs.make import open_envs
from birl.envs.spaces import has_images
from birl.nets.models import shared_encoder
from birl.parts import ReplayConfig
from birl.registry import require_compiled_supported, require_ray_supported
from birl.rollouts.collector import Collector
from birl.rollouts.episode_stats import EpisodeStats, without_unknown
from birl.rollouts.finite import check_finite_metrics, for_learning
from birl.rollouts.hindsight import Hindsight
from birl.rollouts.learning import learn_on_host
from birl.rollouts.replay import Replay, make_replay
from birl.rollouts.transition_rows import Now, insert
from birl.rollouts.user_replay import UserReplay
from birl.traced import place_together
from birl.types import Act, Array, Cycle, Envs, Metrics, PyTree, Rollout, RolloutSource, Snapshot, Update

State = TypeVar("State")


class Collects(Protocol):
    """A Collector, here or on Ray."""

    episode_stats: EpisodeStats

    def start(self, seed: int, snapshot: Snapshot | None = None) -> None: ...
    def collect(self, policy: PyTree, key: Array, steps_per_key: int = 1) -> Rollout: ...
    def snapshot(self) -> Snapshot: ...
    def set_env_attribute(self, name: str, value: Any) -> None: ...


class HostSource:
    """Rollouts of environments on the host (see types.Source and types.RolloutSource)."""

    replay: Replay | None = None
    _hindsight: Hindsight | None = None

    def __init__(
        self,
        config: Any,
        num_envs: int,
        spaces: tuple[gym.Space, gym.Space],
        make_collector: Callable[..., Collects],
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

    def add_replay(self, replay: ReplayConfig, like: Rollout | None = None) -> None:
        """Keep rollouts in a replay; it is reported and saved with the rest."""
        here = self._here
        like = here.empty_rollout() if like is None else like
        self.replay = make_replay(replay, like, self.config.discount)
        now = partial(_now_of, here)
        self._user_replay = UserReplay(self.replay, self.spaces, self.config.normalize.clip_rewards, now)
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

    def empty_rollout(self) -> Rollout:
        """A rollout of zeros, for the shapes and types of a replay."""
        return self._here.empty_rollout()

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
            insert(self.replay, copies._replace(rewards=clipped), _now_of(self._here))
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

    @property
    def _here(self) -> Collector:
        assert isinstance(self.collector, Collector), "algorithms with a replay take no rollouts from Ray"
        return self.collector


def _now_of(collector: Collector) -> Now:
    return Now(collector.observations, collector.masks)


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
    from birl.rollouts.ray import RayCollector, open_ray_actors  # which needs an extra

    with open_ray_actors(config.env) as (actors, spaces):
        speed.prepare_jax(config, has_images(spaces[0]))
        yield HostSource(config, config.env.num_envs, spaces, partial(RayCollector, config.env, actors, act))
