"""Exploration against closed forms: probabilities, correlations, variances, and adaptive scales."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from birl.maths.exploration import (
    action_distance,
    adapt_noise_scale,
    epsilon_greedy,
    gaussian,
    ornstein_uhlenbeck,
    parameter_noise,
)

KEY = jnp.array([1, 2], jnp.uint32)
VALUES = jnp.array([[1.0, 3.0, 2.0, -1.0], [0.0, -5.0, 0.0, -9.0]])
MASKS = jnp.array([[True, False, True, True], [False, False, False, True]])


def probabilities(*inputs):
    """[2, 4] the probability of each action."""
    behaviour = epsilon_greedy(*inputs)
    log_probs = jax.vmap(behaviour.log_prob, out_axes=-1)(jnp.arange(4)[:, None].repeat(2, 1))
    return np.exp(np.asarray(log_probs, np.float64))


# ε-greedy


@pytest.mark.parametrize("epsilon", [0.0, 0.2, 1.0])
def test_the_greedy_action_has_probability_1_minus_epsilon_plus_its_share_of_epsilon(epsilon):
    share = epsilon / 4
    # In the second row two actions are best: the first counts.
    expected = [[share, 1 - epsilon + share, share, share], [1 - epsilon + share, share, share, share]]
    np.testing.assert_allclose(probabilities(VALUES, epsilon, None), expected, atol=1e-6)


def test_masked_actions_have_probability_0_and_epsilon_is_shared_among_the_others():
    np.testing.assert_allclose(
        probabilities(VALUES, 0.3, MASKS), [[0.1, 0.0, 0.8, 0.1], [0.0, 0.0, 0.0, 1.0]], atol=1e-6
    )


@pytest.mark.parametrize("epsilon", [0.0, 0.2, 0.99])
def test_the_mode_is_the_best_allowed_action(epsilon):
    assert epsilon_greedy(VALUES, epsilon, None).mode().tolist() == [1, 0]
    assert epsilon_greedy(VALUES, epsilon, MASKS).mode().tolist() == [2, 3]


def test_samples_have_the_frequencies_of_their_probabilities_and_masked_actions_never_occur():
    keys = jax.random.split(KEY, 20_000)
    samples = np.asarray(jax.vmap(epsilon_greedy(VALUES, 0.3, MASKS).sample)(keys))
    counts = np.stack([np.bincount(samples[:, row], minlength=4) for row in (0, 1)])
    np.testing.assert_allclose(counts / 20_000, [[0.1, 0.0, 0.8, 0.1], [0.0, 0.0, 0.0, 1.0]], atol=0.015)
    assert counts[0, 1] == 0
    assert counts[1, 3] == 20_000


# Action noise


def test_gaussian_noise_has_deviation_sigma_and_independent_dimensions():
    noise = np.asarray(gaussian(KEY, (50_000, 3), 0.4))
    np.testing.assert_allclose(np.cov(noise.T), 0.16 * np.eye(3), atol=0.005)
    np.testing.assert_allclose(noise.mean(0), 0.0, atol=0.01)


def walk(rate, scale, time_step, steps, shape, start=0.0):
    """[steps, *shape] of Ornstein-Uhlenbeck noise."""

    def step(noise, key):
        noise = ornstein_uhlenbeck(key, noise, rate, scale, time_step)
        return noise, noise

    return np.asarray(jax.lax.scan(step, jnp.full(shape, start), jax.random.split(KEY, steps))[1], np.float64)


PROCESSES = pytest.mark.parametrize(("rate", "time_step"), [(0.15, 1.0), (0.5, 0.5), (2.0, 0.25)])


@PROCESSES
def test_ornstein_uhlenbeck_noise_has_the_stationary_variance_of_its_closed_form(rate, time_step):
    noise = walk(rate, 0.3, time_step, 300, (4000,))[-1]
    assert noise.var() == pytest.approx(0.3**2 / (2 * rate - rate**2 * time_step), rel=0.1)
    assert abs(noise.mean()) < 0.05


@PROCESSES
@pytest.mark.parametrize("lag", [1, 4])
def test_ornstein_uhlenbeck_noise_has_autocorrelation_1_minus_theta_dt_to_the_k_after_k_steps(rate, time_step, lag):
    noise = walk(rate, 0.3, time_step, 100, (4000,))
    assert np.corrcoef(noise[-1 - lag], noise[-1])[0, 1] == pytest.approx((1 - rate * time_step) ** lag, abs=0.05)


def test_without_new_noise_an_ornstein_uhlenbeck_process_decays_as_powers_of_1_minus_theta_dt():
    np.testing.assert_allclose(walk(0.5, 0.0, 0.4, 5, (), start=2.0), 2.0 * 0.8 ** np.arange(1, 6), rtol=1e-5)


def test_the_noise_of_two_environments_and_of_two_dimensions_is_not_correlated():
    noise = walk(0.5, 0.3, 1.0, 20_000, (2, 2)).reshape(-1, 4)
    np.testing.assert_allclose(np.corrcoef(noise.T), np.eye(4), atol=0.05)


def test_with_theta_dt_of_1_the_noise_is_independent_of_the_past():
    np.testing.assert_array_equal(ornstein_uhlenbeck(KEY, jnp.full((5, 2), 7.0), 1.0, 0.3), gaussian(KEY, (5, 2), 0.3))


# Parameter noise


def test_parameter_noise_is_standard_normal_in_the_shape_of_the_parameters_and_differs_between_leaves():
    parameters = {"weight": jnp.zeros((200, 200)), "bias": jnp.zeros((200, 200)), "none": None}
    noise = parameter_noise(KEY, parameters)
    assert jax.tree.structure(noise) == jax.tree.structure(parameters)
    for leaf in (noise["weight"], noise["bias"]):
        assert (float(leaf.mean()), float(leaf.std())) == pytest.approx((0.0, 1.0), abs=0.02)
    assert abs(np.corrcoef(noise["weight"].ravel(), noise["bias"].ravel())[0, 1]) < 0.02


def test_the_action_distance_is_the_root_mean_square_over_states_and_dimensions():
    actions, perturbed = jnp.array([[1.0, 2.0], [3.0, 4.0]]), jnp.array([[1.0, 0.0], [3.0, 8.0]])
    assert float(action_distance(actions, perturbed)) == pytest.approx(np.sqrt((0 + 4 + 0 + 16) / 4))


@pytest.mark.parametrize(("distance", "expected"), [(0.1, 0.55), (0.2, 0.55), (0.3, 0.5 / 1.1)])
def test_the_scale_grows_up_to_the_target_distance_and_shrinks_beyond_it(distance, expected):
    assert float(adapt_noise_scale(0.5, distance, 0.2, 1.1)) == pytest.approx(expected)


@pytest.mark.parametrize("start", [1e-3, 10.0])
def test_the_adaptive_scale_converges_to_the_target_distance_for_a_linear_actor(start):
    # a = W s with |s|² = n and W perturbed by σ N(0, 1): the distance is σ √n, so σ tends to δ/√n.
    states = jnp.sign(jax.random.normal(KEY, (64, 25)))
    weight = jnp.ones((25, 50))

    def step(scale, key):
        perturbed = weight + scale * parameter_noise(key, weight)
        distance = action_distance(states @ weight, states @ perturbed)
        return adapt_noise_scale(scale, distance, 0.2), (scale, distance)

    _, (scales, distances) = jax.lax.scan(step, jnp.float32(start), jax.random.split(KEY, 1000))
    assert float(scales[-200:].mean()) == pytest.approx(0.2 / 5, rel=0.03)
    assert float(distances[-200:].mean()) == pytest.approx(0.2, rel=0.03)
