"""Training in chunks: collecting and learning are one program, for about a quarter of a second.

Between two chunks the host logs, evaluates, saves and listens to signals. How many cycles a chunk
has does not change what is learned.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np

from birl import speed
from birl.config import ConfigError, RunConfig
from birl.errors import snapshot_errors
from birl.maths.count import Count, count_of
from birl.rollouts.compiled import CompiledCollector, Position, TracedSource
from birl.rollouts.episode_ring import ring_metrics
from birl.rollouts.problems import NONE, Problem, no_problem, raise_problem, with_gradients
from birl.types import Array, Cycle, Metrics, PyTree, Snapshot, Update

State = TypeVar("State")

CHUNK_SECONDS = 0.25  # between two looks at the host; one costs about a millisecond


class Chunk(NamedTuple):
    """What a chunk of cycles changes."""

    state: Any
    position: Position
    replay: PyTree
    metrics: Metrics  # of the newest cycle
    problem: Problem
    cycles: Array  # in this chunk


def run_chunk(
    cycle: Cycle[State],
    collector: CompiledCollector,
    clip_rewards: bool,
    state: State,
    position: Position,
    replay: PyTree,
    config: Any,
    limit: Count,
    most: Array,
) -> Chunk:
    """At most this many cycles, until the limit of environment steps or a number is not finite."""

    def goes_on(chunk: Chunk) -> Array:
        finite = chunk.problem.kind == NONE
        return (chunk.cycles < most) & chunk.state.env_steps.is_below(limit) & finite

    def one(chunk: Chunk) -> Chunk:
        source = TracedSource(collector, chunk.position, clip_rewards, chunk.replay)
        state, metrics = cycle(chunk.state, source, config)
        problem = with_gradients(no_problem() if source.problem is None else source.problem, metrics)
        return Chunk(state, source.position, source.replay, metrics, problem, chunk.cycles + 1)

    start = Chunk(state, position, replay, {}, no_problem(), jnp.int32(0))
    metrics = jax.eval_shape(lambda chunk: one(chunk).metrics, start)
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), metrics)
    return jax.lax.while_loop(goes_on, one, start._replace(metrics=zeros))


class CompiledSource:
    """The source of rollouts of compiled environments (see RolloutSource)."""

    def __init__(self, config: Any, make_collector: Callable[[int], CompiledCollector], clip_rewards: bool) -> None:
        self.config = config
        self.collector = make_collector(config.rollout_length)
        self.num_envs = self.collector.copies.num_envs
        self.spaces: tuple[gym.Space, gym.Space] = self.collector.copies.spaces
        self.clip_rewards = clip_rewards
        self._program: Callable[..., Chunk] | None = None
        self._pace = Pace(config.run)
        self._seconds = 0.0  # in programs

    def start(self, state: State, snapshot: Snapshot | None = None, memory: PyTree = None) -> State:
        """Reset the environments, or restore them; the state, ready to be learned with."""
        if memory is None:
            memory = state.network.initial_memory(self.num_envs)  # type: ignore[attr-defined]
        begin = jax.jit(self.collector.start)
        key = np.array([0xC0DE, self.config.run.seed], np.uint32)
        if snapshot is None:
            self.position = begin(key, memory)
        else:
            self.position = _restored(jax.eval_shape(begin, key, memory), snapshot)
            self._seconds = float(snapshot.values["seconds"])
        return speed.replicate_unplaced(state)

    def advance(self, cycle: Cycle[State], state: State) -> tuple[State, Metrics]:
        """The state after a chunk of cycles, and the metrics of the last one."""
        if self._program is None:
            self._program = jax.jit(partial(run_chunk, cycle, self.collector, self.clip_rewards))
        before = time.perf_counter()
        limit, most = self._pace.next_chunk(int(state.env_steps))  # type: ignore[attr-defined]
        chunk = self._program(state, self.position, None, config=self.config, limit=limit, most=most)
        cycles = int(chunk.cycles)
        elapsed = time.perf_counter() - before
        self._seconds += elapsed
        self._pace.took(elapsed, cycles)
        metrics = {name: float(np.asarray(value)) for name, value in chunk.metrics.items()}
        raise_problem(chunk.problem, chunk.position.copies.observations, metrics)
        self.position = chunk.position
        return chunk.state, metrics

    def report(self, state: Any, metrics: Metrics) -> Update:
        """The Update to yield: metrics, episode statistics, times, a way to snapshot."""
        times = {"time/program_seconds": self._seconds}
        metrics = metrics | ring_metrics(self.position.episodes) | times
        return Update(state, metrics, self.snapshot, None, self.set_env_attribute)

    def snapshot(self) -> Snapshot:
        """Everything needed to go on from here, exactly."""
        arrays = {f"compiled/{i}": np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(self.position))}
        return Snapshot(arrays, {"seconds": self._seconds})

    def set_env_attribute(self, name: str, value: Any) -> None:
        """Compiled environments have no attributes that change: ConfigError."""
        wrong = f"attribute {name!r} cannot be set: compiled environments are part of a program"
        raise ConfigError(f"{wrong}; give the environment a state that changes, or use backend gymnasium")


class Pace:
    """How many cycles the next chunk may have, so that it takes CHUNK_SECONDS."""

    def __init__(self, run: RunConfig) -> None:
        self._run = run
        self._most = 1
        self._chunks = 0

    def next_chunk(self, env_steps: int) -> tuple[Count, np.int32]:
        """The steps at which the host has something to do, and the most cycles."""
        run = self._run
        periods = [every for every in (run.eval_every, run.checkpoint_every, run.video_every) if every > 0]
        limits = [(env_steps // every + 1) * every for every in periods]
        return count_of(min([run.total_steps, *limits])), np.int32(self._most)

    def took(self, seconds: float, cycles: int) -> None:
        """Choose the next number of cycles by how long this chunk took."""
        self._chunks += 1
        if self._chunks > 1 and self._run.log_seconds > 0:  # the first one was compiled
            wanted = max(CHUNK_SECONDS, self._run.log_seconds) / max(seconds / max(cycles, 1), 1e-7)
            self._most = int(min(max(wanted, 1), 2**30))


@snapshot_errors()
def _restored(like: Position, snapshot: Snapshot) -> Position:
    """The position that a snapshot holds."""
    leaves, structure = jax.tree.flatten(like)
    saved = [snapshot.array_like(f"compiled/{i}", leaf) for i, leaf in enumerate(leaves)]
    return jax.tree.unflatten(structure, saved)
