"""Two groups of scores, against closed forms, all permutations, SciPy and simulation."""

import itertools
import math

import hypothesis.strategies as st
import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings

from birl.maths.comparisons import (
    MOST_EXACT,
    bootstrap_difference,
    bootstrap_improvement,
    fewest_scores,
    holm,
    improvement_interval,
    mann_whitney_p_value,
    probability_of_improvement,
    scores_needed,
)
from birl.maths.statistics import bootstrap_interval, iqm

few_scores = st.lists(st.integers(-5, 5), min_size=1, max_size=6).map(lambda scores: np.array(scores, float))


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ([2.0], [1.0], 1.0),
        ([1.0], [2.0], 0.0),
        ([1.0], [1.0], 0.5),
        ([1.0, 4.0], [2.0, 3.0], 0.5),
        ([5.0, 5.0, 9.0], [5.0, 7.0], (0.5 + 0.5 + 2.0) / 6),
    ],
)
def test_the_probability_of_improvement_is_the_share_of_pairs_won_and_half_of_the_ties(first, second, expected):
    assert probability_of_improvement(np.array(first), np.array(second)) == pytest.approx(expected)


@given(few_scores, few_scores)
def test_the_probability_is_scipys_u_divided_by_the_number_of_pairs(first, second):
    u = scipy.stats.mannwhitneyu(first, second, method="asymptotic").statistic
    assert probability_of_improvement(first, second) == pytest.approx(u / (len(first) * len(second)))


@given(few_scores, few_scores, st.integers(-9, 9), st.integers(1, 9))
def test_the_two_probabilities_sum_to_1_and_do_not_depend_on_origin_or_unit(first, second, shift, unit):
    probability = probability_of_improvement(first, second)
    assert probability + probability_of_improvement(second, first) == pytest.approx(1.0)
    assert probability_of_improvement(unit * first + shift, unit * second + shift) == probability
    assert mann_whitney_p_value(first, second) == pytest.approx(mann_whitney_p_value(-second, -first))


@given(few_scores, few_scores)
@settings(max_examples=60, deadline=None)
def test_the_p_value_is_the_share_of_all_divisions_that_are_as_uneven(first, second):
    pooled = np.concatenate([first, second])
    distance = abs(probability_of_improvement(first, second) - 0.5)
    divisions = [
        abs(probability_of_improvement(pooled[list(chosen)], np.delete(pooled, chosen)) - 0.5)
        for chosen in itertools.combinations(range(len(pooled)), len(first))
    ]
    expected = np.mean([other >= distance - 1e-9 for other in divisions])
    assert mann_whitney_p_value(first, second) == pytest.approx(expected)


@pytest.mark.parametrize("sizes", [(5, 5), (3, 9), (20, 25), (50, 50)])
def test_the_p_value_is_scipys_exact_one_without_ties(sizes):
    generator = np.random.default_rng(1)
    first, second = generator.normal(0.6, 1.0, sizes[0]), generator.normal(0.0, 1.0, sizes[1])
    expected = scipy.stats.mannwhitneyu(first, second, method="exact").pvalue
    assert mann_whitney_p_value(first, second) == pytest.approx(expected)


def test_the_p_value_of_many_scores_is_scipys_normal_approximation_with_ties():
    generator = np.random.default_rng(2)
    first, second = generator.integers(0, 20, 60) + 1.0, generator.integers(0, 20, 41) + 0.0
    assert len(first) + len(second) > MOST_EXACT
    expected = scipy.stats.mannwhitneyu(first, second, method="asymptotic", use_continuity=False).pvalue
    assert mann_whitney_p_value(first, second) == pytest.approx(expected)
    assert mann_whitney_p_value(np.ones(60), np.ones(60)) == 1.0


@pytest.mark.parametrize("n", [2, 3, 4, 5, 8])
def test_the_p_value_of_groups_that_do_not_overlap_is_2_over_all_divisions(n):
    assert mann_whitney_p_value(np.arange(n) + 100.0, np.arange(n) + 0.0) == pytest.approx(2 / math.comb(2 * n, n))


def test_a_true_null_hypothesis_is_rejected_in_at_most_5_percent():
    generator = np.random.default_rng(3)
    values = [mann_whitney_p_value(*generator.normal(size=(2, 6))) for _ in range(1000)]
    assert 0.02 < np.mean(np.array(values) <= 0.05) < 0.06  # 0.041 is the size of the exact test with 6 and 6


@pytest.mark.parametrize("p_values", [[0.01, 0.04, 0.03, 0.005], [0.5], [0.02, 0.02, 0.9], [0.6, 0.7], []])
def test_holms_p_values_are_those_of_the_closed_form(p_values):
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    adjusted = holm(p_values)
    for place, index in enumerate(order):
        expected = max(min(1.0, (len(p_values) - earlier) * p_values[order[earlier]]) for earlier in range(place + 1))
        assert adjusted[index] == pytest.approx(expected)


def test_holms_p_values_of_an_example_worked_by_hand():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


@given(st.floats(0, 1), st.integers(2, 30), st.integers(2, 30))
def test_the_score_interval_holds_the_estimate_is_symmetric_and_solves_newcombes_equation(probability, n, m):
    low, high = improvement_interval(probability, n, m)
    assert 0.0 <= low <= probability <= high <= 1.0
    mirrored = improvement_interval(1.0 - probability, m, n)
    assert (1 - mirrored[1], 1 - mirrored[0]) == pytest.approx((low, high), abs=1e-9)
    middle = (n + m) / 2 - 1
    for end in (low, high):
        if 1e-6 < end < 1 - 1e-6:
            spread = 1 + middle * (1 - end) / (2 - end) + middle * end / (1 + end)
            variance = end * (1 - end) * spread / (n * m)
            assert (end - probability) ** 2 == pytest.approx(1.959964**2 * variance, rel=1e-4)


def test_the_score_interval_of_one_score_each_is_wilsons_interval():
    """With N* = 0, V(θ) = θ(1 - θ) / nm: the binomial's."""
    expected = scipy.stats.binomtest(1, 1).proportion_ci(method="wilson")
    assert improvement_interval(1.0, 1, 1) == pytest.approx((expected.low, expected.high), abs=1e-9)


@pytest.mark.parametrize("shift", [0.0, 1.0, 2.0])
def test_the_score_interval_of_five_scores_each_covers_the_truth_and_the_bootstraps_does_so_less(shift):
    generator = np.random.default_rng(4)
    truth = scipy.stats.norm.cdf(shift / math.sqrt(2))
    covered = np.zeros(2)
    for _ in range(300):
        first, second = generator.normal(shift, 1, 5), generator.normal(0, 1, 5)
        intervals = (
            improvement_interval(probability_of_improvement(first, second), 5, 5),
            bootstrap_improvement(first, second, repetitions=100),
        )
        covered += [low <= truth <= high for low, high in intervals]
    assert 0.92 <= covered[0] / 300 <= 0.99
    assert covered[1] < covered[0]


def test_the_bootstrap_of_the_probability_is_the_quantile_of_all_resamples():
    first, second = np.array([1.0, 4.0, 6.0, 9.0]), np.array([2.0, 5.0, 7.0])
    every = [
        probability_of_improvement(np.array(a), np.array(b))
        for a in itertools.product(first, repeat=4)
        for b in itertools.product(second, repeat=3)
    ]
    assert len(set(np.quantile(every, [0.1, 0.2, 0.8, 0.9]))) == 4
    found = bootstrap_improvement(first, second, level=0.8, repetitions=20_000)
    assert found == pytest.approx(tuple(np.quantile(every, [0.1, 0.9])), abs=1e-9)


def test_the_bootstrap_of_the_difference_is_the_quantile_of_all_resamples():
    first, second = np.array([1.0, 4.0, 6.0, 20.0]), np.array([0.0, 2.0, 5.0, 30.0])
    iqms = [np.array([iqm(np.array(one)) for one in itertools.product(own, repeat=4)]) for own in (first, second)]
    every = np.subtract.outer(*iqms)
    found = bootstrap_difference(first, second, level=0.8, repetitions=20_000)
    assert found == pytest.approx(tuple(np.quantile(every, [0.1, 0.9])), abs=1e-9)


def test_the_difference_from_a_constant_has_the_interval_of_one_group():
    scores = np.random.default_rng(5).normal(size=12)
    low, high = bootstrap_difference(scores, np.zeros(3))
    assert (low, high) == pytest.approx(bootstrap_interval(scores[:, None]), abs=0.05)


@given(few_scores, few_scores, st.integers(-9, 9))
@settings(max_examples=20, deadline=None)
def test_a_shift_of_one_group_shifts_the_interval_of_the_difference(first, second, shift):
    low, high = bootstrap_difference(first, second, repetitions=50)
    expected = pytest.approx((low + shift, high + shift))
    assert bootstrap_difference(first + shift, second, repetitions=50) == expected


def test_the_interval_of_the_difference_covers_the_truth_with_20_scores_each():
    generator = np.random.default_rng(6)
    covered = 0
    for _ in range(300):
        low, high = bootstrap_difference(generator.normal(1, 1, 20), generator.normal(0, 1, 20), repetitions=200)
        covered += low <= 1.0 <= high
    assert 0.89 <= covered / 300 <= 0.98


def test_noethers_number_of_scores_worked_by_hand():
    # (1.959964 + 0.841621)² / (6 (0.7 - 0.5)²) = 7.8489 / 0.24 = 32.7
    assert scores_needed(0.7) == scores_needed(0.3) == 33
    assert scores_needed(1.0) == 6  # 7.8489 / 1.5 = 5.2
    assert scores_needed(0.5) is None
    assert scores_needed(0.7, power=0.9) == 44  # (1.959964 + 1.281552)² / 0.24 = 43.8
    assert scores_needed(0.7, significance=0.01) == 49  # (2.575829 + 0.841621)² / 0.24 = 48.7
    assert scores_needed(1.0, power=0.1, significance=0.001) == 7  # fewer can never be told apart


@pytest.mark.parametrize("probability", [0.65, 0.75, 0.85])
def test_noethers_number_of_scores_tells_groups_apart_in_about_80_percent(probability):
    n = scores_needed(probability)
    assert n is not None
    shift = math.sqrt(2) * scipy.stats.norm.ppf(probability)
    generator = np.random.default_rng(7)
    values = [mann_whitney_p_value(generator.normal(shift, 1, n), generator.normal(0, 1, n)) for _ in range(400)]
    assert 0.74 <= np.mean(np.array(values) <= 0.05) <= 0.88


def test_the_fewest_scores_that_can_be_told_apart():
    assert fewest_scores() == 4  # 2 / C(8, 4) = 0.029, and 2 / C(6, 3) = 0.1
    assert fewest_scores(0.01) == 5  # 2 / C(10, 5) = 0.0079
