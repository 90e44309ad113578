"""Compiled programs that runs in one process share: each is compiled once, for all lanes."""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import jax

from birl.config import EnvConfig
from birl.envs.compiled.copies import copies_of
from birl.envs.registration import find_function
from birl.rollouts.chunks import Chunk, run_chunk
from birl.rollouts.collector import Act
from birl.rollouts.compiled import CompiledCollector, Position
from birl.types import Cycle


def collector_of(env: EnvConfig, act: Act, length: int) -> CompiledCollector:
    """The collector of these settings; the same object for the same settings."""
    return _collector(env, repr(env.kwargs), find_function(env.id), act, length)


@lru_cache(maxsize=16)
def _collector(env: EnvConfig, kwargs: str, function: Any, act: Act, length: int) -> CompiledCollector:
    # 1 equals True, but not in `kwargs`; a `function` that was defined anew is another one.
    return CompiledCollector(copies_of(env), act, length)


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
