"""ACER's objectives against exact gradients: sums over actions, integrals over the real line."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from birl.maths import truncated
from birl.maths.distributions import Categorical, DiagonalGaussian
from tests import oracle

LOGITS, BEHAVIOUR = jnp.array([0.5, -1.4, 0.8, 2.0]), jnp.array([1.5, 0.4, -0.8, -1.0])
ACTION_VALUES = jnp.array([1.0, -2.0, 0.5, 3.0])
PROBABILITIES, BEHAVIOUR_PROBABILITIES = oracle.softmax(LOGITS), oracle.softmax(BEHAVIOUR)
VALUE = float(PROBABILITIES @ np.asarray(ACTION_VALUES))
RATIOS = PROBABILITIES / BEHAVIOUR_PROBABILITIES
ALL_ACTIONS = jnp.arange(4)


def softmax_gradients(truncation: float, values: float = VALUE, behaviour: jax.Array = BEHAVIOUR) -> np.ndarray:
    """[action taken, logit] the gradient of the objective; an action's target is its value."""

    def objective(logits: jax.Array, action: jax.Array) -> jax.Array:
        target = ACTION_VALUES[action]
        return truncated.softmax_objective(
            Categorical(logits), Categorical(behaviour), action, target, ACTION_VALUES, jnp.float32(values), truncation
        )

    return np.asarray(jax.vmap(jax.grad(objective), (None, 0))(LOGITS, ALL_ACTIONS))


EXACT = PROBABILITIES * (np.asarray(ACTION_VALUES) - VALUE)  # the gradient of Σ π(a) Q(a) in the logits


@pytest.mark.parametrize("truncation", [0.3, 1.0, 5.0, 1e6, np.inf])
def test_wang_2017_equation_9_is_the_exact_gradient_in_expectation_for_any_truncation(truncation):
    assert RATIOS.max() > 5.0 > 1.0 > 0.3 > RATIOS.min()  # the first three truncate some
    np.testing.assert_allclose(BEHAVIOUR_PROBABILITIES @ softmax_gradients(truncation), EXACT, atol=1e-5)


def test_without_the_correction_the_gradient_is_biased():
    no_correction = [
        min(1.0, ratio) * (np.eye(4)[a] - PROBABILITIES) * (float(ACTION_VALUES[a]) - VALUE)
        for a, ratio in enumerate(RATIOS)
    ]
    assert np.abs(BEHAVIOUR_PROBABILITIES @ np.array(no_correction) - EXACT).max() > 0.1


@pytest.mark.parametrize("truncation", [float(RATIOS.max()) + 1e-3, np.inf])
def test_with_c_above_every_ratio_there_is_no_truncation_and_no_correction(truncation):
    assert not np.any(truncated.correction_weights(jnp.log(jnp.asarray(RATIOS, jnp.float32)), truncation))
    for action, gradient in enumerate(softmax_gradients(truncation)):
        advantage = float(ACTION_VALUES[action]) - VALUE
        np.testing.assert_allclose(
            gradient, RATIOS[action] * (np.eye(4)[action] - PROBABILITIES) * advantage, rtol=1e-4, atol=1e-5
        )


def test_truncated_and_correction_weights_add_up_to_the_ratio():
    ratios = np.array([1e-3, 0.5, 1.0, 2.0, 10.0, 500.0], np.float32)
    for truncation in (0.5, 2.0, 10.0):
        kept, cut = (
            f(jnp.log(ratios), truncation) for f in (truncated.truncated_weights, truncated.correction_weights)
        )
        np.testing.assert_allclose(kept + ratios * cut, ratios, rtol=1e-5)
        np.testing.assert_allclose(kept, np.minimum(ratios, truncation), rtol=1e-5)


def test_on_policy_the_gradient_is_the_plain_policy_gradient():
    for action, gradient in enumerate(softmax_gradients(1.0, behaviour=LOGITS)):
        expected = (np.eye(4)[action] - PROBABILITIES) * (float(ACTION_VALUES[action]) - VALUE)
        np.testing.assert_allclose(gradient, expected, atol=1e-5)


def test_ratios_beyond_float32_give_the_limits_and_no_nan():
    log_ratios = jnp.array([-1e4, 1e4])
    np.testing.assert_array_equal(truncated.truncated_weights(log_ratios, 10.0), [0.0, 10.0])
    np.testing.assert_array_equal(truncated.correction_weights(log_ratios, 10.0), [0.0, 1.0])


def test_the_value_of_a_masked_action_has_no_effect():
    masked = jnp.array([-1e9, 0.0, 0.0, 0.0])

    def objective(logits: jax.Array, first_value: float) -> jax.Array:
        values = ACTION_VALUES.at[0].set(first_value)
        policy, behaviour = Categorical(logits + masked), Categorical(BEHAVIOUR + masked)
        return truncated.softmax_objective(
            policy, behaviour, jnp.int32(3), jnp.float32(2.0), values, jnp.float32(1.0), 0.5
        )

    gradients = [np.asarray(jax.grad(objective)(LOGITS, value)) for value in (0.0, 1e6)]
    assert np.isfinite(gradients).all()
    assert gradients[0][0] == 0.0
    np.testing.assert_array_equal(*gradients)


# Gaussian

MEAN = 0.6
LOG_STD = -0.3
WIDE = DiagonalGaussian(jnp.array([-0.2]), jnp.array([0.4]))
GRID = jnp.linspace(-12.0, 12.0, 4001)


def gaussian_gradients(actions_count: bool, truncation: float) -> tuple[np.ndarray, np.ndarray]:
    """The objective's gradients in mean and log std, on a grid of actions, for Q(a) = a² and V = 1.

    The grid is of actions taken if `actions_count`, else of new actions.
    """

    def objective(statistics: tuple[jax.Array, jax.Array], action: jax.Array) -> jax.Array:
        value = action**2
        one = jnp.float32(1.0)
        zero = jnp.zeros(1)
        taken, new = (action[None], zero) if actions_count else (zero, action[None])
        targets, new_values = (value, one) if actions_count else (one, value)  # the other advantage is 0
        return truncated.gaussian_objective(
            DiagonalGaussian(*statistics), WIDE, taken, targets, new, new_values, one, truncation
        )

    statistics = jnp.array([MEAN]), jnp.array([LOG_STD])
    mean, log_std = jax.jit(jax.vmap(jax.grad(objective), (None, 0)))(statistics, GRID)
    return np.asarray(mean, np.float64)[:, 0], np.asarray(log_std, np.float64)[:, 0]


@pytest.mark.parametrize("truncation", [0.3, 1.0, 1.5, 1e6])
def test_wang_2017_algorithm_3_is_the_exact_gradient_in_expectation(truncation):
    grid = np.asarray(GRID, np.float64)
    behaviour = oracle.normal_density(grid, float(WIDE.mean[0]), float(np.exp(WIDE.log_std[0])))
    policy = oracle.normal_density(grid, MEAN, np.exp(LOG_STD))
    found = [
        np.trapezoid(behaviour * from_actions, grid) + np.trapezoid(policy * from_new, grid)
        for from_actions, from_new in zip(
            gaussian_gradients(True, truncation), gaussian_gradients(False, truncation), strict=True
        )
    ]
    assert found == pytest.approx([2 * MEAN, 2 * np.exp(2 * LOG_STD)], abs=1e-3)  # of E[a²] = mean² + std²


def test_the_gaussian_correction_is_used_for_a_small_c_and_not_for_a_large_c():
    grid = np.asarray(GRID)
    ratios = oracle.normal_density(grid, MEAN, np.exp(LOG_STD)) / oracle.normal_density(grid, -0.2, np.exp(0.4))
    assert ratios.max() > 1.5
    assert np.any(gaussian_gradients(False, 1.5)[0])
    assert not np.any(gaussian_gradients(False, float(ratios.max()) + 0.01)[0])


# Constants, shapes


def test_no_gradient_flows_through_targets_values_weights_or_new_actions():
    policy = DiagonalGaussian(jnp.ones((3, 2)), jnp.zeros((3, 2)))
    behaviour = DiagonalGaussian(jnp.zeros((3, 2)), jnp.zeros((3, 2)))
    numbers = jnp.array([1.0, 2.0, 3.0])
    actions = jnp.full((3, 2), 0.5)

    def total(targets, new_actions, new_values, values):
        return truncated.gaussian_objective(
            policy, behaviour, actions, targets, new_actions, new_values, values, 0.5
        ).sum()

    assert not any(np.any(g) for g in jax.grad(total, argnums=(0, 1, 2, 3))(numbers, actions, 2 * numbers, 3 * numbers))

    def softmax_total(targets, action_values, values):
        logits = Categorical(jnp.tile(LOGITS, (3, 1)))
        return truncated.softmax_objective(
            logits, Categorical(jnp.tile(BEHAVIOUR, (3, 1))), jnp.arange(3), targets, action_values, values, 0.5
        ).sum()

    assert not any(
        np.any(g) for g in jax.grad(softmax_total, argnums=(0, 1, 2))(numbers, jnp.ones((3, 4)), 2 * numbers)
    )


def test_a_column_for_a_row_is_refused_and_not_broadcast():
    policy = Categorical(jnp.zeros((3, 4)))
    with pytest.raises(Exception, match="targets"):
        truncated.softmax_objective(
            policy, policy, jnp.arange(3), jnp.zeros((3, 1)), jnp.zeros((3, 4)), jnp.zeros(3), 1.0
        )


# Stochastic dueling


def test_dueling_values_of_the_sampled_actions_have_the_state_value_as_their_mean():
    """Wang et al. 2017, eq. 13."""
    rng = np.random.default_rng(0)
    values = jnp.asarray(rng.standard_normal((3, 2)), jnp.float32)
    sampled = jnp.asarray(rng.standard_normal((5, 3, 2)), jnp.float32)
    found = jnp.stack([truncated.dueling_values(values, advantages, sampled) for advantages in sampled])
    np.testing.assert_allclose(found.mean(0), values, atol=1e-6)
    np.testing.assert_allclose(found[0] - found[1], sampled[0] - sampled[1], atol=1e-6)


def test_a_constant_added_to_every_advantage_changes_no_dueling_value():
    values, advantages, sampled = jnp.array([1.0]), jnp.array([0.3]), jnp.array([[0.1], [0.7]])
    np.testing.assert_allclose(
        truncated.dueling_values(values, advantages + 5.0, sampled + 5.0), [1.0 + 0.3 - 0.4], atol=1e-6
    )
