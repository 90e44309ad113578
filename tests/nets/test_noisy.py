"""Noisy layers against the closed-form moments of their outputs."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from birl.nets.layers import Linear, NoisyLinear, make_linear, make_noisy_linear, with_noise, without_noise

jit = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
RNG = np.random.default_rng(0)
X = jnp.asarray(RNG.standard_normal(4), jnp.float32)
KEY = jax.random.key(1)
LAYER = NoisyLinear(*(jnp.asarray(RNG.standard_normal(shape), jnp.float32) for shape in ((4, 3), (3,), (4, 3), (3,))))
SILENT = make_noisy_linear(np.random.default_rng(1), 4, 3, sigma0=0.0)


@jit
def outputs_over_keys(layer: NoisyLinear) -> jax.Array:
    """[20000, outputs] for X, each with a key of its own."""
    return jax.vmap(lambda key: layer.with_noise(key)(X))(jax.random.split(KEY, 20_000))


def test_means_are_uniform_within_1_over_root_inputs_and_sigma_is_one_number():
    layer = make_noisy_linear(np.random.default_rng(0), 100, 500)
    for mean in (layer.weight, layer.bias):
        assert 0.099 < float(jnp.abs(mean).max()) <= 0.1
        assert float(jnp.std(mean)) == pytest.approx(0.1 / np.sqrt(3), rel=0.05)
    np.testing.assert_allclose(layer.weight_sigma, np.full((100, 500), 0.05), rtol=1e-6)
    np.testing.assert_allclose(layer.bias_sigma, np.full(500, 0.05), rtol=1e-6)


def test_the_same_generator_state_gives_the_same_layer_and_another_a_different_one():
    first, again, other = (make_noisy_linear(np.random.default_rng(seed), 4, 3).weight for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert not np.any(first == other)


def test_with_sigma_0_it_is_the_plain_layer_bit_for_bit():
    plain = Linear(SILENT.weight, SILENT.bias)
    for layer in (SILENT.with_noise(KEY), SILENT.mean(), SILENT):
        np.testing.assert_array_equal(layer(X), plain(X))


def test_mean_and_variance_of_outputs_over_keys_are_the_closed_form():
    outputs = np.asarray(outputs_over_keys(LAYER), np.float64)
    count = len(outputs)
    expected = np.asarray(X @ LAYER.weight + LAYER.bias, np.float64)
    # E f = 0 and E f² = E|ε| = √(2/π), so Var y_j = √(2/π) (√(2/π) Σ_i x_i² σ_ij² + σ_j²).
    spread = np.sqrt(2 / np.pi)
    variance = spread * (spread * np.asarray(X**2 @ LAYER.weight_sigma**2) + np.asarray(LAYER.bias_sigma) ** 2)
    squares = (outputs - expected) ** 2
    assert np.all(np.abs(outputs.mean(0) - expected) < 4 * np.sqrt(variance / count))
    assert np.all(np.abs(squares.mean(0) - variance) < 4 * squares.std(0) / np.sqrt(count))
    np.testing.assert_array_equal(LAYER(X), LAYER.mean()(X))


def test_noise_is_factorised_so_its_matrix_has_rank_1_and_its_columns_are_the_biases():
    noisy = LAYER.with_noise(KEY)
    noise = np.asarray((noisy.weight - LAYER.weight) / LAYER.weight_sigma, np.float64)
    columns = np.asarray((noisy.bias - LAYER.bias) / LAYER.bias_sigma, np.float64)
    rows = noise[:, 0] / columns[0]
    np.testing.assert_allclose(noise, np.outer(rows, columns), rtol=1e-3, atol=1e-4)
    assert len({*rows, *columns}) == 7


def test_the_same_key_gives_the_same_noise_and_another_key_other_noise():
    first, again, other = (with_noise([LAYER], key)[0].weight for key in (KEY, KEY, jax.random.key(2)))
    np.testing.assert_array_equal(first, again)
    assert not np.any(first == other)


def test_every_noisy_layer_of_a_network_becomes_a_plain_one_with_its_own_noise():
    plain = make_linear(np.random.default_rng(0), 4, 3)
    network = {"trunk": (LAYER, plain), "heads": [LAYER, None]}
    noisy = with_noise(network, KEY)
    first, second = noisy["trunk"][0], noisy["heads"][0]
    assert type(first) is type(second) is Linear
    assert not np.any(first.weight == second.weight)
    assert noisy["trunk"][1].weight is plain.weight
    silent = without_noise(network)
    np.testing.assert_array_equal(silent["heads"][0].weight, LAYER.weight)
    assert jax.tree.structure(silent) == jax.tree.structure(noisy)


def test_a_network_without_noisy_layers_stays_as_it_is():
    plain = make_linear(np.random.default_rng(0), 4, 3)
    assert with_noise([plain], KEY)[0].weight is plain.weight
    assert without_noise([plain])[0].weight is plain.weight


def test_noise_under_jit_is_that_without_and_vmap_gives_each_key_its_own():
    keys = jax.random.split(KEY, 3)
    expected = np.stack([with_noise([LAYER], key)[0](X) for key in keys])
    np.testing.assert_allclose(jit(lambda key: with_noise([LAYER], key)[0](X))(keys[0]), expected[0], rtol=1e-5)
    mapped = jit(jax.vmap(lambda key: with_noise([LAYER], key)[0](X)))(keys)
    np.testing.assert_allclose(mapped, expected, rtol=1e-5)


def test_the_gradient_of_sigma_is_that_of_the_weight_times_its_noise():
    gradient = jax.grad(lambda layer: with_noise([layer], KEY)[0](X).sum())(LAYER)
    noisy = with_noise([LAYER], KEY)[0]
    noise = (noisy.weight - LAYER.weight) / LAYER.weight_sigma
    np.testing.assert_allclose(gradient.weight, np.tile(X[:, None], (1, 3)), rtol=1e-5)
    np.testing.assert_allclose(gradient.weight_sigma, X[:, None] * noise, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(gradient.bias_sigma, (noisy.bias - LAYER.bias) / LAYER.bias_sigma, rtol=1e-3)
