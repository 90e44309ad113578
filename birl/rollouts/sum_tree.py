"""A binary tree of sums as one JAX array: root 1, children of i: 2i and 2i + 1, entries last.

On two CPU cores, to sample 64 of 100,000 entries and set them took 40 µs; a cumulative sum over all
entries took 500 µs.
"""

import jax
import jax.numpy as jnp

from birl.types import Array


def tree_of(weights: Array) -> Array:
    """The tree of these weights, with room for a power of 2 of them."""
    size = 1 << max(0, len(weights) - 1).bit_length()
    levels = [jnp.zeros(size, jnp.float32).at[: len(weights)].set(weights)]
    while len(levels[-1]) > 1:
        levels.append(levels[-1].reshape(-1, 2).sum(axis=1))
    return jnp.concatenate([jnp.zeros(1, jnp.float32), *levels[::-1]])


def weights_of(sums: Array) -> Array:
    """The weights of all entries."""
    return sums[len(sums) // 2 :]


def set_weights(sums: Array, entries: Array, weights: Array, wanted: Array) -> Array:
    """The tree with new weights where wanted; of an entry given twice the last weight counts."""
    size = len(sums) // 2
    # Sorted, equal entries are neighbours; all but the last of them are left out: what a scatter
    # does with equal indices is not defined on every device.
    entries = jnp.where(wanted, entries, size).ravel()
    order = jnp.argsort(entries, stable=True)
    entries = entries[order]
    newest = (jnp.append(entries[1:], size + 1) != entries) & (entries < size)
    sums = sums.at[jnp.where(newest, entries + size, 2 * size)].set(weights.ravel()[order], mode="drop")

    def sum_above(_: int, above: tuple[Array, Array]) -> tuple[Array, Array]:
        sums, nodes = above[0], above[1] >> 1
        return sums.at[nodes].set(sums.reshape(size, 2)[nodes].sum(axis=-1)), nodes

    nodes = jnp.minimum(entries, size - 1) + size
    return jax.lax.fori_loop(0, _depth(size), sum_above, (sums, nodes))[0]


def sample_entries(sums: Array, key: Array, shape: tuple[int, ...]) -> Array:
    """Entries sampled in proportion to their weights, by a walk from the root.

    At each node one uniform number chooses the side. A single one for the whole walk would have too
    few bits for a million entries.
    """
    size = len(sums) // 2
    uniforms = jax.random.uniform(key, (_depth(size), *shape))

    def descend(level: int, nodes: Array) -> Array:
        pairs = sums.reshape(size, 2)[nodes]
        # A side of weight 0 is never chosen, for a uniform number is below 1.
        return 2 * nodes + (uniforms[level] * pairs.sum(axis=-1) >= pairs[..., 0])

    return jax.lax.fori_loop(0, _depth(size), descend, jnp.ones(shape, jnp.int32)) - size


def _depth(size: int) -> int:
    return size.bit_length() - 1
