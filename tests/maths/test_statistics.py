"""Moments against NumPy in float64; scores against values worked by hand, and against SciPy."""

import itertools

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from hypothesis import given

from birl.maths.losses import explained_variance
from birl.maths.statistics import Moments, bootstrap_interval, initial_moments, iqm, normalize_by, update_moments

update = jax.jit(update_moments)


def moments_of(batches: list[np.ndarray]) -> Moments:
    moments = initial_moments(batches[0].shape[1:])
    for batch in batches:
        moments = update(moments, jnp.array(batch, jnp.float32))
    return moments


@given(
    seed=st.integers(0, 2**32 - 1),
    sizes=st.lists(st.sampled_from([1, 2, 7]), min_size=1, max_size=6),
    offset=st.floats(-100.0, 100.0),
)
def test_moments_of_batches_are_those_of_all_samples_together(seed, sizes, offset):
    generator = np.random.default_rng(seed)
    batches = [generator.normal(offset, 3.0, size=(size, 2)) for size in sizes]
    together = np.concatenate(batches)
    moments = moments_of(batches)
    assert moments.count == len(together)
    np.testing.assert_allclose(moments.mean, together.mean(axis=0), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(moments.variance, together.var(axis=0), rtol=1e-3, atol=1e-3)


def test_moments_stay_exact_far_from_0_in_float32():
    samples = np.random.default_rng(0).normal(1e4, 1.0, size=(1000, 8, 1))
    moments = moments_of(list(samples))
    assert moments.mean[0] == pytest.approx(samples.mean(), rel=1e-6)
    assert moments.variance[0] == pytest.approx(samples.var(), rel=1e-2)


def test_rows_of_weight_0_do_not_count_even_if_nan():
    batch, weights = jnp.array([[1.0], [jnp.nan], [3.0]]), jnp.array([True, False, True])
    moments = update(initial_moments((1,)), batch, weights)
    assert (moments.count, moments.mean[0], moments.variance[0]) == (2.0, 2.0, 1.0)


@pytest.mark.parametrize("before", [initial_moments((2,)), moments_of([np.array([[1.0, 2.0], [5.0, 9.0]])])])
def test_a_batch_without_weight_changes_nothing(before):
    after = update(before, jnp.ones((3, 2)), jnp.zeros(3))
    assert all(jnp.array_equal(one, other) for one, other in zip(before, after, strict=True))


def test_normalizing_by_initial_moments_changes_nothing():
    x = jnp.array([0.5, -2.0])
    np.testing.assert_allclose(normalize_by(initial_moments((2,)), x), x)


def test_normalized_samples_have_mean_0_and_deviation_1_and_are_clipped():
    samples = np.random.default_rng(0).normal(50.0, 7.0, size=(500, 3))
    normalized = np.asarray(normalize_by(moments_of([samples]), jnp.array(samples, jnp.float32)))
    np.testing.assert_allclose(normalized.mean(axis=0), 0.0, atol=1e-4)
    np.testing.assert_allclose(normalized.std(axis=0), 1.0, rtol=1e-4)
    assert normalize_by(moments_of([samples]), jnp.full(3, 1e6), clip=5.0).tolist() == [5.0] * 3


def test_normalizing_a_constant_is_finite():
    moments = moments_of([np.full((8, 1), 3.0)])
    assert normalize_by(moments, jnp.array([3.0])) == 0.0
    assert normalize_by(moments, jnp.array([4.0])) == 10.0


@pytest.mark.parametrize(
    ("values", "explained"),
    [
        ([1.0, 2.0, 3.0, 6.0], 1.0),
        ([11.0, 12.0, 13.0, 16.0], 1.0),
        ([0.0, 0.0, 0.0, 0.0], 0.0),
        ([-1.0, -2.0, -3.0, -6.0], -3.0),
    ],
)
def test_explained_variance_is_the_closed_form(values, explained):
    targets, valid = jnp.array([1.0, 2.0, 3.0, 6.0, 99.0]), jnp.array([1.0, 1.0, 1.0, 1.0, 0.0])
    assert explained_variance(jnp.array([*values, 0.0]), targets, valid) == pytest.approx(explained, abs=1e-6)


@pytest.mark.parametrize("target", [0.0, 0.1, 1234.567])
@pytest.mark.parametrize("valid", [0.0, 1.0])
def test_explained_variance_of_targets_that_do_not_vary_is_0(target, valid):
    assert explained_variance(jnp.arange(100.0), jnp.full(100, target), jnp.full(100, valid)) == 0.0


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([7.0], 7.0),
        ([1.0, 9.0, 2.0], 4.0),  # too few to drop any
        ([100.0, 2.0, 3.0, -50.0], 2.5),
        ([8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0], 4.5),
        ([0.0, 10.0, 20.0, 30.0, 1000.0], 20.0),
    ],
)
def test_iqm_drops_the_lowest_and_the_highest_quarter(scores, expected):
    assert iqm(np.array(scores)) == pytest.approx(expected)


@pytest.mark.parametrize("shape", [(5, 1), (5, 7), (3, 26), (10, 57)])
def test_iqm_is_scipys_trimmed_mean(shape):
    scores = np.random.default_rng(1).lognormal(size=shape)
    assert iqm(scores) == pytest.approx(scipy.stats.trim_mean(scores, 0.25, axis=None))


def test_bootstrap_interval_is_the_quantile_of_all_resamples():
    scores = np.array([0.0, 1.0, 10.0, 100.0])
    all_means = [np.mean(drawn) for drawn in itertools.product(scores, repeat=4)]
    low, high = bootstrap_interval(scores[:, None], np.mean, level=0.8, repetitions=20_000)
    assert low == pytest.approx(np.quantile(all_means, 0.1))
    assert high == pytest.approx(np.quantile(all_means, 0.9))


def test_bootstrap_interval_of_the_iqm_is_scipys():
    scores = np.random.default_rng(2).normal(size=40)
    expected = scipy.stats.bootstrap(
        (scores,), iqm, vectorized=False, n_resamples=4000, method="percentile", rng=0
    ).confidence_interval
    assert bootstrap_interval(scores[:, None], repetitions=4000) == pytest.approx(tuple(expected), abs=0.03)


def test_bootstrap_resamples_runs_for_each_task_separately():
    tasks_differ_runs_do_not = np.tile([0.0, 100.0, 1000.0], (5, 1))
    assert bootstrap_interval(tasks_differ_runs_do_not, np.mean, repetitions=50) == pytest.approx((1100 / 3, 1100 / 3))
    # Two tasks that mirror each other: if runs were resampled as a whole, every mean would be 0.
    low, high = bootstrap_interval(np.array([[1.0, -1.0], [2.0, -2.0], [3.0, -3.0]]), np.mean, repetitions=200)
    assert low < -0.3
    assert high > 0.3


def test_bootstrap_interval_is_the_same_for_the_same_seed_and_wider_for_a_higher_level():
    scores = np.random.default_rng(3).normal(size=(5, 4))
    first, again, other = (bootstrap_interval(scores, seed=seed) for seed in (0, 0, 1))
    assert first == again != other
    narrow, wide = bootstrap_interval(scores, level=0.5), bootstrap_interval(scores, level=0.99)
    assert wide[0] < narrow[0] < iqm(scores) < narrow[1] < wide[1]


def test_scores_of_another_shape_are_refused_with_a_remedy():
    with pytest.raises(ValueError, match=r"scores\[:, None\]"):
        bootstrap_interval(np.arange(5.0))
