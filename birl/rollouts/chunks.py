"""Training in chunks: collecting and learning are one program, for about a tenth of a second.

Between two chunks the host logs, evaluates, saves and listens to signals. How many cycles a chunk
has does not change what is learned.
"""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from birl.config import EnvConfig, RunConfig
from birl.envs.compiled.copies import CompiledCopies
from birl.envs.compiled.host import programs_of
from birl.maths.count import Count, count_of
from birl.rollouts.compiled import CompiledCollector, Position, TracedSource
from birl.rollouts.finite import NONE, Problem, no_problem, with_gradients
from birl.rollouts.learning import LEARNED, newest_metrics, unknown
from birl.rollouts.replay import Replay
from birl.types import Act, Array, Cycle, Metrics

State = TypeVar("State")

MOST_GROWTH = 8  # of the cycles from one chunk to the next
CHUNK_SECONDS = 0.1  # between two looks at the host; 0.25 was not measurably faster


class Chunk(NamedTuple):
    """What a chunk of cycles changes."""

    state: Any
    position: Position
    replay: Replay | None
    metrics: Metrics  # of the newest cycle; those of gradient steps of the newest that took some
    problem: Problem
    cycles: Array  # in this chunk


def run_chunk(
    cycle: Cycle[State],
    collector: CompiledCollector,
    clip_rewards: bool,
    state: State,
    position: Position,
    replay: Replay | None,
    config: Any,
    limit: Count,
    most: Array,
) -> Chunk:
    """At most this many cycles, until the limit of environment steps or a number is not finite."""

    def goes_on(chunk: Chunk) -> Array:
        finite = chunk.problem.kind == NONE
        return (chunk.cycles < most) & chunk.state.env_steps.is_below(limit) & finite

    @jax.jit  # so that it is traced once, though its metrics are asked for first
    def one(state: State, position: Position, replay: Replay | None) -> tuple[Any, ...]:
        source = TracedSource(collector, position, clip_rewards, replay)
        state, metrics = cycle(state, source, config)
        problem = no_problem() if source.problem is None else source.problem
        problem = with_gradients(problem, metrics, metrics.get(LEARNED, True))
        return state, source.position, source.replay, metrics, problem

    def next_chunk(chunk: Chunk) -> Chunk:
        state, position, replay, metrics, problem = one(chunk.state, chunk.position, chunk.replay)
        return Chunk(state, position, replay, newest_metrics(metrics, chunk.metrics), problem, chunk.cycles + 1)

    metrics = jax.eval_shape(one, state, position, replay)[3]
    start = Chunk(state, position, replay, unknown(metrics), no_problem(), jnp.int32(0))
    return jax.lax.while_loop(goes_on, next_chunk, start)


class Pace:
    """How many cycles the next chunk may have, so that it takes CHUNK_SECONDS."""

    def __init__(self, run: RunConfig, learning_starts: int = 0) -> None:
        self._run = run
        self._learning_starts = learning_starts  # a cycle takes longer from here on
        self._most = 1
        self._chunks = 0

    def next_chunk(self, env_steps: int) -> tuple[Count, np.int32]:
        """The steps at which the host has something to do, and the most cycles."""
        run = self._run
        given = run.eval_every, run.checkpoint_every, run.keep_every, run.video_every, run.steps_between_rows
        periods = [every for every in given if every > 0]
        limits = [(env_steps // every + 1) * every for every in periods]
        if env_steps < self._learning_starts:
            limits.append(self._learning_starts)
        elif self._learning_starts:
            self._learning_starts, self._most = 0, 1
        return count_of(min([run.total_steps, *limits])), np.int32(self._most)

    def took(self, seconds: float, cycles: int) -> None:
        """Choose the next number of cycles by how long this chunk took."""
        self._chunks += 1
        if self._chunks > 1:  # the first one was compiled
            wanted = CHUNK_SECONDS / max(seconds / max(cycles, 1), 1e-7)
            # Not every cycle learns, so a few quick ones say little.
            self._most = int(min(max(wanted, 1), MOST_GROWTH * max(cycles, 1), 2**30))


def collector_of(env: EnvConfig, act: Act, length: int) -> CompiledCollector:
    """The collector of these settings; the same object for the same settings."""
    return _collector(programs_of(env).copies, act, length)


@lru_cache(maxsize=16)
def _collector(copies: CompiledCopies, act: Act, length: int) -> CompiledCollector:
    return CompiledCollector(copies, act, length)


@lru_cache(maxsize=16)
def start_program(collector: CompiledCollector) -> Callable[..., Position]:
    """`collector.start`, compiled."""
    return jax.jit(collector.start)


@lru_cache(maxsize=16)
def chunk_program(cycle: Cycle[Any], collector: CompiledCollector, clip_rewards: bool) -> Callable[..., Chunk]:
    """`run_chunk` of this algorithm and these environments, compiled.

    The replay is written in place, for it may be large: it is gone for whoever calls this.
    """
    return jax.jit(partial(run_chunk, cycle, collector, clip_rewards), donate_argnames="replay")
