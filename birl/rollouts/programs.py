"""Compiled programs that runs in one process share: each is compiled once, for all lanes."""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import jax

from birl.config import EnvConfig
from birl.envs.compiled.copies import CompiledCopies
from birl.envs.compiled.host import programs_of
from birl.rollouts.chunks import Chunk, run_chunk
from birl.rollouts.compiled import CompiledCollector, Position
from birl.types import Act, Cycle


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
