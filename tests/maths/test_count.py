"""A Count keeps counting beyond 32 bits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from birl.maths.count import WRAP_AT, Count, count_of, increment_wrapped

EDGES = [0, 1, 2**24, 2**31 - 3, 2**31, 2**32 - 3, 2**32, 3_000_000_000, 2**53 - 10]


@pytest.mark.parametrize("number", EDGES)
def test_a_count_is_the_number_it_was_made_from(number):
    assert int(count_of(number)) == number
    assert np.asarray(count_of(number)).dtype == np.int64
    assert int(np.asarray(count_of(number))) == number
    assert repr(count_of(number)) == f"Count({number})"


@pytest.mark.parametrize("number", EDGES)
@pytest.mark.parametrize("more", [0, 1, 5, 4096, 2**31 - 1])
def test_it_adds_like_integers_compiled_or_not(number, more):
    assert int(count_of(number) + more) == number + more
    assert int(jax.jit(lambda count, more: count + more)(count_of(number), np.int32(more))) == number + more


@pytest.mark.parametrize("number", EDGES)
def test_its_fraction_of_a_total_is_right_to_float32_precision(number):
    for total in (2**31 - 1, 3_000_000_000, 2**53):
        share = jax.jit(lambda count, total=total: count / total)(count_of(number))
        assert share.dtype == jnp.float32
        assert float(share) == pytest.approx(number / total, rel=3e-7)


@pytest.mark.parametrize("number", EDGES)
def test_it_compares_like_integers(number):
    less = jax.jit(lambda count, limit: count < limit, static_argnames="limit")
    for limit in (number - 1, number, number + 1, 0, 2**32, 2**33):
        if limit >= 0:
            assert bool(less(count_of(number), limit=limit)) == (number < limit)


def test_it_can_be_carried_through_a_scan():
    counts = jax.lax.scan(lambda count, more: (count + more, None), count_of(2**32 - 5), jnp.full(10, 3, jnp.int32))[0]
    assert isinstance(counts, Count)
    assert int(counts) == 2**32 + 25


@pytest.mark.parametrize("period", [1, 2, 3, 7, 1000, 99_991, 2**31 - 1])
def test_turns_keep_their_period_when_they_wrap(period):
    """Also from a number of turns above the limit, as older versions counted."""
    limit = WRAP_AT // period * period or period
    for start in (limit - 4, 2**31 - 10):
        number = jnp.int32(start)
        step = jax.jit(increment_wrapped, static_argnames="period")
        for more in range(1, 9):
            number = step(number, period=period)
            assert 0 <= int(number) < limit
            assert int(number) % period == (start + more) % period
