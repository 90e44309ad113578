"""A binary tree of sums: to sample from n weights, or change one, takes log n steps."""

import numpy as np


class SumTree:
    """n weights, sampled in proportion to their size."""

    def __init__(self, entries: int):
        self.size = _size_for(entries)
        self.sums = np.zeros(2 * self.size)  # root 1; children of i: 2i and 2i + 1; entries last

    @staticmethod
    def bytes_of(entries: int) -> int:
        """The size in memory of a tree with this many entries."""
        return 2 * _size_for(entries) * np.dtype(float).itemsize

    @property
    def total(self) -> float:
        return float(self.sums[1])

    @property
    def weights(self) -> np.ndarray:
        """The weights of all entries."""
        return self.sums[self.size :]

    def set(self, entries: np.ndarray, weights: np.ndarray) -> None:
        """Give entries new weights; if an entry is given twice, its last weight counts."""
        nodes = entries.ravel() + self.size
        self.sums[nodes] = weights.ravel()
        for _ in range(self.size.bit_length() - 1):
            nodes = nodes >> 1
            self.sums[nodes] = self.sums[2 * nodes] + self.sums[2 * nodes + 1]

    def find(self, shares: np.ndarray) -> np.ndarray:
        """The entries where the sum from the left reaches these shares of the total, in [0, 1)."""
        nodes = np.ones(shares.shape, np.int64)
        rest = shares * self.total
        for _ in range(self.size.bit_length() - 1):
            left = self.sums[2 * nodes]
            # Rounding may leave a rest beyond the last weight: never go to an entry of weight 0.
            right = (rest >= left) & (self.sums[2 * nodes + 1] > 0)
            rest = np.where(right, rest - left, rest)
            nodes = 2 * nodes + right
        return nodes - self.size


def _size_for(entries: int) -> int:
    """The smallest power of 2 that holds this many entries."""
    return 1 << max(0, entries - 1).bit_length()
