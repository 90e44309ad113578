"""The source of rollouts of compiled environments: it trains in chunks, each one program."""

import time
from collections.abc import Callable
from typing import Any, TypeVar

import gymnasium as gym
import jax
import numpy as np

from birl import speed
from birl.config import ConfigError, require
from birl.errors import snapshot_errors
from birl.parts import ReplayConfig
from birl.rollouts.chunks import Pace, chunk_program, collector_of, start_program
from birl.rollouts.compiled import Position, ring_metrics
from birl.rollouts.episode_stats import Ranges, without_unknown
from birl.rollouts.finite import raise_problem
from birl.rollouts.learning import known_metrics
from birl.rollouts.replay import Replay, kept_whole, make_replay
from birl.rollouts.source import empty_rollout
from birl.rollouts.transitions import Now
from birl.rollouts.user_replay import UserReplay
from birl.settings import flat_settings
from birl.types import NEW_EPISODES, Act, Cycle, Metrics, PyTree, Rollout, Snapshot, Update

State = TypeVar("State")


class CompiledSource:
    """Rollouts of compiled environments (see types.RolloutSource)."""

    def __init__(self, config: Any, act: Act) -> None:
        self.config = config
        self.collector = collector_of(config.env, act, config.rollout_length)
        self.num_envs = self.collector.copies.num_envs
        self.spaces: tuple[gym.Space, gym.Space] = self.collector.copies.spaces
        self.clip_rewards: bool = config.normalize.clip_rewards
        self.replay: Replay | None = None
        self._user_replay: UserReplay | None = None
        self._snapshot: Snapshot | None = None  # that the run continues from
        self._pace = Pace(config.run, flat_settings(config).get("learning_starts", 0))
        self._seconds = 0.0  # in programs
        # Some chunks end where the host has work, such as a line of the log; others by the clock.
        self._has_work = False  # after the latest chunk
        self._ranges = Ranges()  # of the observations where it had work
        self._metrics: Metrics = {}  # since it had work

    def start(
        self, state: State, snapshot: Snapshot | None = None, memory: PyTree = None, behaviour: PyTree = None
    ) -> State:
        """Reset the environments, or restore them; the state, ready to be learned with."""
        assert behaviour is None, "compiled rollouts keep no distributions"
        if memory is None:
            memory = state.network.initial_memory(self.num_envs)  # type: ignore[attr-defined]
        begin = start_program(self.collector)
        key = np.array([0xC0DE, self.config.run.seed], np.uint32)
        if snapshot is None:
            self.position = begin(key, memory)
        else:
            self.position = _restored(jax.eval_shape(begin, key, memory), snapshot)
            self._seconds = float(snapshot.values["seconds"])
            self._ranges.restore(snapshot)
            self._metrics = {name: float(value) for name, value in snapshot.arrays_under("metrics/").items()}
            if NEW_EPISODES in snapshot.values:
                key[1] = int(snapshot.values[NEW_EPISODES]) % 2**32
                self.position = _begun_again(begin(key, memory), self.position)
        self._snapshot = snapshot
        return speed.replicate_unplaced(state)

    def add_replay(self, replay: ReplayConfig, keep: Callable[[Rollout], Rollout] = kept_whole) -> None:
        """Keep rollouts in a replay; it is reported and saved with the rest."""
        stacked = f"frame_stack {replay.frame_stack}: compiled environments keep whole observations in the replay"
        require(replay.frame_stack == 1, f"{stacked}; use frame_stack 1")
        wrong = f"hindsight {replay.hindsight}: compiled environments have no compute_reward"
        require(replay.hindsight == 0, f"{wrong}; use hindsight 0, or backend gymnasium")
        here = jax.tree.map(np.asarray, self.position)
        shape = self.collector.length, self.num_envs
        like = empty_rollout(shape, self.spaces[1], here.copies.observations, here.memory, here.copies.masks)
        self.replay = make_replay(replay, keep(like), self.config.discount)
        self._user_replay = UserReplay(self.replay, self.spaces, self.clip_rewards, self._now)
        if self._snapshot is not None:
            self.replay.restore(self._snapshot, np.full(self.num_envs, NEW_EPISODES in self._snapshot.values))
        elif replay.prefill is not None:
            self._user_replay.prefill(replay.prefill)

    def advance(self, cycle: Cycle[State], state: State) -> tuple[State, Metrics]:
        """The state after a chunk of cycles, and the metrics of the last one."""
        program = chunk_program(cycle, self.collector, self.clip_rewards)
        before = time.perf_counter()
        limit, most = self._pace.next_chunk(int(state.env_steps))  # type: ignore[attr-defined]
        chunk = program(state, self.position, replay=self.replay, config=self.config, limit=limit, most=most)
        cycles = int(chunk.cycles)
        elapsed = time.perf_counter() - before
        self._seconds += elapsed
        self._pace.took(elapsed, cycles)
        self._has_work = int(chunk.state.env_steps) >= int(limit)
        metrics = self._metrics | known_metrics(chunk.metrics)
        self._metrics = {} if self._has_work else metrics
        raise_problem(chunk.problem, chunk.position.copies.observations, metrics)
        self.position = chunk.position
        if self.replay is not None and chunk.replay is not None:
            self.replay.arrays = chunk.replay.arrays
        return chunk.state, metrics

    def report(self, state: Any, metrics: Metrics) -> Update:
        """The Update to yield: metrics, episode statistics, times, a way to snapshot."""
        times = {"time/program_seconds": self._seconds}
        metrics = metrics | ring_metrics(self.position.episodes, self.collector.copies.limit) | times
        observations = [np.asarray(x) for x in jax.tree.leaves(self.position.copies.observations)]
        ranges = Ranges()  # of the observations of this moment; rewards stay inside the programs
        ranges.add_observations(observations)
        if self._has_work:
            self._ranges.add_observations(observations)
        metrics = without_unknown(metrics | ranges.metrics())
        if self.replay is not None:
            metrics |= {"replay/steps": len(self.replay), "replay/bytes": self.replay.bytes}
        return Update(state, metrics, self.snapshot, self._user_replay, self.set_env_attribute)

    def snapshot(self) -> Snapshot:
        """Everything needed to go on from here, exactly."""
        arrays = {f"compiled/{i}": np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(self.position))}
        metrics = {f"metrics/{name}": np.array(value) for name, value in self._metrics.items()}
        snapshot = Snapshot(arrays | self._ranges.arrays() | metrics, {"seconds": self._seconds})
        return snapshot if self.replay is None else self.replay.snapshot(snapshot)

    def set_env_attribute(self, name: str, value: Any) -> None:
        """Compiled environments have no attributes that change: ConfigError."""
        wrong = f"attribute {name!r} cannot be set: compiled environments are part of a program"
        raise ConfigError(f"{wrong}; give the environment a state that changes, or use backend gymnasium")

    def _now(self) -> Now:
        copies = jax.tree.map(np.asarray, self.position.copies)
        return Now(copies.observations, copies.masks)


def _begun_again(start: Position, before: Position) -> Position:
    """Where new episodes start, with the statistics of the episodes that ended before."""
    return start._replace(episodes=before.episodes._replace(returns=start.episodes.returns))


@snapshot_errors()
def _restored(like: Position, snapshot: Snapshot) -> Position:
    """The position that a snapshot holds."""
    leaves, structure = jax.tree.flatten(like)
    saved = [snapshot.array_like(f"compiled/{i}", leaf) for i, leaf in enumerate(leaves)]
    return jax.tree.unflatten(structure, saved)
