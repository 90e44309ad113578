"""Layers against their formulas, and the geometry of their initial weights."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from birl.nets.layers import ACTIVATIONS, Linear, make_layer_norm, make_linear, orthogonal

X = np.random.default_rng(0).standard_normal((3, 5)).astype(np.float32)


@pytest.mark.parametrize(("inputs", "outputs"), [(7, 4), (4, 4)])
def test_a_matrix_with_enough_rows_has_orthonormal_columns_times_the_scale(inputs, outputs):
    weight = np.asarray(orthogonal(np.random.default_rng(0), inputs, outputs, 3.0), np.float64)
    np.testing.assert_allclose(weight.T @ weight, 9.0 * np.eye(outputs), atol=1e-5)


def test_a_wide_matrix_has_orthonormal_rows_times_the_scale():
    weight = np.asarray(orthogonal(np.random.default_rng(0), 4, 7, 3.0), np.float64)
    np.testing.assert_allclose(weight @ weight.T, 9.0 * np.eye(4), atol=1e-5)


def test_orthogonal_matrices_are_uniform_so_their_entries_have_mean_0():
    # Without the sign of R's diagonal, LAPACK's Q has diagonal entries of one sign.
    draws = np.stack([orthogonal(np.random.default_rng(seed), 3, 3, 1.0) for seed in range(300)])
    np.testing.assert_allclose(draws.mean(0), 0.0, atol=0.15)


def test_hidden_layers_are_scaled_by_root_2_and_biases_are_0():
    linear = make_linear(np.random.default_rng(0), 6, 6)
    np.testing.assert_allclose(np.linalg.norm(linear.weight, axis=0), np.sqrt(2), rtol=1e-5)
    assert not np.any(linear.bias)


def test_the_same_generator_state_gives_the_same_layer_and_another_a_different_one():
    first, again, other = (np.asarray(make_linear(np.random.default_rng(seed), 4, 3).weight) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert not np.any(first == other)


def test_linear_is_x_times_weight_plus_bias_over_any_leading_axes():
    weight = np.arange(10, dtype=np.float32).reshape(5, 2)
    bias = np.array([1.0, -1.0], np.float32)
    outputs = Linear(jnp.asarray(weight), jnp.asarray(bias))(X[None, :, None])
    np.testing.assert_allclose(outputs[0, :, 0], X @ weight + bias, rtol=1e-5)


@pytest.mark.parametrize("outputs", [1, 2, 6, 64, 100])  # birl/accel computes the gradient of some transposed
def test_the_gradient_of_linear_is_inputs_times_errors_and_the_sum_of_errors(outputs):
    rng = np.random.default_rng(0)
    linear = make_linear(rng, 70, outputs)
    x = rng.standard_normal((5, 3, 70)).astype(np.float32)
    errors = rng.standard_normal((5, 3, outputs)).astype(np.float32)
    gradients, inputs = jax.grad(lambda linear, x: jnp.sum(linear(x) * errors), (0, 1))(linear, x)
    np.testing.assert_allclose(gradients.weight, np.einsum("tbi,tbo->io", x, errors), atol=1e-4)
    np.testing.assert_allclose(gradients.bias, errors.sum((0, 1)), atol=1e-5)
    np.testing.assert_allclose(inputs, errors @ np.asarray(linear.weight).T, atol=1e-5)


def test_layer_norm_gives_mean_0_and_variance_1_for_any_scale_and_shift_of_its_input():
    outputs = np.asarray(make_layer_norm(5)(1000.0 * X + 7.0))
    np.testing.assert_allclose(outputs.mean(-1), 0.0, atol=1e-5)
    np.testing.assert_allclose(outputs.var(-1), 1.0, rtol=1e-4)


def test_layer_norm_of_equal_inputs_is_0_and_not_nan():
    assert not np.any(make_layer_norm(5)(jnp.full((2, 5), 3.0)))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("tanh", np.tanh(-0.5)),
        ("relu", 0.0),
        ("elu", np.expm1(-0.5)),
        ("silu", -0.5 / (1 + np.exp(0.5))),
        ("gelu", -0.154286),
    ],
)
def test_activations_are_their_formulas(name, expected):
    assert float(ACTIVATIONS[name](jnp.float32(-0.5))) == pytest.approx(expected, abs=1e-5)
    assert float(ACTIVATIONS[name](jnp.float32(20.0))) == pytest.approx(1.0 if name == "tanh" else 20.0)
