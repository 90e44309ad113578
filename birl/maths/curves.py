"""Curves through points (x, y) with straight lines between them: means, and where they rise."""

import numpy as np


def moving_mean(x: np.ndarray, y: np.ndarray, at: np.ndarray, width: float) -> np.ndarray:
    """The mean of the line through the points (x, y), over windows of this width around `at`.

    Windows end where the curve ends. The mean is over the line, not over the points, so that it
    does not depend on how dense they are. With a width of 0 it is the line itself.
    """
    if width <= 0 or len(x) == 1:
        return np.interp(at, x, y)
    low, high = np.clip(at - width / 2, x[0], x[-1]), np.clip(at + width / 2, x[0], x[-1])
    return (_integral(x, y, high) - _integral(x, y, low)) / (high - low)


def mean_between(x: np.ndarray, y: np.ndarray, start: float, end: float) -> float:
    """The mean of the line over [start, end], as far as it goes: its area divided by its length.

    Of a single place it is the value there.
    """
    low, high = np.clip([start, end], x[0], x[-1])
    if low == high:
        return float(np.interp(low, x, y))
    return float(np.diff(_integral(x, y, np.array([low, high])))[0] / (high - low))


def first_reached(x: np.ndarray, y: np.ndarray, height: float) -> float | None:
    """Where the line first is at or above this height; None if it never is."""
    above = np.flatnonzero(y >= height)
    if not len(above):
        return None
    end = above[0]
    if end == 0:
        return float(x[0])
    share = (height - y[end - 1]) / (y[end] - y[end - 1])
    return float(x[end - 1] + share * (x[end] - x[end - 1]))


def _integral(x: np.ndarray, y: np.ndarray, to: np.ndarray) -> np.ndarray:
    """The integral of the line through the points, from x[0] to `to`."""
    areas = np.concatenate([[0.0], np.cumsum(np.diff(x) * (y[1:] + y[:-1]) / 2)])
    before = np.clip(np.searchsorted(x, to, side="right") - 1, 0, len(x) - 2)
    return areas[before] + (to - x[before]) * (y[before] + np.interp(to, x, y)) / 2
