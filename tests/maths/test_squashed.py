"""The squashed Gaussian against integrals over its actions, and where float32 rounds them to ±1."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from birl.maths.squashed import SquashedGaussian
from tests import oracle

jit = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
log_prob = jit(lambda distribution, actions: distribution.log_prob(actions))
action_and_log_prob = jit(
    lambda distribution, key: distribution.action_and_log_prob(jax.random.normal(key, distribution.mean.shape))
)

SHAPES = [(0.0, 1.0), (0.4, 0.3), (-1.2, 0.8), (0.0, 2.0)]  # mean and deviation before tanh
mean_and_std = pytest.mark.parametrize(("mean", "std"), SHAPES)


def squashed(mean, std, *shape: int) -> SquashedGaussian:
    return SquashedGaussian(*[jnp.broadcast_to(jnp.asarray(x, jnp.float32), shape) for x in (mean, np.log(std))])


def drawn(mean: float, std: float, count: int = 20_000) -> tuple[np.ndarray, np.ndarray]:
    """Actions [count] of one dimension, and their log densities."""
    actions, log_probs = action_and_log_prob(squashed(mean, std, count, 1), jax.random.key(0))
    return np.asarray(actions, np.float64)[:, 0], np.asarray(log_probs, np.float64)


@mean_and_std
def test_the_density_integrates_to_1(mean, std):
    # ∫ p(a) da = ∫ p(tanh u) (1 - tanh² u) du, without the peaks at ±1
    def density_over_u(u: np.ndarray) -> np.ndarray:
        actions = np.tanh(u)
        log_probs = log_prob(squashed(mean, std, len(u), 1), jnp.asarray(actions, jnp.float32)[:, None])
        return np.exp(np.asarray(log_probs, np.float64)) * (1.0 - actions**2)

    low = max(-6.0, mean - 6 * std)
    high = min(6.0, mean + 6 * std)
    within = math.erf((high - mean) / std / math.sqrt(2)) / 2 - math.erf((low - mean) / std / math.sqrt(2)) / 2
    assert oracle.integral(density_over_u, low, high) == pytest.approx(within, abs=2e-3)


def test_the_density_integrates_to_1_over_the_actions_themselves():
    def density(actions: np.ndarray) -> np.ndarray:
        return np.exp(log_prob(squashed(0.2, 0.4, len(actions), 1), jnp.asarray(actions, jnp.float32)[:, None]))

    assert oracle.integral(density, -0.9999, 0.9999) == pytest.approx(1.0, abs=1e-3)


@mean_and_std
def test_the_log_density_is_the_gaussians_minus_the_log_of_the_slope_of_tanh(mean, std):
    actions = np.linspace(-0.99, 0.99, 101)
    expected = np.log(oracle.normal_density(np.arctanh(actions), mean, std)) - np.log(1 - actions**2)
    found = log_prob(squashed(mean, std, 101, 1), jnp.asarray(actions, jnp.float32)[:, None])
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@mean_and_std
def test_a_sample_comes_with_its_own_log_density(mean, std):
    actions, log_probs = drawn(mean, std)
    inside = np.abs(actions) < 0.999
    found = log_prob(squashed(mean, std, len(actions), 1), jnp.asarray(actions, jnp.float32)[:, None])
    np.testing.assert_allclose(np.asarray(found)[inside], log_probs[inside], rtol=1e-2, atol=2e-3)


@mean_and_std
def test_samples_have_the_frequencies_of_the_density(mean, std):
    actions, _ = drawn(mean, std)
    for limit in (-0.8, -0.2, 0.3, 0.9):
        expected = 0.5 + 0.5 * math.erf((math.atanh(limit) - mean) / std / math.sqrt(2))
        assert np.mean(actions < limit) == pytest.approx(expected, abs=4.5 * 0.5 / math.sqrt(len(actions)))


def test_the_mode_is_the_median_of_the_samples():
    actions, _ = drawn(0.4, 0.3)
    mode = float(squashed(0.4, 0.3, 1).mode()[0])
    assert np.mean(actions < mode) == pytest.approx(0.5, abs=4.5 * 0.5 / math.sqrt(len(actions)))


def test_log_densities_sum_over_action_dimensions():
    distribution = SquashedGaussian(jnp.array([[0.1, -0.7]]), jnp.log(jnp.array([[0.5, 1.5]])))
    single = [
        log_prob(squashed(mean, std, 1, 1), jnp.array([[a]])) for mean, std, a in ((0.1, 0.5, 0.3), (-0.7, 1.5, -0.9))
    ]
    np.testing.assert_allclose(log_prob(distribution, jnp.array([[0.3, -0.9]])), sum(single), rtol=1e-5)


@pytest.mark.parametrize("mean", [-40.0, -15.0, 15.0, 40.0])
def test_a_sample_has_the_exact_log_density_even_where_all_actions_round_to_one(mean):
    actions, log_probs = drawn(mean, 0.01, count=8)
    assert len(set(actions)) == 1
    assert np.all(np.abs(actions) > 0.999999)
    # log N(μ + σε) = -ε²/2 - log σ - ½ log 2π, and log(1 - tanh²(u)) = 2 log 2 - 2|u| to 1e-12.
    noise = np.asarray(jax.random.normal(jax.random.key(0), (8, 1)), np.float64)[:, 0]
    gaussian = -(noise**2) / 2 - math.log(0.01) - 0.5 * math.log(2 * math.pi)
    slopes = 2 * math.log(2) - 2 * np.abs(mean + 0.01 * noise)
    np.testing.assert_allclose(log_probs, gaussian - slopes, rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("mean", [-1e4, -20.0, 0.0, 20.0, 1e4])
def test_gradients_are_finite_at_saturation(mean):
    def of_samples(distribution: SquashedGaussian) -> jax.Array:
        actions, log_probs = distribution.action_and_log_prob(jax.random.normal(jax.random.key(1), (3, 1)))
        return jnp.sum(actions) + jnp.sum(log_probs)

    def of_given(distribution: SquashedGaussian) -> jax.Array:
        return jnp.sum(distribution.log_prob(jnp.array([[1.0], [-1.0], [0.0]])))

    for objective in (of_samples, of_given):
        value, gradients = jit(jax.value_and_grad(objective))(squashed(mean, 1.0, 3, 1))
        assert np.isfinite(value)
        assert all(np.all(np.isfinite(gradient)) for gradient in gradients)


def test_at_saturation_the_log_density_still_pushes_the_mean_back():
    def mean_log_prob(mean: jax.Array) -> jax.Array:
        noise = jax.random.normal(jax.random.key(0), (64, 1))
        return jnp.mean(SquashedGaussian(mean, jnp.zeros((64, 1))).action_and_log_prob(noise)[1])

    slopes = jit(jax.grad(mean_log_prob))(jnp.full((64, 1), 20.0))
    # The slope of 2|u| is 2; the gradient of log(1 - tanh²(u)) computed directly would be NaN.
    np.testing.assert_allclose(slopes * 64, 2.0, rtol=1e-5)


@pytest.mark.usefixtures("types_unchecked")
def test_actions_of_another_shape_are_an_error_and_not_a_broadcast():
    with pytest.raises(ValueError, match="shape"):
        squashed(0.0, 1.0, 4, 1).log_prob(jnp.zeros(4))
