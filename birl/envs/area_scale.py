"""Images scaled to another size by averaging areas, as OpenCV's INTER_AREA does."""

import numpy as np


class AreaScale:
    """Scale images of one size to another; each new pixel is the mean of the area it covers.

    The sums are float32 and in OpenCV's order, because the last bit decides how a half is rounded.
    """

    def __init__(self, source: tuple[int, int], target: tuple[int, int]) -> None:
        self._rows, self._row_weights = _area_table(source[0], target[0], target[1])
        self._columns, self._column_weights = _area_table(source[1], target[1], source[0])

    def __call__(self, image: np.ndarray) -> np.ndarray:
        columns = image.T.astype(np.float32, order="C")  # gathering whole lines is faster than single pixels
        across = _weighted_sum(columns, self._columns, self._column_weights)
        return np.rint(_weighted_sum(across.T.copy(), self._rows, self._row_weights)).astype(np.uint8)


def _weighted_sum(lines: np.ndarray, indices: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """[target, width] Σ_k weights[k] lines[indices[k]], added in the order of k."""
    total = lines.take(indices[0], 0)
    total *= weights[0]
    for index, weight in zip(indices[1:], weights[1:], strict=True):
        part = lines.take(index, 0)
        part *= weight
        total += part
    return total


def _area_table(source: int, target: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """[K, target] the lines that each new line covers, and [K, target, width] their weights.

    The weight is 0 where a new line covers fewer than K lines.
    """
    edges = np.arange(target + 1) * (source / target)
    edges = np.where(np.abs(edges - np.rint(edges)) < 1e-9, np.rint(edges), edges)
    first = np.floor(edges[:-1]).astype(int)
    count = int((np.ceil(edges[1:]) - first).max())
    lines = first + np.arange(count)[:, None]
    covered = np.minimum(lines + 1, edges[1:]) - np.maximum(lines, edges[:-1])
    weights = np.maximum(covered, 0) / (source / target)
    return np.minimum(lines, source - 1), np.repeat(weights.astype(np.float32)[..., None], width, axis=2)
