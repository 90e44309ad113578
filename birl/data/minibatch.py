"""Shuffled parts of a rollout for stochastic gradient steps: single steps, or whole sequences where there is memory."""

import jax
import jax.numpy as jnp
from jaxtyping import Array

from birl.types import PyTree


def shuffled_steps(key: Array, batch: PyTree, count: int) -> PyTree:
    """[T, B, ...] leaves as `count` parts of randomly chosen steps: [count, 1, T·B / count, ...]."""
    time, num_envs = jax.tree.leaves(batch)[0].shape[:2]
    if count == 1:  # the order within one part does not matter
        return jax.tree.map(lambda x: x.reshape(1, 1, time * num_envs, *x.shape[2:]), batch)
    # One sort of random words; jax.random.permutation sorts twice, to be safe against ties that are rare here (7 against 4 ms of 16,384).
    order = jnp.argsort(jax.random.bits(key, (time * num_envs,)))

    def split(x: Array) -> Array:
        flat = x.reshape(time * num_envs, *x.shape[2:])
        return flat[order].reshape(count, 1, -1, *x.shape[2:])

    return jax.tree.map(split, batch)


def shuffled_sequences(key: Array, batch: PyTree, memory: PyTree, count: int) -> tuple[PyTree, PyTree]:
    """[T, B, ...] leaves as `count` parts of whole sequences, [count, T, B / count, ...], and the memory each starts from."""
    num_envs = jax.tree.leaves(batch)[0].shape[1]
    order = jax.random.permutation(key, num_envs).reshape(count, -1)
    return jax.tree.map(lambda x: jnp.moveaxis(x[:, order], 1, 0), batch), jax.tree.map(lambda m: m[order], memory)
