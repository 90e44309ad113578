"""Minibatches: every row once, nothing torn apart."""

import jax
import numpy as np
import pytest

from birl.rollouts.batch import random_order, shuffled_sequences, shuffled_steps, with_full_minibatches

T, B = 6, 4
TIMES, ENVS = np.meshgrid(np.arange(T), np.arange(B), indexing="ij")  # each row knows where it came from
BATCH = {"time": TIMES, "env": ENVS, "wide": np.stack([TIMES, ENVS], axis=-1)}
MEMORY = (100 * np.arange(B)[:, None] + np.zeros(3), np.arange(B)[:, None])
ALL = np.ones((T, B), bool)
steps = jax.jit(shuffled_steps, static_argnums=3)
sequences = jax.jit(shuffled_sequences, static_argnums=3)


@pytest.mark.parametrize("count", [1, 2, 3, 8, T * B])
def test_every_step_appears_exactly_once_in_an_epoch(count):
    parts = steps(jax.random.key(0), BATCH, ALL, count)
    assert parts["time"].shape == (count, 1, T * B // count)
    rows = zip(np.ravel(parts["time"]).tolist(), np.ravel(parts["env"]).tolist(), strict=True)
    assert sorted(rows) == [(t, i) for t in range(T) for i in range(B)]


def test_the_arrays_of_a_step_stay_together():
    parts = steps(jax.random.key(0), BATCH, ALL, 3)
    np.testing.assert_array_equal(parts["wide"], np.stack([parts["time"], parts["env"]], axis=-1))


def test_steps_are_shuffled_and_each_key_shuffles_in_its_own_way():
    first, again, other = (np.asarray(steps(jax.random.key(k), BATCH, ALL, 3)["time"]) for k in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert np.any(first != other)
    assert np.any(first.ravel() != TIMES.ravel())


@pytest.mark.parametrize(("valid_rows", "full"), [(24, 6), (20, 5), (13, 4), (12, 3), (5, 2), (1, 1), (0, 0)])
def test_the_valid_steps_fill_as_few_minibatches_as_can_hold_them(valid_rows, full):
    valid = np.random.default_rng(0).permutation(T * B).reshape(T, B) < valid_rows
    parts = steps(jax.random.key(0), BATCH | {"valid": valid}, valid, 6)
    held = np.asarray(parts["valid"]).sum(axis=(1, 2))
    assert np.count_nonzero(held) == full
    assert full == 0 or np.ptp(held[:full]) <= 1  # evenly
    rows = zip(np.asarray(parts["time"])[parts["valid"]], np.asarray(parts["env"])[parts["valid"]], strict=True)
    assert sorted(rows) == [(t, i) for t in range(T) for i in range(B) if valid[t, i]]


def test_a_few_resets_leave_the_order_as_it_was():
    order = random_order(jax.random.key(0), T * B)
    few = np.arange(T * B) > 2  # each of six minibatches may lack some
    np.testing.assert_array_equal(with_full_minibatches(order, few, 6), order)


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


@pytest.mark.parametrize("count", [1, 2, 7, 64, 2**16, 2**16 + 1])
def test_an_order_has_every_number_once(count):
    np.testing.assert_array_equal(np.sort(random_order(jax.random.key(0), count)), np.arange(count))


def test_each_number_comes_at_each_place_equally_often():
    orders = np.asarray(jax.vmap(lambda key: random_order(key, 5))(jax.random.split(jax.random.key(0), 20_000)))
    counts = np.stack([np.bincount(column, minlength=5) for column in orders.T])
    assert np.abs(counts - 4000).max() < 4.5 * np.sqrt(20_000 * 0.2 * 0.8)
    _, frequencies = np.unique(orders, axis=0, return_counts=True)
    assert len(frequencies) == 120
    assert np.abs(frequencies - 20_000 / 120).max() < 4.5 * np.sqrt(20_000 / 120)
