"""The tree of sums in JAX: its sums, its last weights, and how often entries are sampled."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from birl.rollouts.device_sum_tree import sample_entries, set_weights, tree_of, weights_of


@pytest.mark.parametrize("entries", [1, 2, 5, 64, 100])
def test_every_node_is_the_sum_of_its_children_after_any_changes(entries):
    rng = np.random.default_rng(entries)
    sums = tree_of(jnp.array(rng.random(entries), jnp.float32))
    set_some = jax.jit(set_weights)
    for _ in range(4):
        changed = rng.integers(entries, size=(3, 5))
        sums = set_some(sums, changed, rng.random((3, 5)).astype(np.float32), np.ones((3, 5), bool))
    size = len(sums) // 2
    assert size >= entries
    assert np.all(weights_of(sums)[entries:] == 0)
    nodes = np.arange(1, size)
    np.testing.assert_array_equal(sums[nodes], sums[2 * nodes] + sums[2 * nodes + 1])


def test_a_changed_tree_equals_one_built_from_its_weights_bit_for_bit():
    rng = np.random.default_rng(0)
    sums = tree_of(jnp.zeros(100))
    for _ in range(10):
        sums = set_weights(sums, rng.integers(100, size=20), rng.random(20).astype(np.float32), np.ones(20, bool))
    np.testing.assert_array_equal(tree_of(weights_of(sums)[:100]), sums)


def test_of_an_entry_given_twice_the_last_weight_counts_and_unwanted_ones_change_nothing():
    sums = tree_of(jnp.ones(6))
    entries, weights = np.array([3, 1, 3, 1, 5]), np.array([7.0, 8.0, 9.0, 2.0, 4.0], np.float32)
    sums = set_weights(sums, entries, weights, np.array([True, True, True, False, False]))
    np.testing.assert_array_equal(weights_of(sums)[:6], [1, 8, 1, 9, 1, 1])
    assert sums[1] == 21


def test_entries_are_sampled_in_proportion_to_their_weights_and_never_without_one():
    weights = np.array([0, 3, 0, 1, 0.5, 0, 0, 2, 0, 0, 8, 0], np.float32)
    found = np.asarray(sample_entries(tree_of(jnp.array(weights)), jax.random.PRNGKey(0), (40, 1000)))
    counts = np.bincount(found.ravel(), minlength=12)
    assert np.all(counts[weights == 0] == 0)
    expected = 40_000 * weights[weights > 0] / weights.sum()
    freedom = len(expected) - 1
    assert ((counts[weights > 0] - expected) ** 2 / expected).sum() < freedom + 5 * np.sqrt(2 * freedom)


def test_a_million_entries_are_sampled_evenly_in_every_part_of_the_tree():
    found = np.asarray(sample_entries(tree_of(jnp.ones(2**20)), jax.random.PRNGKey(1), (200_000,)))
    for counts in (np.bincount(found % 128, minlength=128), np.bincount(found >> 13, minlength=128)):
        assert ((counts - 200_000 / 128) ** 2 / (200_000 / 128)).sum() < 127 + 5 * np.sqrt(2 * 127)
