"""The sum tree: it draws in proportion, and each sum is that of the leaves below it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from birl.rollouts.sum_tree import SumTree

WEIGHTS = st.lists(st.one_of(st.just(0.0), st.floats(1e-6, 1e6)), min_size=1, max_size=40).filter(any)
SHARES = st.lists(st.floats(0.0, 1.0, exclude_max=True), min_size=1, max_size=20)


def tree_of(weights: list[float] | np.ndarray) -> SumTree:
    tree = SumTree(len(weights))
    tree.set(np.arange(len(weights)), np.asarray(weights, float))
    return tree


def assert_every_node_is_the_sum_of_its_children(tree: SumTree) -> None:
    nodes = np.arange(1, tree.size)
    np.testing.assert_array_equal(tree.sums[nodes], tree.sums[2 * nodes] + tree.sums[2 * nodes + 1])


def test_leaves_are_drawn_as_often_as_their_weights_say():
    weights = np.array([0.0, 1.0, 2.0, 3.0, 0.0, 4.0, 0.5, 1e-3, 10.0, 0.0, 7.0])
    draws = 100_000
    drawn = tree_of(weights).find(np.random.default_rng(0).random(draws))
    counts = np.bincount(drawn, minlength=len(weights))
    expected = draws * weights / weights.sum()
    assert not counts[weights == 0].any()
    distance = ((counts - expected)[weights > 0] ** 2 / expected[weights > 0]).sum()
    assert distance < 24.3  # χ² with 7 degrees of freedom exceeds it once in 1,000


@given(WEIGHTS, SHARES)
def test_a_share_of_the_total_is_reached_at_the_leaf_that_the_cumulative_sums_say(weights, shares):
    found = tree_of(weights).find(np.array(shares))
    upper = np.cumsum(weights)
    lower = upper - weights
    targets = np.array(shares) * upper[-1]
    slack = 1e-12 * upper[-1]
    assert np.all(lower[found] <= targets + slack)
    assert np.all(targets <= upper[found] + slack)


@given(WEIGHTS, SHARES)
def test_a_leaf_without_weight_is_never_drawn_not_even_by_rounding(weights, shares):
    extremes = [0.0, np.nextafter(1.0, 0.0), 1.0]  # 1 is beyond what a generator gives, as a rest may be by rounding
    found = tree_of(weights).find(np.array([*shares, *extremes]))
    assert np.all(np.array(weights)[found] > 0)


def test_a_single_weight_is_drawn_wherever_it_lies():
    for leaf in range(13):
        weights = np.zeros(13)
        weights[leaf] = 1e-9
        assert set(tree_of(weights).find(np.linspace(0, 1, 50, endpoint=False))) == {leaf}


def test_of_a_leaf_named_twice_the_last_weight_stands():
    tree = SumTree(5)
    tree.set(np.array([1, 3, 1, 3, 1]), np.array([9.0, 9.0, 9.0, 4.0, 2.0]))
    assert tree.weights[:5].tolist() == [0.0, 2.0, 0.0, 4.0, 0.0]
    assert tree.total == 6.0


@given(st.integers(1, 40), st.data())
def test_after_any_changes_the_sums_are_exactly_those_of_a_tree_made_at_once(leaves, data):
    tree = SumTree(leaves)
    weights = np.zeros(leaves)
    for _ in range(data.draw(st.integers(1, 5))):
        changed = data.draw(st.lists(st.integers(0, leaves - 1), min_size=1, max_size=10))
        new = data.draw(st.lists(st.floats(0, 1e6), min_size=len(changed), max_size=len(changed)))
        tree.set(np.array(changed), np.array(new))
        for leaf, weight in zip(changed, new, strict=True):
            weights[leaf] = weight
    np.testing.assert_array_equal(tree.weights[:leaves], weights)
    np.testing.assert_array_equal(tree.sums, tree_of(weights).sums)  # so a restored tree draws the same
    assert_every_node_is_the_sum_of_its_children(tree)


def test_whole_numbers_are_summed_without_any_error_however_often_they_change():
    tree = SumTree(1000)
    rng = np.random.default_rng(0)
    weights = np.zeros(1000)
    for _ in range(300):
        changed = rng.choice(1000, 50, replace=False)
        weights[changed] = rng.integers(0, 2**40, 50)
        tree.set(changed, weights[changed])
    assert tree.total == weights.sum()


def test_leaves_and_shares_may_have_any_shape():
    tree = SumTree(6)
    tree.set(np.arange(6).reshape(2, 3), np.ones((2, 3)))
    shares = np.linspace(0, 1, 12, endpoint=False).reshape(3, 4)
    np.testing.assert_array_equal(tree.find(shares), np.floor(6 * shares + 1e-9).astype(int))


@pytest.mark.parametrize("leaves", [0, 1, 2, 3, 4, 5, 1000, 1024, 1025])
def test_the_bytes_foretold_are_those_taken(leaves):
    tree = SumTree(leaves)
    assert tree.size >= leaves
    assert SumTree.bytes_of(leaves) == tree.sums.nbytes
