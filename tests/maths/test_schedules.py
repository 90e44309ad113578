"""Schedules against their closed forms."""

import functools
import math
import warnings

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from birl.limits import highest, lowest
from birl.maths.schedules import (
    Schedule,
    constant,
    exponential,
    linear,
    number_at,
    parse,
    piecewise,
    schedule,
    value_at,
)

numbers = st.floats(-1e6, 1e6)
positives = st.floats(1e-6, 1e6)
shares = st.lists(st.floats(0.0, 1.0), min_size=1, max_size=5, unique=True).map(sorted)
arguments = st.one_of(
    st.tuples(st.just(float), numbers),
    st.tuples(st.just(constant), numbers),
    st.tuples(st.just(linear), numbers, numbers, st.floats(0.01, 1.0)),
    st.tuples(st.just(exponential), positives, positives),
    shares.flatmap(
        lambda points: st.tuples(st.just(piecewise), st.just(tuple(points)), st.tuples(*[numbers] * len(points)))
    ),
)


@pytest.mark.parametrize(
    ("schedule", "progress", "value"),
    [
        (3e-4, 0.7, 3e-4),
        (constant(2.0), 0.7, 2.0),
        (linear(1.0, 0.0), 0.0, 1.0),
        (linear(1.0, 0.0), 0.25, 0.75),
        (linear(1.0, 0.0), 1.0, 0.0),
        (linear(1.0, 0.05, until=0.2), 0.1, 0.525),
        (linear(1.0, 0.05, until=0.2), 0.2, 0.05),
        (linear(1.0, 0.05, until=0.2), 0.9, 0.05),
        (exponential(1.0, 0.01), 0.0, 1.0),
        (exponential(1.0, 0.01), 0.5, 0.1),
        (exponential(1.0, 0.01), 1.0, 0.01),
        (piecewise((0.2, 0.6, 0.8), (1.0, 3.0, 0.0)), 0.1, 1.0),
        (piecewise((0.2, 0.6, 0.8), (1.0, 3.0, 0.0)), 0.3, 1.5),
        (piecewise((0.2, 0.6, 0.8), (1.0, 3.0, 0.0)), 0.7, 1.5),
        (piecewise((0.2, 0.6, 0.8), (1.0, 3.0, 0.0)), 0.9, 0.0),
    ],
)
def test_value_is_the_closed_form(schedule, progress, value):
    assert value_at(schedule, progress) == pytest.approx(value, rel=1e-6)


@pytest.mark.parametrize("schedule", [linear(1.0, 0.1), exponential(1.0, 0.1), piecewise((0.0, 1.0), (1.0, 0.1))])
def test_progress_is_clamped_to_the_run(schedule):
    assert value_at(schedule, -0.5) == 1.0
    assert value_at(schedule, 1.5) == pytest.approx(0.1)


SCHEDULES = [0.5, constant(0.5), linear(1.0, 0.25), exponential(0.1, 3.0), piecewise((0.2, 0.5, 0.9), (1.0, -2.0, 4.0))]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_lowest_and_highest_are_the_extremes_over_all_progress(schedule):
    values = jax.vmap(lambda progress: value_at(schedule, progress))(jnp.linspace(0.0, 1.0, 1001))
    assert lowest(schedule) == pytest.approx(float(values.min()), abs=1e-6)
    assert highest(schedule) == pytest.approx(float(values.max()), abs=1e-6)


def test_a_schedule_holds_python_floats_so_that_it_can_be_hashed_and_saved():
    schedule = linear(np.float64(1), 0)
    assert repr(schedule) == repr(Schedule("linear", (1.0, 0.0), (1.0,)))
    hash(schedule)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("progress", [-0.5, 0.0, 0.3, 0.5, 0.77, 1.0, 1.5])
def test_number_at_is_value_at_without_jax(schedule, progress):
    assert number_at(schedule, progress) == pytest.approx(float(value_at(schedule, progress)), rel=1e-6, abs=1e-7)


# Functions of progress


def cosine(progress: float) -> float:
    return 0.5 * (1 + math.cos(math.pi * progress))


def test_a_function_is_sampled_at_1001_points_and_a_straight_line_between_two():
    sampled = schedule(cosine)
    assert sampled.kind == "piecewise"
    assert sampled.points == tuple(index / 1000 for index in range(1001))
    assert sampled.values == tuple(cosine(point) for point in sampled.points)
    for progress in (0.0, 0.1234, 0.5, 1.0):
        assert value_at(sampled, progress) == pytest.approx(cosine(progress), abs=2e-6)
    assert number_at(sampled, 0.0005) == pytest.approx((cosine(0) + cosine(0.001)) / 2, abs=1e-12)


@pytest.mark.parametrize(
    "function",
    [
        lambda progress: np.float32(progress),
        lambda progress: jnp.asarray(progress),
        lambda progress: 1 if progress > 0.5 else 0,
        functools.partial(pow, exp=2),
        abs,
    ],
)
def test_a_function_may_give_any_kind_of_number(function):
    assert all(type(value) is float for value in schedule(function).values)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda progress: 1 / (progress - 0.25), r"<lambda> raised ZeroDivisionError \(.*\) at progress 0.25; it must"),
        (
            lambda progress: math.inf if progress == 1 else 0.0,
            "<lambda> gives inf at progress 1; it must give a finite",
        ),
        (lambda progress: None, "<lambda> gives None at progress 0"),
        (lambda progress: "0.1", "<lambda> gives '0.1' at progress 0"),
        (lambda progress: progress < 0.5, "<lambda> gives True at progress 0"),
        (lambda progress: np.full(1000, 0.1), r"<lambda> gives array\(\[0.1, .{40,60}\.\.\. at progress 0"),
        (lambda: 1.0, "<lambda> raised TypeError"),
    ],
)
def test_a_function_that_gives_no_finite_number_is_refused_with_the_point(function, message):
    with pytest.raises(ValueError, match=message):
        schedule(function)


def test_a_function_of_the_progress_that_remains_is_refused_with_the_way_to_turn_it():
    def falling(progress_remaining):
        return progress_remaining * 3e-4

    with pytest.raises(ValueError, match=r"use lambda progress: falling\(1 - progress\)"):
        schedule(falling)
    turned = schedule(lambda progress: falling(1 - progress))
    assert turned.values[0] == 3e-4
    assert turned.values[-1] == 0.0


def test_a_function_that_may_count_backwards_is_warned_of():
    with pytest.warns(UserWarning, match="rises from 0 to 0.0003: progress goes from 0 to 1"):
        schedule(lambda p: 3e-4 * p)


@pytest.mark.parametrize("function", [lambda progress: 3e-4 * progress, lambda p: 3e-4 * (1 - p), lambda p: 1 + p])
def test_a_function_that_is_meant_as_it_is_is_not_warned_of(function):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        schedule(function)


def test_a_schedule_of_many_points_is_short_where_people_read_it():
    assert repr(schedule(cosine)) == "Schedule(1,001 points from 1 to 0)"
    points = ",".join(f"{index / 20}={index}" for index in range(20))
    assert repr(parse("piecewise:" + points)) == "Schedule(20 points from 0 to 19)"
    with pytest.raises(ValueError, match="must be finite") as refused:
        piecewise(schedule(cosine).points, (math.nan,) * 1001)
    assert len(str(refused.value)) < 150
