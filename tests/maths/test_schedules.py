"""Schedules against their closed forms."""

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from birl.checks import highest, lowest
from birl.maths.schedules import Schedule, constant, exponential, linear, piecewise, value_at

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
