"""Minibatches: every row once, nothing torn apart."""

import jax
import numpy as np
import pytest

from birl.data.minibatch import shuffled_sequences, shuffled_steps

T, B = 6, 4
TIMES, ENVS = np.meshgrid(np.arange(T), np.arange(B), indexing="ij")  # each row knows where it came from
BATCH = {"time": TIMES, "env": ENVS, "wide": np.stack([TIMES, ENVS], axis=-1)}
MEMORY = (100 * np.arange(B)[:, None] + np.zeros(3), np.arange(B)[:, None])
steps = jax.jit(shuffled_steps, static_argnums=2)
sequences = jax.jit(shuffled_sequences, static_argnums=3)


@pytest.mark.parametrize("count", [1, 2, 3, 8, T * B])
def test_every_step_appears_exactly_once_in_an_epoch(count):
    parts = steps(jax.random.key(0), BATCH, count)
    assert parts["time"].shape == (count, 1, T * B // count)
    rows = zip(np.ravel(parts["time"]).tolist(), np.ravel(parts["env"]).tolist(), strict=True)
    assert sorted(rows) == [(t, i) for t in range(T) for i in range(B)]


def test_the_arrays_of_a_step_stay_together():
    parts = steps(jax.random.key(0), BATCH, 3)
    np.testing.assert_array_equal(parts["wide"], np.stack([parts["time"], parts["env"]], axis=-1))


def test_steps_are_shuffled_and_each_key_shuffles_in_its_own_way():
    first, again, other = (np.asarray(steps(jax.random.key(k), BATCH, 3)["time"]) for k in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert np.any(first != other)
    assert np.any(first.ravel() != TIMES.ravel())


@pytest.mark.parametrize("count", [1, 2, 4])
def test_sequences_stay_whole_and_in_order_and_keep_their_memory(count):
    parts, memory = sequences(jax.random.key(0), BATCH, MEMORY, count)
    assert parts["time"].shape == (count, T, B // count)
    np.testing.assert_array_equal(parts["time"], np.broadcast_to(np.arange(T)[:, None], parts["time"].shape))
    np.testing.assert_array_equal(parts["env"], np.broadcast_to(parts["env"][:, :1], parts["env"].shape))
    np.testing.assert_array_equal(parts["wide"], np.stack([parts["time"], parts["env"]], axis=-1))
    np.testing.assert_array_equal(memory[1][..., 0], parts["env"][:, 0])
    np.testing.assert_array_equal(memory[0], 100 * np.asarray(memory[1]) + np.zeros(3))


def test_every_sequence_appears_exactly_once_in_an_epoch_in_an_order_of_the_keys_own():
    orders = [np.ravel(sequences(jax.random.key(k), BATCH, MEMORY, 2)[0]["env"][:, 0]).tolist() for k in range(8)]
    assert all(sorted(order) == list(range(B)) for order in orders)
    assert len(set(map(tuple, orders))) > 1
