"""Schedules against their closed forms, and to text and back."""

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import pytest
from hypothesis import given

from birl.maths.schedules import Schedule, constant, exponential, format, linear, parse, piecewise, value_at

numbers = st.floats(-1e6, 1e6)
positives = st.floats(1e-6, 1e6)
shares = st.lists(st.floats(0.0, 1.0), min_size=1, max_size=5, unique=True).map(sorted)
arguments = st.one_of(
    st.tuples(st.just(float), numbers),
    st.tuples(st.just(constant), numbers),
    st.tuples(st.just(linear), numbers, numbers, st.floats(0.01, 1.0)),
    st.tuples(st.just(exponential), positives, positives),
    shares.flatmap(lambda points: st.tuples(st.just(piecewise), st.just(tuple(points)), st.tuples(*[numbers] * len(points)))),
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


@pytest.mark.parametrize("schedule", [0.5, constant(0.5), linear(1.0, 0.0), exponential(1.0, 0.25), piecewise((0.0, 1.0), (0.0, 1.0))])
def test_a_schedule_is_static_data_in_jit(schedule):
    value = jax.jit(value_at, static_argnums=0)(schedule, jnp.array(0.5))
    assert value == pytest.approx(0.5)
    assert value.dtype == jnp.float32
    assert value.shape == ()


@given(arguments=arguments)
def test_format_and_parse_are_inverse(arguments):
    build, *numbers = arguments
    schedule = build(*numbers)
    assert parse(format(schedule)) == schedule


@pytest.mark.parametrize(
    ("text", "schedule"),
    [
        ("3e-4", 3e-4),
        (" 1 ", 1.0),
        ("linear:3e-4:0", linear(3e-4, 0.0)),
        ("linear:1:0.05:0.2", linear(1.0, 0.05, 0.2)),
        ("exponential:1:0.01", exponential(1.0, 0.01)),
        ("piecewise:0=1,0.5=0.1", piecewise((0.0, 0.5), (1.0, 0.1))),
        ("constant:2", constant(2.0)),
    ],
)
def test_what_the_command_line_writes_is_read(text, schedule):
    assert parse(text) == schedule


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "'' is not a number"),
        ("fast", "'fast' is not a number"),
        ("linear", "'linear' is not a number"),
        ("linear:1", "linear with 1 parts"),
        ("linear:1:x", "'x' is not a number"),
        ("linear:1:0:0", "cannot end at 0"),
        ("linear:1:0:2", "must be shares of the run"),
        ("linear:1:0:0.5:3", "linear with 4 parts"),
        ("cosine:1:0", "cosine with 2 parts"),
        ("exponential:1:0", "values above 0"),
        ("piecewise:0=1,0.5", "'0.5' is not progress=value"),
        ("piecewise:0.5=1,0.2=0", "must increase"),
        ("piecewise:", "'' is not progress=value"),
        ("nan", "'nan' is not finite"),
        ("linear:inf:0", "'inf' is not finite"),
    ],
)
def test_what_cannot_be_read_says_why_and_how_to_write_it(text, complaint):
    with pytest.raises(ValueError, match="linear:3e-4:0") as problem:
        parse(text)
    assert complaint in str(problem.value)
    assert repr(text) in str(problem.value)


@pytest.mark.usefixtures("types_unchecked")
@pytest.mark.parametrize(
    ("kind", "values", "points"),
    [
        ("cosine", (1.0,), ()),
        ("constant", (1.0, 2.0), ()),
        ("linear", (1.0, 0.0), ()),
        ("exponential", (1.0, -1.0), ()),
        ("piecewise", (), ()),
        ("piecewise", (1.0,), (0.0, 1.0)),
        ("piecewise", (1.0, 2.0), (0.5, 0.5)),
        ("constant", (float("nan"),), ()),
    ],
)
def test_a_schedule_that_makes_no_sense_cannot_be_built(kind, values, points):
    with pytest.raises(ValueError, match="schedule"):
        Schedule(kind, values, points)
