"""A Gaussian scaled to bounds is that of the scaled numbers: densities, entropies, KL."""

import jax
import jax.numpy as jnp
import numpy as np

from birl.maths.distributions import DiagonalGaussian
from birl.maths.gaussians import ScaledGaussian

LOW, HIGH = (0.0, -3.0), (500.0, -1.0)
MIDDLE, HALF = np.array([250.0, -2.0]), np.array([250.0, 1.0])
MEAN, LOG_STD = np.array([[0.3, -0.4], [1.2, 0.0]]), np.log([[0.5, 2.0], [0.7, 1.0]])


def scaled(mean=MEAN, log_std=LOG_STD) -> ScaledGaussian:
    return ScaledGaussian(DiagonalGaussian(jnp.float32(mean), jnp.float32(log_std)), LOW, HIGH)


def in_units_of_the_environment(mean=MEAN, log_std=LOG_STD) -> DiagonalGaussian:
    return DiagonalGaussian(jnp.float32(MIDDLE + HALF * mean), jnp.float32(log_std + np.log(HALF)))


def test_it_is_the_gaussian_with_scaled_mean_and_deviation():
    actions = jnp.float32([[100.0, -2.5], [700.0, 0.0]])
    for ask in (lambda it: it.log_prob(actions), lambda it: it.entropy(), lambda it: it.mode()):
        np.testing.assert_allclose(ask(scaled()), ask(in_units_of_the_environment()), rtol=1e-4)


def test_its_kl_is_that_in_the_units_of_the_environment():
    other = MEAN + 0.2, LOG_STD - 0.1
    expected = in_units_of_the_environment().kl(in_units_of_the_environment(*other))
    np.testing.assert_allclose(scaled().kl(scaled(*other)), expected, rtol=1e-3)


def test_samples_are_those_of_the_gaussian_scaled():
    key = jax.random.key(1)
    expected = MIDDLE + HALF * scaled().gaussian.sample(key)
    np.testing.assert_allclose(scaled().sample(key), expected, rtol=1e-5)
