"""Features against values computed by hand, and against the kernel that they approximate."""

import numpy as np
import pytest
from gymnasium import spaces

from birl.config import ConfigError
from birl.nets.compatible import make_features

PAIR = spaces.Box(-np.inf, np.inf, (2,), np.float32)


def features_of(name, observations, space=PAIR, count=16, scale=1.0, seed=0):
    features, width = make_features(np.random.default_rng(seed), space, name, count, scale)
    found = np.asarray(features(observations))
    assert found.shape[-1] == width
    return found


def test_linear_features_are_the_observation_and_1():
    np.testing.assert_array_equal(features_of("linear", np.float32([[2, 3], [4, 5]])), [[2, 3, 1], [4, 5, 1]])


def test_quadratic_features_are_every_product_once_the_observation_and_1():
    np.testing.assert_array_equal(features_of("quadratic", np.float32([[2, 3]])), [[4, 6, 9, 2, 3, 1]])


@pytest.mark.parametrize("scale", [0.5, 2.0])
def test_dot_products_of_fourier_features_approximate_a_gaussian_kernel(scale):
    x, y = np.random.default_rng(1).uniform(-1, 1, (2, 50, 2)).astype(np.float32)
    first, second = (features_of("fourier", points, count=20_000, scale=scale) for points in (x, y))
    kernel = np.exp(-((x - y) ** 2).sum(-1) / (2 * scale**2))
    np.testing.assert_allclose((first * second).sum(-1), kernel, atol=0.05)
    np.testing.assert_allclose((first**2).sum(-1), 1.0, atol=0.05)


def test_fourier_features_of_two_seeds_differ():
    first, second = (features_of("fourier", np.ones((1, 2), np.float32), seed=seed) for seed in (0, 1))
    assert np.all(first != second)


def test_dict_and_discrete_observations_have_features_and_text_is_refused():
    space = spaces.Dict({"place": PAIR, "kind": spaces.Discrete(3)})
    observations = {"place": np.float32([[2, 3]]), "kind": np.array([1])}
    assert sorted(features_of("linear", observations, space)[0].tolist()) == [0, 0, 1, 1, 2, 3]
    with pytest.raises(ConfigError, match="observation space Text"):
        make_features(np.random.default_rng(0), spaces.Text(3), "linear", 1, 1.0)
