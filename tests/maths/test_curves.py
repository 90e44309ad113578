"""Curves against closed forms: straight lines, triangles, points between points."""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from birl.maths.curves import first_reached, mean_between, moving_mean


def test_the_moving_mean_of_a_straight_line_is_the_line():
    x = np.array([0.0, 1.0, 4.0, 10.0])
    at = np.array([2.0, 5.0, 8.0])
    np.testing.assert_allclose(moving_mean(x, 3 * x + 1, at, width=4.0), 3 * at + 1)


def test_the_moving_mean_over_a_whole_triangle_is_half_its_height():
    x, y = np.array([0.0, 1.0, 2.0]), np.array([0.0, 6.0, 0.0])
    np.testing.assert_allclose(moving_mean(x, y, np.array([1.0]), width=2.0), [3.0])


def test_at_the_ends_the_moving_mean_takes_the_half_that_is_there():
    x = np.array([0.0, 10.0])
    np.testing.assert_allclose(moving_mean(x, x, np.array([0.0, 10.0]), width=4.0), [1.0, 9.0])


def test_points_on_a_line_between_points_do_not_change_the_moving_mean():
    sparse, at = np.array([0.0, 2.0, 10.0]), np.linspace(0, 10, 50)
    y = np.array([0.0, 8.0, 4.0])
    dense = np.linspace(0, 10, 101)
    np.testing.assert_allclose(
        moving_mean(sparse, y, at, 3.0), moving_mean(dense, np.interp(dense, sparse, y), at, 3.0)
    )


def test_a_moving_mean_without_width_is_the_line_through_the_points():
    np.testing.assert_allclose(moving_mean(np.array([0.0, 2.0]), np.array([0.0, 4.0]), np.array([0.5]), 0.0), [1.0])


def test_the_mean_of_a_straight_line_is_its_value_in_the_middle():
    x = np.array([0.0, 1.0, 4.0, 10.0])
    assert mean_between(x, 3 * x + 1, 2.0, 8.0) == pytest.approx(16.0)


def test_the_mean_beyond_the_ends_is_that_of_the_part_that_is_there():
    x = np.array([2.0, 6.0])
    assert mean_between(x, x, 0.0, 4.0) == pytest.approx(3.0)
    assert mean_between(x, x, -1.0, 9.0) == pytest.approx(4.0)


@pytest.mark.parametrize(("start", "end", "value"), [(3.0, 3.0, 30.0), (0.0, 1.0, 20.0), (7.0, 9.0, 60.0)])
def test_the_mean_of_a_single_place_is_the_value_there(start, end, value):
    assert mean_between(np.array([2.0, 6.0]), np.array([20.0, 60.0]), start, end) == pytest.approx(value)


def test_the_mean_of_a_single_point_is_its_value():
    assert mean_between(np.array([5.0]), np.array([7.0]), 0.0, 10.0) == 7.0


@given(st.lists(st.floats(-100, 100), min_size=2, max_size=8), st.floats(-50, 50), st.floats(0.1, 0.9))
def test_a_shift_of_the_curve_shifts_its_mean_and_two_parts_make_the_whole(y, shift, cut):
    x, y = np.arange(len(y), dtype=float), np.array(y)
    end = x[-1]
    whole = mean_between(x, y, 0.0, end)
    assert mean_between(x, y + shift, 0.0, end) == pytest.approx(whole + shift, abs=1e-6)
    parts = cut * mean_between(x, y, 0.0, cut * end) + (1 - cut) * mean_between(x, y, cut * end, end)
    assert parts == pytest.approx(whole, abs=1e-6)


def test_a_height_is_first_reached_between_two_points():
    x, y = np.array([0.0, 10.0, 20.0, 30.0]), np.array([0.0, 5.0, 1.0, 9.0])
    assert first_reached(x, y, 2.5) == 5.0  # not later, though the curve falls below it again
    assert first_reached(x, y, 5.0) == 10.0
    assert first_reached(x, y, 7.0) == 27.5
    assert first_reached(x, y, 9.5) is None


def test_a_curve_that_begins_at_the_height_has_reached_it_at_its_first_point():
    for height in (3.0, 2.0):
        assert first_reached(np.array([4.0, 5.0]), np.array([3.0, 0.0]), height) == 4.0


def test_a_huge_value_is_forgotten_where_the_window_has_left_it():
    x, y = np.arange(100.0), np.full(100, 7.0)
    y[0] = 1e20
    means = moving_mean(x, y, x, width=6.0)
    assert means[:4].min() > 1e17
    np.testing.assert_allclose(means[4:], 7.0, rtol=1e-12)
    assert mean_between(x, y, 50.0, 60.0) == pytest.approx(7.0, rel=1e-12)


@given(st.lists(st.floats(-100, 100), min_size=3, max_size=40), st.floats(0.01, 60.0))
def test_the_moving_mean_of_a_line_is_the_difference_of_its_integral(y, width):
    x = np.cumsum(1.0 + np.arange(len(y)) % 3)
    at = np.linspace(x[0], x[-1], 23)
    low, high = np.maximum(at - width / 2, x[0]), np.minimum(at + width / 2, x[-1])
    dense = np.unique(np.concatenate([x, low, high]))  # the integral of the line, exact at all ends of windows
    values = np.interp(dense, x, y)
    integral = np.concatenate([[0.0], np.cumsum(np.diff(dense) * (values[1:] + values[:-1]) / 2)])
    expected = (np.interp(high, dense, integral) - np.interp(low, dense, integral)) / (high - low)
    np.testing.assert_allclose(moving_mean(x, np.array(y), at, width), expected, rtol=1e-6, atol=1e-6)
