"""Pytrees as flat vectors, so that what actor-learners share is a few arrays in one block of
memory.
"""

from math import prod
from typing import Any, NamedTuple

import jax
import numpy as np

from birl.config import ConfigError
from birl.types import Array, PyTree


class ParameterLayout(NamedTuple):
    """Where the leaves of a pytree lie in a vector, one after the other."""

    structure: Any  # JAX's description of the tree
    shapes: tuple[tuple[int, ...], ...]

    @property
    def size(self) -> int:
        return sum(map(prod, self.shapes))

    def __reduce__(self) -> tuple[Any, ...]:
        """To another process goes a tree, not its description, whose marks for what is missing
        would be others there.
        """
        return layout_of, (self.tree(np.zeros(self.size, np.float32)),)

    def vector(self, tree: PyTree) -> np.ndarray:
        """[size] the leaves side by side."""
        leaves = [np.ravel(leaf) for leaf in jax.tree.leaves(tree)]
        return np.concatenate(leaves) if leaves else np.zeros(0, np.float32)

    def rows(self, tree: PyTree, count: int) -> np.ndarray:
        """[count, size] the same of a tree whose leaves have an axis [count] in front."""
        leaves = [np.asarray(leaf, np.float32).reshape(count, -1) for leaf in jax.tree.leaves(tree)]
        return np.concatenate(leaves, axis=1) if leaves else np.zeros((count, 0), np.float32)

    def tree(self, vector: Array) -> PyTree:
        """The tree again, of a vector [..., size]; its leaves [..., *shape] are views where NumPy
        can make them.
        """
        leaves, first = [], 0
        for shape in self.shapes:
            leaves.append(vector[..., first : first + prod(shape)].reshape((*vector.shape[:-1], *shape)))
            first += prod(shape)
        return jax.tree.unflatten(self.structure, leaves)


def layout_of(tree: PyTree) -> ParameterLayout:
    """The layout of this tree; ConfigError if one of its arrays is not of float32, which is what
    vectors are made of.
    """
    leaves, structure = jax.tree.flatten(tree)
    wrong = [str(leaf.dtype) for leaf in leaves if leaf.dtype != np.float32]
    if wrong:
        raise ConfigError(
            f"the network has an array of {wrong[0]}; make it of float32, or a field with eqx.field(static=True)"
        )
    return ParameterLayout(structure, tuple(leaf.shape for leaf in leaves))
