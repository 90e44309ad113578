"""Pictures of environments that have none of their own."""

import numpy as np

SIDE = 240  # pixels of the longer side, at least
EMPTY = (24, 24, 32)
COLORS = np.array(  # of the channels; they repeat after ten
    [
        (31, 119, 180),
        (255, 127, 14),
        (44, 160, 44),
        (214, 39, 40),
        (148, 103, 189),
        (140, 86, 75),
        (227, 119, 194),
        (160, 160, 160),
        (188, 189, 34),
        (23, 190, 207),
    ],
    np.uint8,
)


def picture_of_grid(grid: np.ndarray) -> np.ndarray:
    """[height, width, 3] bytes: a square for each cell of [rows, columns, channels].

    Its colour is that of the first channel that is not 0 there.
    """
    rows, columns, channels = grid.shape
    filled = grid > 0
    palette = np.concatenate([np.array([EMPTY], np.uint8), COLORS[np.arange(channels) % len(COLORS)]])
    cells = palette[np.where(filled.any(axis=2), filled.argmax(axis=2) + 1, 0)]
    size = max(1, -(-SIDE // max(rows, columns)))
    return cells.repeat(size, axis=0).repeat(size, axis=1)
