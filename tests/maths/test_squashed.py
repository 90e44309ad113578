"""The squashed Gaussian against integrals over its actions, and where float32 rounds them to ±1."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from birl.maths.distributions import DiagonalGaussian
from birl.maths.gaussians import BoundedGaussian, SquashedGaussian, state_dependent_gaussian
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


# Squashed into the bounds of a Box

LOW, HIGH = (-2.0, 0.0), (3.0, 0.5)


def bounded(mean, std, *shape: int, low=LOW, high=HIGH) -> BoundedGaussian:
    log_std = np.log(np.broadcast_to(std, shape)).astype(np.float32)
    mean = np.broadcast_to(mean, shape).astype(np.float32)
    return BoundedGaussian(DiagonalGaussian(jnp.asarray(mean), jnp.asarray(log_std)), low, high)


def log_density_over_bounds(actions: np.ndarray, mean: float, std: float, low: float, high: float) -> np.ndarray:
    """log N(u) minus the log of da/du, for a = middle + half · tanh(u)."""
    half = (high - low) / 2
    units = (actions - low) / half - 1
    return np.log(oracle.normal_density(np.arctanh(units), mean, std)) - np.log(half * (1 - units**2))


def test_the_density_of_a_bounded_action_is_per_unit_of_the_action_and_integrates_to_1():
    def density(actions: np.ndarray) -> np.ndarray:
        distribution = bounded(0.2, 0.4, len(actions), 1, low=LOW[:1], high=HIGH[:1])
        return np.exp(log_prob(distribution, jnp.asarray(actions, jnp.float32)[:, None]))

    assert oracle.integral(density, -1.9999, 2.9999) == pytest.approx(1.0, abs=1e-3)


def test_log_densities_of_bounded_actions_sum_over_dimensions_with_their_own_bounds():
    actions = np.array([[-1.0, 0.1], [2.5, 0.45]])
    expected = sum(
        log_density_over_bounds(actions[:, i], mean, std, LOW[i], HIGH[i])
        for i, (mean, std) in enumerate([(0.3, 0.5), (-0.2, 1.5)])
    )
    found = log_prob(bounded((0.3, -0.2), (0.5, 1.5), 2, 2), jnp.asarray(actions, jnp.float32))
    np.testing.assert_allclose(found, expected, rtol=1e-4)


@mean_and_std
def test_the_entropy_of_bounded_actions_is_the_integral_of_minus_p_log_p(mean, std):
    def integrand(u: np.ndarray) -> np.ndarray:
        log_slopes = 2 * (math.log(2) - np.abs(u) - np.log1p(np.exp(-2 * np.abs(u))))
        density = oracle.normal_density(u, mean, std)
        return -density * (np.log(np.maximum(density, 1e-300)) - log_slopes - math.log(2.5))

    expected = oracle.integral(integrand, mean - 9 * std, mean + 9 * std)
    found = float(jit(lambda d: d.entropy())(bounded(mean, std, 1, 1, low=LOW[:1], high=HIGH[:1]))[0])
    assert found == pytest.approx(expected, abs=5e-3 if std > 1 else 1e-4)


def test_the_entropy_is_the_mean_of_minus_log_prob_of_samples():
    distribution = bounded((0.4, -1.0), (0.5, 0.9), 20_000, 2)
    log_probs = log_prob(distribution, jit(lambda d: d.sample(jax.random.key(0)))(distribution))
    assert float(distribution.entropy()[0]) == pytest.approx(-float(log_probs.mean()), abs=0.05)


def test_the_kl_of_bounded_actions_is_that_of_their_gaussians():
    one, other = bounded((0.4, -1.0), (0.5, 0.9), 1, 2), bounded((0.1, 0.0), (0.7, 0.6), 1, 2)
    assert float(one.kl(other)[0]) == float(one.gaussian.kl(other.gaussian)[0])
    # ∫ p log(p / q) over the actions of the first dimension
    samples = jit(lambda d: d.sample(jax.random.key(0)))(bounded((0.4, -1.0), (0.5, 0.9), 40_000, 2))
    log_ratios = [log_prob(jax.tree.map(lambda x: jnp.broadcast_to(x, (40_000, 2)), d), samples) for d in (one, other)]
    assert float((log_ratios[0] - log_ratios[1]).mean()) == pytest.approx(float(one.kl(other)[0]), abs=0.02)


@pytest.mark.parametrize("mean", [-1e4, -20.0, 0.0, 20.0, 1e4])
def test_bounded_actions_lie_in_the_bounds_and_all_of_it_is_finite_at_saturation(mean):
    def objective(distribution: BoundedGaussian) -> jax.Array:
        actions = jax.lax.stop_gradient(distribution.sample(jax.random.key(0)))
        at_bounds = jnp.array([[-2.0, 0.0], [3.0, 0.5], [0.0, 0.2]])
        log_probs = distribution.log_prob(actions) + distribution.log_prob(at_bounds)
        return jnp.sum(log_probs + distribution.entropy())

    distribution = bounded(mean, 1.0, 3, 2)
    actions = np.asarray(distribution.sample(jax.random.key(0)))
    assert np.all((actions >= np.array(LOW)) & (actions <= np.array(HIGH)))
    value, gradients = jit(jax.value_and_grad(objective))(distribution)
    assert np.isfinite(value)
    assert all(np.all(np.isfinite(gradient)) for gradient in jax.tree.leaves(gradients))


def test_on_bounds_of_1_it_is_the_squashed_gaussian():
    noise = jax.random.normal(jax.random.key(0), (5, 2))
    left = bounded((0.3, -0.2), (0.5, 1.5), 5, 2, low=(-1.0, -1.0), high=(1.0, 1.0))
    right = SquashedGaussian(left.gaussian.mean, left.gaussian.log_std)
    for found, expected in zip(left.action_and_log_prob(noise), right.action_and_log_prob(noise), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(left.mode(), right.mode())


def test_with_gsde_a_bounded_action_is_the_tanh_of_the_gaussians_sample():
    mean, features = np.zeros((4, 2), np.float32), np.ones((4, 3), np.float32)
    gaussian = state_dependent_gaussian(jnp.asarray(mean), jnp.asarray(features), jnp.zeros((3, 2)))
    key = jax.random.key(0)
    expected = np.array([0.5, 0.25]) + np.array([2.5, 0.25]) * np.tanh(gaussian.sample(key))
    np.testing.assert_allclose(BoundedGaussian(gaussian, LOW, HIGH).sample(key), expected, rtol=1e-5, atol=1e-6)
