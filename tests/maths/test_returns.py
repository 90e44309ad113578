"""Every estimator against the explicit sums of its paper, and the identities between them.

Episodes end at random rows. The value after the last row is never 0, or a bootstrap that counts
twice would go unnoticed (rl-triton #4).
"""

from typing import NamedTuple

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given

from birl.maths import returns
from tests import oracle

T, B = 9, 3
GO_ON, TERMINATED, TRUNCATED, BOTH = range(4)

discounted_returns = jax.jit(returns.discounted_returns)
n_step_returns = jax.jit(returns.n_step_returns, static_argnames="n")
n_step_terms = jax.jit(returns.n_step_terms, static_argnames="n")
sarsa_targets = jax.jit(returns.sarsa_targets)
ends_inside = jax.jit(returns.ends_inside)
gae = jax.jit(returns.gae)
vtrace = jax.jit(returns.vtrace)
retrace = jax.jit(returns.retrace)


class Case(NamedTuple):
    """A rollout as the estimators see it; values have T+1 rows, like observations."""

    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    valid: np.ndarray
    all_values: np.ndarray  # [T+1, B]
    action_values: np.ndarray
    log_ratios: np.ndarray

    @property
    def values(self) -> np.ndarray:
        return self.all_values[:-1]

    @property
    def next_values(self) -> np.ndarray:
        return self.all_values[1:]

    @property
    def flags(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return self.terminated, self.truncated, self.valid

    def rows(self, start: int, stop: int) -> "Case":
        return Case(*(array[start : stop + (name == "all_values")] for name, array in self._asdict().items()))


def make_case(ends: list[list[int]], reset_first: list[bool], seed: int, reset_rows: bool = True) -> Case:
    """Random numbers with the given ends of episodes.

    The row after an end is the environment's reset, as in NEXT_STEP order, or else the first row of
    the next episode.
    """
    ends = np.array(ends)
    generator = np.random.default_rng(seed)
    valid = np.ones(ends.shape, bool)
    valid[0] = ~np.array(reset_first)
    for t, b in np.ndindex(*ends.shape):
        if not valid[t, b]:
            ends[t, b] = GO_ON
        if reset_rows and ends[t, b] != GO_ON and t + 1 < len(ends):
            valid[t + 1, b] = False
    rewards, action_values, log_ratios = generator.normal(size=(3, *ends.shape)).astype(np.float32)
    all_values = generator.normal(size=(len(ends) + 1, ends.shape[1])).astype(np.float32) + 3.0
    terminated, truncated = np.isin(ends, [TERMINATED, BOTH]), np.isin(ends, [TRUNCATED, BOTH])
    return Case(rewards, terminated, truncated, valid, all_values, action_values, log_ratios)


codes = st.sampled_from([GO_ON, GO_ON, GO_ON, TERMINATED, TRUNCATED, BOTH])
cases = st.builds(
    make_case,
    ends=st.lists(st.lists(codes, min_size=B, max_size=B), min_size=T, max_size=T),
    reset_first=st.lists(st.booleans(), min_size=B, max_size=B),
    seed=st.integers(0, 2**32 - 1),
    reset_rows=st.booleans(),
)
shares = st.sampled_from([0.0, 0.3, 0.9, 0.99, 1.0])


def uninterrupted(seed: int = 0) -> Case:
    return make_case([[GO_ON] * B] * T, [False] * B, seed)


def assert_close(actual: jax.Array, expected: np.ndarray) -> None:
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)


@given(seed=st.integers(0, 2**32 - 1))
def test_backward_recurrence_is_the_explicit_sum(seed):
    x, a = np.random.default_rng(seed).normal(size=(2, T, B)).astype(np.float32)
    assert_close(jax.jit(returns.backward_recurrence)(x, a, x[0]), oracle.recurrence_sums(x, a, x[0]))


@given(case=cases, discount=shares)
def test_discounted_returns_are_the_explicit_sum(case, discount):
    arguments = (case.rewards, *case.flags, case.next_values, discount)
    assert_close(discounted_returns(*arguments), oracle.discounted_returns(*arguments))


@given(case=cases, discount=shares, n=st.sampled_from([1, 2, 4, T - 1, T, T + 5]))
def test_n_step_returns_are_the_explicit_sum(case, discount, n):
    arguments = (case.rewards, *case.flags, case.next_values, discount)
    assert_close(n_step_returns(*arguments, n=n), oracle.n_step_returns(*arguments, n=n))


@given(case=cases, discount=shares, n=st.sampled_from([1, 2, 4, T - 1, T, T + 5]))
def test_n_step_terms_are_the_sum_the_factor_and_the_rows_of_n_step_returns(case, discount, n):
    sums, factors, counts = n_step_terms(case.rewards, *case.flags, discount, n=n)
    bootstraps = case.all_values[np.arange(T)[:, None] + counts, np.arange(B)]
    expected = oracle.n_step_returns(case.rewards, *case.flags, case.next_values, discount, n)
    assert_close(sums + factors * bootstraps, expected)


@given(case=cases, n=st.sampled_from([1, 3, T]))
def test_a_value_after_the_end_of_an_episode_is_never_used(case, n):
    """Only values of the true successors count, not of rows that a reset or an end lies before."""
    _, factors, counts = n_step_terms(case.rewards, *case.flags, 0.9, n=n)
    for t, b in np.ndindex(T, B):
        rows = oracle.episode_rows(t, b, *case.flags)[:n]
        assert bool(factors[t, b]) == (bool(rows) and not case.terminated[rows[-1], b])
        if rows:
            assert counts[t, b] == len(rows)
            assert factors[t, b] in (0.0, pytest.approx(0.9 ** len(rows)))


@given(case=cases)
def test_ends_inside_is_true_where_the_episode_ends_within_the_rollout(case):
    expected = np.zeros((T, B), bool)
    for t, b in np.ndindex(T, B):
        episode = oracle.episode_rows(t, b, *case.flags)
        expected[t, b] = bool(episode) and bool(case.terminated[episode[-1], b] | case.truncated[episode[-1], b])
    np.testing.assert_array_equal(ends_inside(*case.flags), expected)


@given(case=cases, discount=shares)
def test_sarsa_targets_are_sutton_and_barto_equation_6_7(case, discount):
    targets, known = sarsa_targets(case.rewards, case.action_values, case.terminated, case.valid, discount)
    expected = oracle.sarsa_targets(case.rewards, case.action_values, case.terminated, case.valid, discount)
    np.testing.assert_array_equal(known, ~np.isnan(expected))
    assert_close(targets, np.nan_to_num(expected))


@given(case=cases, discount=shares, gae_lambda=shares)
def test_gae_is_schulman_2016_equation_16(case, discount, gae_lambda):
    arguments = (case.rewards, case.values, case.next_values, *case.flags, discount, gae_lambda)
    assert_close(gae(*arguments), oracle.gae(*arguments))


@given(case=cases, discount=shares, gae_lambda=shares, clips=st.sampled_from([(1.0, 1.0), (2.0, 0.5), (0.7, 1.5)]))
def test_vtrace_is_espeholt_2018_equation_1(case, discount, gae_lambda, clips):
    arrays = (case.rewards, case.values, case.next_values, *case.flags, case.log_ratios)
    arguments = (*arrays, discount, gae_lambda, *clips)
    targets, advantages = vtrace(*arguments)
    expected_targets, expected_advantages = oracle.vtrace(*arguments)
    assert_close(targets, expected_targets)
    assert_close(advantages, expected_advantages)


@given(case=cases, discount=shares, trace_lambda=shares)
def test_retrace_is_munos_2016_equation_3(case, discount, trace_lambda):
    arrays = (case.rewards, case.action_values, case.next_values, *case.flags, case.log_ratios)
    arguments = (*arrays, discount, trace_lambda)
    assert_close(retrace(*arguments), oracle.retrace(*arguments))


def test_gae_of_three_steps_worked_by_hand():
    rewards, values, next_values = (jnp.array([row]).T for row in ([1.0, 2.0, 3.0], [4.0, 2.0, 6.0], [2.0, 6.0, 8.0]))
    nothing = jnp.zeros((3, 1))
    # δ = 1 + 1 - 4, 2 + 3 - 2, 3 + 4 - 6 = -2, 3, 1; γλ = 1/4
    advantages = gae(rewards, values, next_values, nothing, nothing, nothing + 1, 0.5, 0.5)
    assert advantages[:, 0].tolist() == [-2 + 3 / 4 + 1 / 16, 3 + 1 / 4, 1.0]


@given(case=cases, discount=shares)
def test_gae_with_lambda_1_is_return_minus_value(case, discount):
    advantages = gae(case.rewards, case.values, case.next_values, *case.flags, discount, 1.0)
    expected = oracle.discounted_returns(case.rewards, *case.flags, case.next_values, discount) - case.values
    assert_close(advantages, np.where(case.valid, expected, 0.0))


@given(case=cases, discount=shares)
def test_gae_with_lambda_0_is_the_td_error(case, discount):
    advantages = gae(case.rewards, case.values, case.next_values, *case.flags, discount, 0.0)
    expected = case.rewards + discount * case.next_values * ~case.terminated - case.values
    assert_close(advantages, np.where(case.valid, expected, 0.0))


@given(case=cases, discount=shares)
def test_n_step_returns_with_n_of_the_whole_rollout_are_discounted_returns(case, discount):
    arguments = (case.rewards, *case.flags, case.next_values, discount)
    assert_close(n_step_returns(*arguments, n=T), discounted_returns(*arguments))


@given(case=cases, discount=shares)
def test_vtrace_on_policy_with_lambda_1_is_the_return(case, discount):
    on_policy = np.zeros_like(case.log_ratios)
    targets, _ = vtrace(case.rewards, case.values, case.next_values, *case.flags, on_policy, discount)
    expected = oracle.discounted_returns(case.rewards, *case.flags, case.next_values, discount)
    assert_close(targets, np.where(case.valid, expected, case.values))


@given(case=cases, discount=shares, gae_lambda=shares)
def test_vtrace_advantages_on_policy_are_gae(case, discount, gae_lambda):
    on_policy = np.zeros_like(case.log_ratios)
    _, advantages = vtrace(case.rewards, case.values, case.next_values, *case.flags, on_policy, discount, gae_lambda)
    assert_close(advantages, oracle.gae(case.rewards, case.values, case.next_values, *case.flags, discount, gae_lambda))


@given(case=cases, discount=shares)
def test_retrace_on_policy_with_lambda_1_is_the_return_if_action_values_are_state_values(case, discount):
    on_policy = np.zeros_like(case.log_ratios)
    targets = retrace(case.rewards, case.values, case.next_values, *case.flags, on_policy, discount)
    expected = oracle.discounted_returns(case.rewards, *case.flags, case.next_values, discount)
    assert_close(targets, np.where(case.valid, expected, case.values))


def test_retrace_does_not_use_the_ratio_of_the_action_itself():
    case = uninterrupted()
    first_row_differs = case.log_ratios.copy()
    first_row_differs[0] -= 100.0
    arguments = (case.rewards, case.action_values, case.next_values, *case.flags)
    assert np.array_equal(retrace(*arguments, case.log_ratios, 0.9), retrace(*arguments, first_row_differs, 0.9))


def test_retrace_bootstraps_the_last_row_from_its_successor():
    case = uninterrupted()
    targets = retrace(case.rewards, case.action_values, case.next_values, *case.flags, case.log_ratios, 0.9)
    assert_close(targets[-1], case.rewards[-1] + 0.9 * case.all_values[-1])


def all_estimates(case: Case) -> list[jax.Array]:
    """All returns and advantages of a rollout, each of shape [T, B]."""
    values = (case.values, case.next_values)
    return [
        discounted_returns(case.rewards, *case.flags, case.next_values, 0.9),
        n_step_returns(case.rewards, *case.flags, case.next_values, 0.9, n=3),
        gae(case.rewards, *values, *case.flags, 0.9, 0.8),
        *vtrace(case.rewards, *values, *case.flags, case.log_ratios, 0.9, 0.8),
        retrace(case.rewards, case.action_values, case.next_values, *case.flags, case.log_ratios, 0.9, 0.8),
    ]


@pytest.mark.parametrize("end", [TERMINATED, TRUNCATED, BOTH])
@pytest.mark.parametrize("cut", [0, 3, T - 3])
def test_a_rollout_with_an_end_inside_equals_its_two_pieces_computed_separately(cut, end):
    ends = np.zeros((T, B), int)
    ends[cut] = end
    whole = make_case(ends.tolist(), [False] * B, seed=cut)
    before, after = whole.rows(0, cut + 1), whole.rows(cut + 2, T)
    for together, first, second in zip(all_estimates(whole), all_estimates(before), all_estimates(after), strict=True):
        assert_close(together[: cut + 1], first)
        assert_close(together[cut + 2 :], second)


def test_the_end_of_a_rollout_counts_as_truncation():
    open_ended = uninterrupted()
    truncated = open_ended.truncated.copy()
    truncated[-1] = True
    for left_open, cut in zip(
        all_estimates(open_ended), all_estimates(open_ended._replace(truncated=truncated)), strict=True
    ):
        assert_close(left_open, cut)


@given(case=cases)
def test_terminated_wins_where_both_flags_are_set(case):
    only_terminated = case._replace(truncated=case.truncated & ~case.terminated)
    for both, one in zip(all_estimates(case), all_estimates(only_terminated), strict=True):
        assert np.array_equal(both, one)


@given(case=cases)
def test_rows_that_are_not_valid_do_not_affect_other_rows(case):
    nonsense = [np.where(case.valid, array, np.nan) for array in (case.rewards, case.action_values, case.log_ratios)]
    spoiled = case._replace(rewards=nonsense[0], action_values=nonsense[1], log_ratios=nonsense[2])
    for clean, dirty in zip(all_estimates(case), all_estimates(spoiled), strict=True):
        assert np.array_equal(np.asarray(clean)[case.valid], np.asarray(dirty)[case.valid])


@given(case=cases)
def test_returns_and_advantages_of_rows_that_are_not_valid_are_0(case):
    discounted, n_step, advantages, _, vtrace_advantages, _ = all_estimates(case)
    for estimates in (discounted, n_step, advantages, vtrace_advantages):
        assert not np.any(np.asarray(estimates)[~case.valid])


def test_a_nan_value_after_a_terminated_row_is_not_used():
    ends = np.zeros((T, B), int)
    ends[-1] = TERMINATED
    case = make_case(ends.tolist(), [False] * B, seed=0)
    case.all_values[-1] = np.nan
    assert all(np.all(np.isfinite(estimates)) for estimates in all_estimates(case))


def test_a_ratio_that_overflows_is_clipped():
    case = uninterrupted()._replace(log_ratios=np.full((T, B), 1000.0, np.float32))
    assert all(np.all(np.isfinite(estimates)) for estimates in all_estimates(case))


def test_a_row_before_an_invalid_row_bootstraps_even_if_no_end_was_reported():
    case = uninterrupted()
    case.valid[4] = False
    discounted = discounted_returns(case.rewards, *case.flags, case.next_values, 0.9)
    assert_close(discounted[3], case.rewards[3] + 0.9 * case.next_values[3])


def test_flags_may_be_floats():
    case = make_case([[TERMINATED, TRUNCATED, BOTH]] * T, [False, True, False], seed=3)
    floats = case._replace(
        **{name: getattr(case, name).astype(np.float32) for name in ("terminated", "truncated", "valid")}
    )
    for one, other in zip(all_estimates(case), all_estimates(floats), strict=True):
        assert np.array_equal(one, other)


def test_one_row_is_enough():
    case = make_case([[GO_ON, TERMINATED, TRUNCATED]], [False] * B, seed=1)
    advantages = gae(case.rewards, case.values, case.next_values, *case.flags, 0.9, 0.8)
    assert_close(advantages, case.rewards + 0.9 * case.next_values * [1, 0, 1] - case.values)
    assert_close(n_step_returns(case.rewards, *case.flags, case.next_values, 0.9, n=1), advantages + case.values)
