"""gSDE's distribution: its equations, its samples, and the gradient that learns σ."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from birl.maths.distributions import DiagonalGaussian
from birl.maths.gaussians import StateDependentGaussian, exploration_noise, state_dependent_gaussian

jit = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
RNG = np.random.default_rng(0)
MEAN = RNG.normal(size=(4, 2)).astype(np.float32)
FEATURES = RNG.normal(size=(4, 3)).astype(np.float32)
LOG_STD = RNG.normal(size=(3, 2)).astype(np.float32) - 1
ACTIONS = jnp.asarray(RNG.normal(size=(4, 2)), jnp.float32)


def gaussian(mean=MEAN, features=FEATURES, log_std=LOG_STD) -> StateDependentGaussian:
    return jit(state_dependent_gaussian)(*map(jnp.asarray, (mean, features, log_std)))


def expected_variances() -> np.ndarray:
    """Σ_j (z_j σ_ji)² of each row and action."""
    return np.array([[sum((z[j] * np.exp(LOG_STD[j, i])) ** 2 for j in range(3)) for i in range(2)] for z in FEATURES])


def test_the_variance_of_an_action_is_the_sum_of_squares_of_features_times_deviations():
    np.testing.assert_allclose(np.exp(2 * gaussian().log_std), expected_variances() + 1e-6, rtol=1e-5)


def test_samples_have_the_mean_and_the_variance_that_the_density_says():
    many = jit(jax.vmap(gaussian().sample))(jax.random.split(jax.random.key(0), 40_000))
    stds = np.sqrt(expected_variances())
    assert np.all(np.abs(many.mean(0) - MEAN) < 5 * stds / 200)
    np.testing.assert_allclose(many.var(0), expected_variances(), rtol=5 * np.sqrt(2 / 40_000))


def test_densities_entropy_and_kl_are_those_of_a_diagonal_gaussian_with_that_deviation():
    plain = DiagonalGaussian(jnp.asarray(MEAN), jnp.asarray(0.5 * np.log(expected_variances() + 1e-6), jnp.float32))
    other = DiagonalGaussian(plain.mean + 0.3, plain.log_std - 0.2)
    shifted = gaussian()._replace(mean=other.mean, log_std=other.log_std)
    np.testing.assert_allclose(gaussian().log_prob(ACTIONS), plain.log_prob(ACTIONS), rtol=1e-5)
    np.testing.assert_allclose(gaussian().entropy(), plain.entropy(), rtol=1e-5)
    np.testing.assert_allclose(gaussian().kl(shifted), plain.kl(other), rtol=1e-4)
    np.testing.assert_array_equal(gaussian().mode(), MEAN)


def test_the_noise_of_a_state_is_the_same_while_the_matrix_is_the_same():
    key = jax.random.key(3)
    first = gaussian().sample(key) - MEAN
    np.testing.assert_array_equal(gaussian().sample(key) - MEAN, first)
    np.testing.assert_allclose(gaussian(features=2 * FEATURES).sample(key) - MEAN, 2 * first, rtol=1e-4, atol=1e-6)
    assert np.all(gaussian().sample(jax.random.key(4)) - MEAN != first)


def test_each_row_has_a_matrix_of_its_own():
    rows = gaussian(np.zeros((4, 2), np.float32), np.ones((4, 3), np.float32)).sample(jax.random.key(0))
    assert len({tuple(row) for row in np.asarray(rows).tolist()}) == 4


def test_the_noise_is_the_matrix_times_the_features():
    matrices = RNG.normal(size=(4, 3, 2)).astype(np.float32)
    expected = [[sum(FEATURES[b, j] * matrices[b, j, i] for j in range(3)) for i in range(2)] for b in range(4)]
    np.testing.assert_allclose(exploration_noise(jnp.asarray(FEATURES), jnp.asarray(matrices)), expected, rtol=1e-5)


def test_the_gradient_of_log_pi_with_respect_to_sigma_is_the_papers():
    # ∂ log π / ∂σ_ji = ((a_i - μ_i)² - σ̂_i²) / σ̂_i³ · z_j² σ_ji / σ̂_i, and σ_ji times that with
    # respect to log σ_ji.
    def log_prob(log_std):
        return state_dependent_gaussian(jnp.asarray(MEAN), jnp.asarray(FEATURES), log_std).log_prob(ACTIONS).sum()

    sigma = np.exp(LOG_STD.astype(np.float64))
    deviations = np.sqrt(expected_variances())
    slopes = ((ACTIONS - MEAN) ** 2 - deviations**2) / deviations**4
    expected = sum(z[:, None] ** 2 * sigma**2 * slope for z, slope in zip(FEATURES, slopes, strict=True))
    np.testing.assert_allclose(jit(jax.grad(log_prob))(jnp.asarray(LOG_STD)), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("scale", [0.0, 1e-8, 1e4])
def test_the_learned_deviation_has_a_finite_gradient_for_any_features(scale):
    def objective(log_std):
        distribution = state_dependent_gaussian(jnp.asarray(MEAN), jnp.asarray(scale * FEATURES), log_std)
        return (distribution.log_prob(ACTIONS) + distribution.entropy()).sum()

    value, gradient = jit(jax.value_and_grad(objective))(jnp.asarray(LOG_STD))
    assert np.isfinite(value)
    assert np.all(np.isfinite(gradient))


def test_all_leaves_have_the_batch_axes():
    batch = [np.broadcast_to(x, (5, *x.shape)) for x in (MEAN, FEATURES)]
    leaves = jax.tree.leaves(gaussian(*batch))
    assert [leaf.shape for leaf in leaves] == [(5, 4, 2), (5, 4, 2), (5, 4, 3), (5, 4, 3, 2)]
