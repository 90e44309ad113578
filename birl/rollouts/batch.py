"""A rollout with values, advantages and value targets: what PPO and TRPO learn from."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from birl.maths.returns import gae
from birl.nets.models import evaluate_rollout, without_last
from birl.types import PyTree, Rollout


class Batch(NamedTuple):
    """Leaves [T, B, ...]."""

    observations: PyTree  # normalised
    actions: PyTree
    log_probs: Array  # of the policy that collected the rollout
    advantages: Array
    value_targets: Array
    values: Array
    valid: Array
    resets: Array
    action_masks: Array | None
    old: PyTree  # the distributions that the actions were sampled from; None where they are not needed


def make_batch(policy: PyTree, rollout: Rollout, rewards: Array, discount: float, gae_lambda: float) -> Batch:
    """The rollout as a Batch, by one pass of the network; advantages are GAE's of these rewards."""
    observations, resets, distributions, values = evaluate_rollout(policy, rollout)
    flags = rollout.terminated, rollout.truncated, rollout.valid
    advantages = gae(rewards, values[:-1], values[1:], *flags, discount, gae_lambda)
    old = without_last(distributions)
    return Batch(
        observations=without_last(observations),
        actions=rollout.actions,
        log_probs=old.log_prob(rollout.actions),
        advantages=advantages,
        value_targets=advantages + values[:-1],
        values=values[:-1],
        valid=rollout.valid,
        resets=resets[:-1],
        action_masks=without_last(rollout.action_masks),
        old=old,
    )


MOST_NUMBER_BITS = 16  # of 32: the others are random


def shuffled_parts(key: Array, batch: PyTree, memory: PyTree, count: int) -> tuple[PyTree, PyTree]:
    """`count` minibatches of a batch, and the memory that each starts from.

    They are whole sequences if there is memory, otherwise single steps.
    """
    if jax.tree.leaves(memory):
        return shuffled_sequences(key, batch, memory, count)
    return shuffled_steps(key, batch, batch.valid, count), memory


def shuffled_steps(key: Array, batch: PyTree, valid: Array, count: int) -> PyTree:
    """[T, B, ...] leaves as `count` minibatches of random steps: [count, 1, T·B / count, ...].

    They hold each of the valid [T, B] steps once.
    """
    time, num_envs = jax.tree.leaves(batch)[0].shape[:2]
    if count == 1:  # the order within a minibatch does not matter
        return jax.tree.map(lambda x: x.reshape(1, 1, time * num_envs, *x.shape[2:]), batch)
    order = with_full_minibatches(random_order(key, time * num_envs), valid.reshape(-1), count)

    def split(x: Array) -> Array:
        flat = x.reshape(time * num_envs, *x.shape[2:])
        return flat[order].reshape(count, 1, -1, *x.shape[2:])

    return jax.tree.map(split, batch)


def random_order(key: Array, count: int) -> Array:
    """The numbers 0 to count - 1, shuffled.

    Random words are sorted, with the numbers in their last bits.

    XLA sorts single words five times faster than pairs (16,384 of them: 1.0 against 4.8 ms). If two
    words have equal random bits, which is rare, the lower number comes first.
    """
    bits = (count - 1).bit_length()
    if bits > MOST_NUMBER_BITS:
        return jnp.argsort(jax.random.bits(key, (count,)))
    numbered = jax.random.bits(key, (count,)) >> bits << bits | jnp.arange(count, dtype=jnp.uint32)
    return jax.lax.sort(numbered, is_stable=False) & jnp.uint32(2**bits - 1)


def with_full_minibatches(order: Array, valid: Array, count: int) -> Array:
    """All valid rows, evenly, in as few of `count` minibatches as can hold them.

    The same order, if that is all of them. In the others an invalid row may stand several times.
    """
    size = len(order) // count
    is_valid = valid[order] > 0
    needed = jnp.maximum(1, -(-jnp.sum(is_valid) // size))
    rank = jnp.cumsum(is_valid) - 1  # of a valid row: they are dealt like cards
    place = jnp.where(is_valid, rank % needed * size + rank // needed, len(order))
    dealt = jnp.full_like(order, jnp.argmin(valid)).at[place].set(order, mode="drop")
    return jnp.where(needed == count, order, dealt)


def shuffled_sequences(key: Array, batch: PyTree, memory: PyTree, count: int) -> tuple[PyTree, PyTree]:
    """[T, B, ...] leaves as `count` minibatches of sequences, [count, T, B / count, ...].

    And the memory that each of them starts from.
    """
    num_envs = jax.tree.leaves(batch)[0].shape[1]
    order = jax.random.permutation(key, num_envs).reshape(count, -1)
    return jax.tree.map(lambda x: jnp.moveaxis(x[:, order], 1, 0), batch), jax.tree.map(lambda m: m[order], memory)
