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
    return _area(x, y, low, high) / (high - low)


def mean_between(x: np.ndarray, y: np.ndarray, start: float, end: float) -> float:
    """The mean of the line over [start, end], as far as it goes: its area divided by its length.

    Of a single place it is the value there.
    """
    low, high = np.clip([start, end], x[0], x[-1])
    if low == high:
        return float(np.interp(low, x, y))
    return float(_area(x, y, np.array([low]), np.array([high]))[0] / (high - low))


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


def _area(x: np.ndarray, y: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """The integral of the line through the points over each window from low to high.

    It adds up what is inside of the window: as the difference of two sums from the beginning on, it
    would be lost after one huge value.
    """
    at_low, at_high = np.interp(low, x, y), np.interp(high, x, y)
    first = np.clip(np.searchsorted(x, low, side="right"), 1, len(x) - 1)  # the first point after low
    last = np.clip(np.searchsorted(x, high, side="left") - 1, 0, len(x) - 2)  # the last one before high
    inside = _range_sums(np.diff(x) * (y[1:] + y[:-1]) / 2, first, last)
    ends = (x[first] - low) * (at_low + y[first]) / 2 + (high - x[last]) * (y[last] + at_high) / 2
    return np.where(first > last, (high - low) * (at_low + at_high) / 2, inside + ends)


def _range_sums(values: np.ndarray, start: np.ndarray, stop: np.ndarray) -> np.ndarray:
    """The sums of values[start:stop] for many ranges, each from sums of 1, 2, 4, ... of them."""
    totals = np.zeros(start.shape)
    while (wanted := start < stop).any():
        odd = wanted & (start % 2 == 1)
        totals[odd] += values[start[odd]]
        start = start + odd
        odd = (start < stop) & (stop % 2 == 1)
        stop = stop - odd
        totals[odd] += values[stop[odd]]
        start, stop = start // 2, stop // 2
        values = np.append(values, 0.0)[: len(values) + len(values) % 2].reshape(-1, 2).sum(axis=1)
    return totals
