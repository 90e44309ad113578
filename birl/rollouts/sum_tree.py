"""A binary tree of sums: draws from n weights, and changes them, in log n steps."""

import numpy as np


class SumTree:
    """n weights, to be drawn in proportion."""

    def __init__(self, leaves: int):
        self.size = _size_for(leaves)
        self.sums = np.zeros(2 * self.size)  # the root is 1, the children of i are 2i and 2i + 1, the leaves come last

    @staticmethod
    def bytes_of(leaves: int) -> int:
        """What a tree of so many leaves takes."""
        return 2 * _size_for(leaves) * np.dtype(float).itemsize

    @property
    def total(self) -> float:
        return float(self.sums[1])

    @property
    def weights(self) -> np.ndarray:
        """Of all leaves."""
        return self.sums[self.size :]

    def set(self, leaves: np.ndarray, weights: np.ndarray) -> None:
        """Give leaves new weights; if one is named twice, the last."""
        nodes = leaves.ravel() + self.size
        self.sums[nodes] = weights.ravel()
        for _ in range(self.size.bit_length() - 1):
            nodes = nodes >> 1
            self.sums[nodes] = self.sums[2 * nodes] + self.sums[2 * nodes + 1]

    def find(self, shares: np.ndarray) -> np.ndarray:
        """The leaves at which these shares of the total, each in [0, 1), are reached, counted from
        the left.
        """
        nodes, rest = np.ones(shares.shape, np.int64), shares * self.total
        for _ in range(self.size.bit_length() - 1):
            left = self.sums[2 * nodes]
            # Rounding may leave a rest beyond the last weight: never go where there is none.
            right = (rest >= left) & (self.sums[2 * nodes + 1] > 0)
            rest = np.where(right, rest - left, rest)
            nodes = 2 * nodes + right
        return nodes - self.size


def _size_for(leaves: int) -> int:
    """The power of 2 that holds so many leaves."""
    return 1 << max(0, leaves - 1).bit_length()
