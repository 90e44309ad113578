"""The sum tree: it draws in proportion, and each sum is that of the leaves below it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from birl.rollouts.sum_tree import sample_entries, set_weights, tree_of, weights_of

WEIGHT = st.one_of(st.just(0.0), st.floats(2.0**-20, 2.0**20, width=32))
WEIGHTS = st.lists(WEIGHT, min_size=1, max_size=40).filter(any)
some = settings(max_examples=40)
set_in_a_program = jax.jit(set_weights)


def key(number: int) -> np.ndarray:
    return np.array([0, number], np.uint32)


def tree(weights: list[float] | np.ndarray) -> jax.Array:
    return tree_of(jnp.array(weights, jnp.float32))


def set_all(sums: jax.Array, entries: np.ndarray, weights: np.ndarray) -> jax.Array:
    return set_in_a_program(sums, entries, np.asarray(weights, np.float32), np.ones(entries.shape, bool))


def assert_every_node_is_the_sum_of_its_children(sums: jax.Array) -> None:
    sums = np.asarray(sums)
    nodes = np.arange(1, len(sums) // 2)
    np.testing.assert_array_equal(sums[nodes], sums[2 * nodes] + sums[2 * nodes + 1])


def assert_frequencies(counts: np.ndarray, weights: np.ndarray) -> None:
    """χ² of the counts lies within five deviations of its mean; none is without a weight."""
    assert not counts[weights == 0].any()
    expected = (counts.sum() * weights / weights.sum())[weights > 0]
    freedom = len(expected) - 1
    assert ((counts[weights > 0] - expected) ** 2 / expected).sum() < freedom + 5 * np.sqrt(2 * freedom)


@pytest.mark.parametrize("sample", [sample_entries, jax.jit(sample_entries, static_argnums=2)], ids=["plain", "jit"])
def test_leaves_are_drawn_as_often_as_their_weights_say_and_never_without_one(sample):
    weights = np.array([0.0, 1.0, 2.0, 3.0, 0.0, 4.0, 0.5, 2e-3, 10.0, 0.0, 7.0])
    found = np.asarray(sample(tree(weights), key(0), (100, 1000)))
    assert found.shape == (100, 1000)
    assert_frequencies(np.bincount(found.ravel(), minlength=len(weights)), weights)


def test_a_million_leaves_are_drawn_evenly_in_every_part_of_the_tree():
    found = np.asarray(sample_entries(tree(np.ones(2**20)), key(1), (200_000,)))
    for part in (found % 128, found >> 13):
        assert_frequencies(np.bincount(part, minlength=128), np.ones(128))


@some
@given(WEIGHTS, st.integers(0, 1000))
def test_a_leaf_without_weight_is_never_drawn(weights, seed):
    padded = np.zeros(40)
    padded[: len(weights)] = weights
    found = np.asarray(sample_entries(tree(padded), key(seed), (100,)))
    assert np.all(padded[found] > 0)


@pytest.mark.parametrize("uniform", [0.0, 1.0 - 2.0**-24])
def test_not_even_the_extremes_of_a_uniform_number_lead_to_a_leaf_without_weight(uniform, monkeypatch):
    monkeypatch.setattr(jax.random, "uniform", lambda key, shape: jnp.full(shape, uniform, jnp.float32))
    for leaf in range(13):
        for weight in (1e-6, 1.0, 1 / 3, 1e9):
            weights = np.zeros(13)
            weights[leaf] = weight
            assert np.asarray(sample_entries(tree(weights), key(0), (3,))).tolist() == [leaf] * 3


def test_other_keys_draw_others_and_the_same_key_the_same():
    first, again, other = (np.asarray(sample_entries(tree(np.ones(100)), key(seed), (50,))) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert np.any(first != other)


def test_of_a_leaf_named_twice_the_last_weight_stands_and_unwanted_ones_change_nothing():
    entries, weights = np.array([3, 1, 3, 1, 5]), np.array([7.0, 8.0, 9.0, 2.0, 4.0], np.float32)
    sums = set_weights(tree(np.ones(6)), entries, weights, np.array([True, True, True, False, False]))
    np.testing.assert_array_equal(weights_of(sums)[:6], [1, 8, 1, 9, 1, 1])
    assert sums[1] == 21


@some
@given(st.sampled_from([1, 2, 3, 5, 16, 40]), st.data())
def test_after_any_changes_the_sums_are_exactly_those_of_a_tree_made_at_once(leaves, data):
    sums = tree(np.zeros(leaves))
    weights = np.zeros(leaves)
    for _ in range(data.draw(st.integers(1, 5))):
        changed = data.draw(st.lists(st.integers(0, leaves - 1), min_size=10, max_size=10))
        new = data.draw(st.lists(WEIGHT, min_size=10, max_size=10))
        sums = set_all(sums, np.array(changed), np.array(new))
        for leaf, weight in zip(changed, new, strict=True):
            weights[leaf] = weight
    np.testing.assert_array_equal(weights_of(sums)[:leaves], weights.astype(np.float32))
    np.testing.assert_array_equal(sums, tree(weights))  # so a restored tree draws the same
    assert_every_node_is_the_sum_of_its_children(sums)


def test_whole_numbers_are_summed_without_any_error_however_often_they_change():
    sums = tree(np.zeros(1000))
    rng = np.random.default_rng(0)
    weights = np.zeros(1000)
    for _ in range(100):
        changed = rng.choice(1000, 50, replace=False)
        weights[changed] = rng.integers(0, 2**14, 50)
        sums = set_all(sums, changed, weights[changed])
    assert sums[1] == weights.sum() < 2**24


@pytest.mark.parametrize("entries", [1, 2, 5, 64, 100])
def test_leaves_may_have_any_shape_and_are_set_alike_inside_a_program_and_outside(entries):
    rng = np.random.default_rng(entries)
    inside = outside = tree(rng.random(entries))
    for _ in range(4):
        changed, weights = rng.integers(entries, size=(3, 5)), rng.random((3, 5)).astype(np.float32)
        wanted = rng.random((3, 5)) < 0.8
        outside = set_weights(outside, changed, weights, wanted)
        inside = set_in_a_program(inside, changed, weights, wanted)
        np.testing.assert_array_equal(inside, outside)
        assert_every_node_is_the_sum_of_its_children(outside)
    assert np.all(weights_of(outside)[entries:] == 0)


@pytest.mark.parametrize("leaves", [1, 2, 3, 4, 5, 1000, 1024, 1025])
def test_there_is_room_for_a_power_of_two_and_no_more(leaves):
    sums = tree(np.ones(leaves))
    assert leaves <= len(weights_of(sums)) < 2 * leaves
    assert len(sums) == 2 * len(weights_of(sums))
