"""Losses against their formulas for single samples, and against exact expectations over actions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from birl.maths import losses
from tests import oracle

OLD_LOGITS = jnp.array([0.3, -1.0, 0.8])
NEW_LOGITS = jnp.array([0.5, -0.4, 0.1])
ADVANTAGES = jnp.array([1.0, -2.0, 0.5])
ALL = jnp.ones(3)


def log_ratios_of(new_logits: jax.Array) -> jax.Array:
    """log π_new(a) - log π_old(a) of every action a."""
    return jax.nn.log_softmax(new_logits) - jax.nn.log_softmax(OLD_LOGITS)


def test_masked_mean_is_the_mean_over_valid_rows():
    assert losses.masked_mean(jnp.array([1.0, 2.0, 9.0]), jnp.array([True, True, False])) == 1.5


def test_masked_mean_takes_fractional_weights():
    assert losses.masked_mean(jnp.array([4.0, 8.0]), jnp.array([0.1, 0.3])) == pytest.approx(7.0)


def test_masked_mean_without_valid_rows_is_0():
    assert losses.masked_mean(jnp.array([1.0, 2.0]), jnp.zeros(2)) == 0.0


def test_masked_mean_ignores_nan_in_rows_that_are_not_valid():
    assert losses.masked_mean(jnp.array([1.0, jnp.nan]), jnp.array([1.0, 0.0])) == 1.0


def test_normalized_advantages_have_mean_0_and_deviation_1_over_valid():
    advantages = jnp.array([[3.0, 5.0, 100.0], [4.0, 9.0, -100.0]])
    valid = jnp.array([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0]])
    normalized = np.asarray(losses.normalize(advantages, valid))
    assert np.mean(normalized[:, :2]) == pytest.approx(0.0, abs=1e-6)
    assert np.std(normalized[:, :2]) == pytest.approx(1.0)
    assert not np.any(normalized[:, 2])


@pytest.mark.parametrize("valid", [[1.0], [0.0]])
def test_normalizing_a_single_advantage_gives_0(valid):
    assert losses.normalize(jnp.array([7.3]), jnp.array(valid)) == jnp.array([0.0])


def test_normalizing_equal_advantages_gives_0():
    assert not jnp.any(losses.normalize(jnp.full(8, 2.5), jnp.ones(8)))


def test_policy_gradient_is_sutton_and_barto_equation_13_5_over_all_actions():
    probabilities = oracle.softmax(OLD_LOGITS)
    # Weights of π make the mean over actions an exact expectation.
    gradient = jax.grad(
        lambda logits: losses.policy_gradient(jax.nn.log_softmax(logits), ADVANTAGES, jnp.array(probabilities))
    )(OLD_LOGITS)
    baseline = probabilities @ np.asarray(ADVANTAGES)
    np.testing.assert_allclose(gradient, -probabilities * (ADVANTAGES - baseline), atol=1e-6)


def test_surrogate_is_schulman_2015_equation_14_with_the_policy_gradient_at_the_old_policy():
    probabilities = oracle.softmax(OLD_LOGITS)
    value, gradient = jax.value_and_grad(
        lambda logits: losses.surrogate(log_ratios_of(logits), ADVANTAGES, jnp.array(probabilities))
    )(OLD_LOGITS)
    baseline = probabilities @ np.asarray(ADVANTAGES)
    assert value == pytest.approx(-baseline, rel=1e-5)
    np.testing.assert_allclose(gradient, -probabilities * (ADVANTAGES - baseline), atol=1e-6)
    moved = losses.surrogate(log_ratios_of(NEW_LOGITS), ADVANTAGES, jnp.array(probabilities))
    # Weighted by all old probabilities, importance sampling is exact.
    assert moved == pytest.approx(-(oracle.softmax(NEW_LOGITS) @ np.asarray(ADVANTAGES)), rel=1e-5)


@pytest.mark.parametrize(
    ("ratio", "advantage", "objective"),
    [(1.1, 2.0, 2.2), (1.5, 2.0, 2.4), (0.5, 2.0, 1.0), (1.1, -2.0, -2.2), (1.5, -2.0, -3.0), (0.5, -2.0, -1.6)],
)
def test_clipped_surrogate_is_schulman_2017_equation_7(ratio, advantage, objective):
    loss = losses.clipped_surrogate(jnp.log(jnp.array([ratio])), jnp.array([advantage]), jnp.ones(1), 0.2)
    assert -loss == pytest.approx(objective, rel=1e-5)


@pytest.mark.parametrize(("ratio", "advantage"), [(1.21, 1.0), (5.0, 1.0), (0.79, -1.0), (0.01, -1.0)])
def test_gradient_of_clipped_surrogate_is_zero_outside_the_clip(ratio, advantage):
    gradient = jax.grad(losses.clipped_surrogate)(jnp.log(jnp.array([ratio])), jnp.array([advantage]), jnp.ones(1), 0.2)
    assert gradient == 0.0


@pytest.mark.parametrize(("ratio", "advantage"), [(1.0, 1.0), (1.19, 1.0), (0.5, 1.0), (0.81, -1.0), (3.0, -1.0)])
def test_gradient_of_clipped_surrogate_is_ratio_times_advantage_where_that_is_smaller(ratio, advantage):
    gradient = jax.grad(losses.clipped_surrogate)(jnp.log(jnp.array([ratio])), jnp.array([advantage]), jnp.ones(1), 0.2)
    assert gradient == pytest.approx(-ratio * advantage, rel=1e-5)


def test_first_step_of_clipped_surrogate_is_the_policy_gradient():
    def surrogate(logits):
        return losses.clipped_surrogate(log_ratios_of(logits), ADVANTAGES, ALL, 0.2)

    def plain(logits):
        return losses.policy_gradient(jax.nn.log_softmax(logits), ADVANTAGES, ALL)

    np.testing.assert_allclose(jax.grad(surrogate)(OLD_LOGITS), jax.grad(plain)(OLD_LOGITS), atol=1e-6)


def test_a_row_that_is_not_valid_cannot_spoil_the_surrogates_gradient():
    log_ratios, valid = jnp.array([0.1, 1000.0]), jnp.array([True, False])
    for gradient in (
        jax.grad(losses.clipped_surrogate)(log_ratios, jnp.ones(2), valid, 0.2),
        jax.grad(losses.kl_penalised_surrogate)(log_ratios, jnp.ones(2), jnp.zeros(2), valid, 1.0),
    ):
        assert gradient[0] != 0.0
        assert gradient[1] == 0.0


def test_kl_penalised_surrogate_is_schulman_2017_equation_8():
    loss = losses.kl_penalised_surrogate(
        jnp.log(jnp.array([2.0, 0.5])), jnp.array([3.0, -4.0]), jnp.array([0.5, 0.1]), jnp.ones(2), 10.0
    )
    assert loss == pytest.approx(-((2.0 * 3.0 - 10.0 * 0.5) + (0.5 * -4.0 - 10.0 * 0.1)) / 2.0)


@pytest.mark.parametrize(
    ("kl", "factor"), [(0.016, 2.0), (0.0149, 1.0), (0.01, 1.0), (0.0067, 1.0), (0.0066, 0.5), (0.0, 0.5)]
)
def test_kl_weight_doubles_above_and_halves_below_its_target(kl, factor):
    assert losses.adapt_kl_weight(3.0, kl, 0.01) == pytest.approx(3.0 * factor)


def test_kl_weight_recovers_after_a_long_time_at_either_limit():
    weight = jnp.array(1.0)
    for kl in [0.0] * 200 + [1.0] * 14:
        weight = losses.adapt_kl_weight(weight, kl, 0.01)
    assert weight >= 1.0
    for kl in [1.0] * 200 + [0.0] * 14:
        weight = losses.adapt_kl_weight(weight, kl, 0.01)
    assert weight <= 1.0


def test_value_loss_is_the_mean_squared_error_of_sutton_and_barto_equation_9_1():
    values, targets, valid = jnp.array([1.0, 5.0, 0.0]), jnp.array([3.0, 4.0, 99.0]), jnp.array([1.0, 1.0, 0.0])
    assert losses.value_loss(values, targets, valid) == (4.0 + 1.0) / 2


@pytest.mark.parametrize(
    ("error", "delta", "expected"),
    [(0.5, 1.0, 0.125), (-1.0, 1.0, 0.5), (3.0, 1.0, 2.5), (-3.0, 1.0, 2.5), (3.0, 2.0, 4.0), (0.0, 1.0, 0.0)],
)
def test_huber_1964_is_half_the_square_up_to_delta_and_a_line_of_slope_delta_beyond(error, delta, expected):
    loss, slope = jax.value_and_grad(losses.huber)(jnp.float32(error), delta)
    assert loss == pytest.approx(expected)
    assert slope == pytest.approx(np.clip(error, -delta, delta))


@pytest.mark.parametrize(
    ("value", "old_value", "target", "squared_error"),
    [
        (1.1, 1.0, 2.0, 0.9**2),  # inside the clip
        (1.5, 1.0, 2.0, 0.8**2),  # towards the target, faster than the clip allows
        (0.5, 1.0, 2.0, 1.5**2),  # away from the target: not clipped
    ],
)
def test_clipped_value_loss_is_the_larger_of_the_two_errors(value, old_value, target, squared_error):
    loss = losses.clipped_value_loss(jnp.array([value]), jnp.array([old_value]), jnp.array([target]), jnp.ones(1), 0.2)
    assert loss == pytest.approx(squared_error, rel=1e-5)


@pytest.mark.parametrize(("theirs", "ours"), [(lambda errors: errors**2, 0.5), (lambda errors: errors**2 / 2, 0.25)])
def test_the_value_weight_that_pages_give_for_a_half_with_and_without_the_factor_one_half(theirs, ours):
    """0.5 of SB3 and of OpenAI Baselines' A2C is 0.5 here, that of its PPO2 and of CleanRL 0.25."""
    values, targets = jnp.array([1.0, -2.0, 0.5]), jnp.array([0.0, 1.0, 0.5])
    wanted = 0.5 * jnp.mean(theirs(values - targets))
    assert ours * losses.value_loss(values, targets, jnp.ones(3)) == pytest.approx(float(wanted))


def test_approx_kl_in_expectation_is_the_kl():
    old, new = oracle.softmax(OLD_LOGITS), oracle.softmax(NEW_LOGITS)
    estimate = losses.approx_kl(log_ratios_of(NEW_LOGITS), jnp.array(old))
    assert estimate == pytest.approx(float(np.sum(old * np.log(old / new))), abs=1e-6)


def test_approx_kl_is_never_negative():
    assert jnp.all(
        jax.vmap(lambda ratio: losses.approx_kl(ratio[None], jnp.ones(1)))(jnp.linspace(-3.0, 3.0, 1001)) >= 0.0
    )


def test_approx_kl_of_a_tiny_change_is_half_its_square():
    assert losses.approx_kl(jnp.array([1e-3]), jnp.ones(1)) == pytest.approx(0.5e-6, rel=0.1)


def test_clip_fraction_is_the_fraction_outside_the_clip():
    log_ratios = jnp.log(jnp.array([0.79, 0.81, 1.0, 1.19, 1.21, 9.0]))
    assert losses.clip_fraction(log_ratios, jnp.array([1.0, 1.0, 1.0, 1.0, 1.0, 0.0]), 0.2) == pytest.approx(2 / 5)


def test_no_gradient_flows_into_advantages_or_targets():
    x = jnp.array([0.1, 0.2])
    valid = jnp.ones(2)
    constants = {
        "policy_gradient": lambda y: losses.policy_gradient(x, y, valid),
        "clipped_surrogate": lambda y: losses.clipped_surrogate(x, y, valid, 0.2),
        "kl_penalised_surrogate": lambda y: losses.kl_penalised_surrogate(x, y, x, valid, 1.0),
        "value_loss": lambda y: losses.value_loss(x, y, valid),
        "clipped_value_loss": lambda y: losses.clipped_value_loss(x, y, y, valid, 0.2),
    }
    for name, loss in constants.items():
        assert not jnp.any(jax.grad(loss)(jnp.array([1.0, -1.0]))), name


@pytest.mark.usefixtures("types_unchecked")
def test_a_column_against_a_row_is_an_error_and_not_a_broadcast():
    column, row = jnp.ones((4, 1)), jnp.ones(4)
    for loss in (
        lambda: losses.masked_mean(column, row),
        lambda: losses.normalize(column, row),
        lambda: losses.policy_gradient(row, column, row),
        lambda: losses.clipped_surrogate(column, row, row, 0.2),
        lambda: losses.kl_penalised_surrogate(row, row, column, row, 1.0),
        lambda: losses.value_loss(column, row, row),
        lambda: losses.clipped_value_loss(row, column, row, row, 0.2),
        lambda: losses.approx_kl(column, row),
        lambda: losses.clip_fraction(column, row, 0.2),
    ):
        with pytest.raises(ValueError, match=r"\(4, 1\)"):
            loss()
