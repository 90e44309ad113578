"""Pytrees as flat vectors and back."""

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from birl.algos import a3c
from birl.asynchronous.parameters import parameter_layout
from birl.config import ConfigError, EnvConfig
from birl.envs.make import spaces_of
from birl.nets.optimizers import flatten_tree

TREE = {"bias": np.arange(3, dtype=np.float32), "deep": (np.ones((2, 2), np.float32), np.float32([[7]]))}


def same(left, right) -> bool:
    pairs = zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True)
    return jax.tree.structure(left) == jax.tree.structure(right) and all(np.array_equal(a, b) for a, b in pairs)


def test_a_tree_comes_back_from_its_vector():
    layout = parameter_layout(TREE)
    assert layout.size == 8
    assert layout.vector(TREE).tolist() == [0, 1, 2, 1, 1, 1, 1, 7]
    assert same(layout.tree(layout.vector(TREE)), TREE)


def test_a_vector_made_inside_a_compiled_function_is_the_same():
    assert np.array_equal(jax.jit(flatten_tree)(TREE), parameter_layout(TREE).vector(TREE))
    assert same(jax.jit(parameter_layout(TREE).tree)(jnp.asarray(parameter_layout(TREE).vector(TREE))), TREE)


def test_leaves_are_views_so_that_a_change_of_the_vector_is_seen():
    layout = parameter_layout(TREE)
    vector = parameter_layout(TREE).vector(TREE)
    tree = layout.tree(vector)
    vector[-1] = 9
    assert tree["deep"][1].item() == 9


def test_rows_of_trees_have_an_axis_in_front():
    rows = jax.tree.map(lambda x: np.stack([x, x + 1]), TREE)
    vectors = parameter_layout(TREE).rows(rows, 2)
    assert vectors.shape == (2, 8)
    assert np.array_equal(vectors[1], parameter_layout(TREE).vector(TREE) + 1)
    assert same(parameter_layout(TREE).tree(vectors), rows)


def test_a_tree_without_leaves_has_an_empty_vector():
    layout = parameter_layout({"nothing": None})
    assert layout.size == 0
    assert layout.vector({"nothing": None}).dtype == layout.rows({"nothing": None}, 3).dtype == np.float32
    assert layout.rows({"nothing": None}, 3).shape == (3, 0)
    assert layout.tree(np.zeros(0, np.float32)) == {"nothing": None}
    assert jax.jit(flatten_tree)({"nothing": None}).shape == (0,)


def test_the_layout_of_a_network_can_be_sent_to_another_process():
    network = a3c.init(a3c.Config(), *spaces_of(EnvConfig())).network
    again = pickle.loads(pickle.dumps(parameter_layout(network)))  # noqa: S301
    assert same(again.tree(parameter_layout(network).vector(network)), network)


def test_a_leaf_that_is_one_number_comes_back_here_and_in_another_process():
    tree = {"count": np.float32(5), "mean": np.ones(2, np.float32)}  # moments of observations have one
    for layout in (parameter_layout(tree), pickle.loads(pickle.dumps(parameter_layout(tree)))):  # noqa: S301
        assert same(layout.tree(layout.vector(tree)), tree)


def test_an_array_that_is_not_of_float32_is_named():
    with pytest.raises(
        ConfigError, match=r"array of int64; make it of float32, or a field with eqx.field\(static=True\)"
    ):
        parameter_layout({"count": np.zeros(3, np.int64)})
