"""The gradient step against the optimisers' formulas in NumPy."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from birl.nets.optimizers import (
    LARGE,
    first_mean_square,
    gradient_step,
    initial_optimizer_state,
    shared_rmsprop,
    soft_update,
)
from birl.parts import OptimizerConfig

PARAMETERS = {"a": jnp.array([1.0, -2.0]), "b": jnp.array([[0.5]])}
GRADIENTS = {"a": jnp.array([3.0, 0.0]), "b": jnp.array([[4.0]])}  # global norm 5


@partial(jax.jit, static_argnames=("name", "max_grad_norm"), compiler_options={"xla_backend_optimization_level": 0})
def step(name, parameters, optimizer_state, gradients, learning_rate, max_grad_norm):
    config = OptimizerConfig(name, max_grad_norm=max_grad_norm)
    optimizer_state = initial_optimizer_state(config, parameters) if optimizer_state is None else optimizer_state
    return gradient_step(config, parameters, optimizer_state, gradients, learning_rate)


def second_moment(optimizer_state):
    """The mean of squared gradients of all parameters, concatenated."""
    return np.concatenate([np.ravel(group) for group in optimizer_state.nu])


TWO_GRADIENTS = np.array([3.0, 1e-4]), np.array([-1.0, 2e-4])  # for small gradients ε matters
# The divisor for a mean square g, and the initial g, of PyTorch's and of TensorFlow's RMSProp.
ROOTS = {
    "rmsprop": (lambda mean_square, epsilon: np.sqrt(mean_square) + epsilon, 0.0),
    "rmsprop-tf": (lambda mean_square, epsilon: np.sqrt(mean_square + epsilon), 1.0),
}


def expected_steps(name, learning_rate, decay, epsilon):
    """Two parameters after TWO_GRADIENTS, and the mean of their squares."""
    root, first = ROOTS[name]
    parameters = np.array([1.0, -2.0])
    mean_square = np.full(2, first)
    for gradient in TWO_GRADIENTS:
        mean_square = decay * mean_square + (1 - decay) * gradient**2
        parameters = parameters - learning_rate * gradient / root(mean_square, epsilon)
    return parameters, mean_square


@pytest.mark.parametrize("name", ROOTS)
def test_rmsprop_is_pytorchs_or_tensorflows_from_the_first_step_on(name):
    parameters = {"a": jnp.array([1.0, -2.0])}
    state = None
    for gradient in TWO_GRADIENTS:
        parameters, state, _ = step(name, parameters, state, {"a": jnp.asarray(gradient, jnp.float32)}, 0.1, None)
    expected, mean_square = expected_steps(name, 0.1, 0.99, 1e-5)
    np.testing.assert_allclose(parameters["a"], expected, rtol=1e-5)
    np.testing.assert_allclose(second_moment(state), mean_square, rtol=1e-5)


def test_pytorchs_first_step_is_ten_times_the_learning_rate_and_tensorflows_follows_the_gradient():
    gradients = {"a": jnp.array([0.05, -0.01])}
    moved = {name: step(name, {"a": jnp.zeros(2)}, None, gradients, 1.0, None)[0]["a"] for name in ROOTS}
    np.testing.assert_allclose(moved["rmsprop"], [-10.0, 10.0], rtol=0.02)  # 1/√(1-α) for any gradient
    np.testing.assert_allclose(moved["rmsprop-tf"], [-0.05, 0.01], rtol=0.02)


def test_adam_is_kingma_and_bas_with_epsilon_1e_5():
    parameters = {"a": jnp.array([1.0, -2.0])}
    state = None
    expected = np.array([1.0, -2.0])
    mean = np.zeros(2)
    mean_square = np.zeros(2)
    for t, gradient in enumerate((np.array([3.0, 1e-5]), np.array([-1.0, 1e-5])), start=1):
        parameters, state, _ = step("adam", parameters, state, {"a": jnp.asarray(gradient, jnp.float32)}, 0.1, None)
        mean = 0.9 * mean + 0.1 * gradient
        mean_square = 0.999 * mean_square + 0.001 * gradient**2
        expected = expected - 0.1 * (mean / (1 - 0.9**t)) / (np.sqrt(mean_square / (1 - 0.999**t)) + 1e-5)
    np.testing.assert_allclose(parameters["a"], expected, rtol=1e-4)  # a gradient of ε moves half as far as one of 3


def test_max_grad_norm_scales_the_whole_gradient_to_that_norm_and_not_each_element():
    _, state, norm = step("rmsprop", PARAMETERS, None, GRADIENTS, 0.1, 1.0)
    assert float(norm) == pytest.approx(5.0)  # reported before clipping
    # The optimiser gets (0.6, 0) and 0.8; clipping each element would give (1, 0) and 1.
    np.testing.assert_allclose(np.sqrt(second_moment(state) / 0.01), [0.6, 0.0, 0.8], atol=1e-4)


@pytest.mark.parametrize("max_grad_norm", [None, 6.0])
def test_a_gradient_within_the_norm_is_not_changed(max_grad_norm):
    _, state, norm = step("rmsprop", PARAMETERS, None, GRADIENTS, 0.1, max_grad_norm)
    assert float(norm) == pytest.approx(5.0)
    np.testing.assert_allclose(np.sqrt(second_moment(state) / 0.01), [3.0, 0.0, 4.0], rtol=1e-5)


def test_a_zero_gradient_is_not_divided_by_its_norm():
    parameters, _, norm = step("adam", PARAMETERS, None, jax.tree.map(jnp.zeros_like, GRADIENTS), 0.1, 0.5)
    assert float(norm) == 0.0
    jax.tree.map(np.testing.assert_array_equal, parameters, PARAMETERS)


def test_the_step_is_proportional_to_the_learning_rate():
    moved = [
        step("adam", PARAMETERS, None, GRADIENTS, rate, None)[0]["b"] - PARAMETERS["b"] for rate in (0.0, 0.1, 0.2)
    ]
    assert float(moved[0][0, 0]) == 0.0
    assert float(moved[1][0, 0]) == pytest.approx(-0.1, rel=1e-4)  # Adam's first step has length 1
    assert float(moved[2][0, 0]) == pytest.approx(-0.2, rel=1e-4)


@pytest.mark.parametrize("name", ROOTS)
def test_shared_rmsprop_is_mnih_2016_equations_s2_and_s3_in_place(name):
    weights = np.float32([1.0, -2.0])
    mean_squares = np.full(2, first_mean_square(name), np.float32)
    kept_weights, kept_squares = weights, mean_squares
    config = OptimizerConfig(name, optimizer_epsilon=1e-3, rmsprop_decay=0.9)
    for gradient in TWO_GRADIENTS:
        shared_rmsprop(weights, mean_squares, np.float32(gradient), 0.1, config)
    expected, mean_square = expected_steps(name, 0.1, 0.9, 1e-3)
    np.testing.assert_allclose(kept_weights, expected, rtol=1e-5)
    np.testing.assert_allclose(kept_squares, mean_square, rtol=1e-5)
    assert weights.dtype == mean_squares.dtype == np.float32


def test_large_and_small_arrays_are_updated_alike_and_clipped_together():
    rng = np.random.default_rng(0)
    shapes = {"first": (3,), "large": (LARGE // 128, 128), "middle": (2, 2), "larger": (LARGE + 1,), "last": ()}
    parameters, gradients = (
        {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()} for _ in range(2)
    )
    moved, state, norm = step("rmsprop-tf", parameters, None, gradients, 0.1, 1.0)
    expected = np.sqrt(sum((gradient.astype(np.float64) ** 2).sum() for gradient in gradients.values()))
    assert float(norm) == pytest.approx(expected, rel=1e-4)
    for name, gradient in gradients.items():
        clipped = gradient / expected
        np.testing.assert_allclose(
            moved[name], parameters[name] - 0.1 * clipped / np.sqrt(0.99 + 0.01 * clipped**2 + 1e-5), atol=1e-5
        )
    assert [group.shape for group in state.nu] == [shapes["large"], shapes["larger"], (8,)]


def test_soft_update_is_lillicrap_2016_algorithm_1_and_exact_for_rates_of_0_and_1():
    moved = soft_update(PARAMETERS, GRADIENTS, 0.25)
    np.testing.assert_allclose(moved["a"], [0.75 * 1.0 + 0.25 * 3.0, 0.75 * -2.0])
    np.testing.assert_allclose(moved["b"], [[0.75 * 0.5 + 0.25 * 4.0]])
    for rate, expected in ((0.0, PARAMETERS), (1.0, GRADIENTS)):
        jax.tree.map(np.testing.assert_array_equal, soft_update(PARAMETERS, GRADIENTS, rate), expected)
