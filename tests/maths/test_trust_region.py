"""Trust region steps against closed forms, and conjugate gradients against NumPy's solver."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from birl.maths.distributions import Categorical, DiagonalGaussian
from birl.maths.trust_region import conjugate_gradient, dot, fisher_vector_product, line_search, natural_step, project
from tests import oracle

LOGITS = jnp.array([0.3, -1.0, 0.8, 0.1])
SOFTMAX = oracle.softmax(np.asarray(LOGITS, np.float64))
SOFTMAX_FISHER = np.diag(SOFTMAX) - np.outer(SOFTMAX, SOFTMAX)


def softmax_kl(logits: jax.Array) -> jax.Array:
    return Categorical(LOGITS).kl(Categorical(logits))


def matrix_of(product, size: int) -> np.ndarray:
    return np.stack([np.asarray(product(column)) for column in jnp.eye(size)], axis=1)


def positive_definite(size: int, eigenvalues: np.ndarray) -> np.ndarray:
    rotation, _ = np.linalg.qr(np.random.default_rng(3).standard_normal((size, size)))
    return rotation @ np.diag(eigenvalues) @ rotation.T


def same(parameters: jax.Array) -> jax.Array:
    """Statistics that are the parameters themselves."""
    return parameters


def times(matrix: np.ndarray):
    return lambda vector: jnp.asarray(matrix, jnp.float32) @ vector


# Fisher-vector products


def test_the_fisher_matrix_of_a_softmax_is_diag_p_minus_p_p_transposed():
    product = fisher_vector_product(same, softmax_kl, LOGITS, damping=0.0)
    np.testing.assert_allclose(matrix_of(product, 4), SOFTMAX_FISHER, atol=1e-6)


def test_damping_is_added_to_the_diagonal():
    product = fisher_vector_product(same, softmax_kl, LOGITS, damping=0.3)
    np.testing.assert_allclose(matrix_of(product, 4), SOFTMAX_FISHER + 0.3 * np.eye(4), atol=1e-6)


def test_the_fisher_matrix_of_a_gaussian_is_1_over_variance_for_means_and_2_for_log_stds():
    old = jnp.array([0.5, -1.0, 0.2, -0.7])  # two means, two log standard deviations

    def kl(parameters: jax.Array) -> jax.Array:
        return DiagonalGaussian(old[:2], old[2:]).kl(DiagonalGaussian(parameters[:2], parameters[2:]))

    expected = np.diag([np.exp(-0.4), np.exp(1.4), 2.0, 2.0])
    np.testing.assert_allclose(matrix_of(fisher_vector_product(same, kl, old, 0.0), 4), expected, atol=1e-5)


def test_the_fisher_product_of_a_network_is_the_finite_difference_of_its_kl():
    rng = np.random.default_rng(0)
    inputs, parameters = rng.standard_normal((20, 3)), rng.standard_normal(3 * 4 + 4 * 2)

    def logits(parameters, tanh):
        return tanh(inputs @ parameters[:12].reshape(3, 4)) @ parameters[12:].reshape(4, 2)

    def exact_kl(moved: np.ndarray) -> float:
        old, new = (oracle.softmax(logits(p, np.tanh)) for p in (parameters, moved))
        return float((old * np.log(old / new)).sum(-1).mean())

    flat = jnp.asarray(parameters, jnp.float32)
    old = Categorical(logits(flat, jnp.tanh))
    product = fisher_vector_product(
        lambda p: Categorical(logits(p, jnp.tanh)), lambda new: old.kl(new).mean(), flat, 0.0
    )
    for vector in rng.standard_normal((4, 20)):
        # The KL and its gradient are 0 at the old parameters, so the second difference is vᵀHv.
        second = (exact_kl(parameters + 1e-4 * vector) + exact_kl(parameters - 1e-4 * vector)) / 1e-8
        assert float(vector @ np.asarray(product(jnp.asarray(vector, jnp.float32)))) == pytest.approx(second, rel=1e-3)


# Conjugate gradients


def test_conjugate_gradients_find_the_solution_of_numpy():
    matrix = positive_definite(12, np.linspace(0.5, 8.0, 12))
    target = np.random.default_rng(1).standard_normal(12)
    found = conjugate_gradient(times(matrix), jnp.asarray(target, jnp.float32), max_steps=24)
    np.testing.assert_allclose(found, np.linalg.solve(matrix, target), rtol=1e-3, atol=1e-4)


def test_the_number_of_steps_needed_is_the_number_of_different_eigenvalues():
    matrix = positive_definite(12, np.repeat([0.5, 2.0, 9.0], 4))
    target = np.random.default_rng(1).standard_normal(12)
    solution = np.linalg.solve(matrix, target)
    errors = [
        np.abs(conjugate_gradient(times(matrix), jnp.asarray(target, jnp.float32), max_steps=steps) - solution).max()
        for steps in (2, 3)
    ]
    assert errors[0] > 0.05
    assert errors[1] < 1e-4


def test_it_stops_at_the_solution_even_if_more_steps_are_allowed():
    found = conjugate_gradient(times(np.diag([1.0, 4.0])), jnp.array([1.0, 2.0]), max_steps=10_000)
    np.testing.assert_allclose(found, [1.0, 0.5], rtol=1e-5)


def test_the_solution_for_a_zero_target_is_zero():
    np.testing.assert_array_equal(conjugate_gradient(times(np.eye(3)), jnp.zeros(3), max_steps=5), np.zeros(3))


def test_a_direction_without_positive_curvature_is_not_followed():
    found = conjugate_gradient(times(np.diag([2.0, -1e-9])), jnp.array([1.0, 1.0]), max_steps=10)
    assert np.abs(found).max() < 10
    np.testing.assert_array_equal(
        conjugate_gradient(times(-np.eye(2)), jnp.array([1.0, 1.0]), max_steps=10), [0.0, 0.0]
    )


# The natural step


def test_appendix_c_the_quadratic_model_of_the_kl_at_the_full_step_is_delta():
    matrix = positive_definite(6, np.linspace(0.1, 5.0, 6))
    gradient = np.random.default_rng(2).standard_normal(6)
    direction, size = natural_step(times(matrix), jnp.asarray(gradient, jnp.float32), max_kl=0.02, cg_steps=12)
    np.testing.assert_allclose(direction, -np.linalg.solve(matrix, gradient), rtol=1e-3, atol=1e-3)
    step = np.asarray(size * direction, np.float64)
    assert 0.5 * step @ matrix @ step == pytest.approx(0.02, rel=1e-4)


def test_too_few_steps_of_conjugate_gradients_still_give_a_quadratic_model_of_delta():
    matrix = positive_definite(6, np.linspace(0.1, 5.0, 6))
    direction, size = natural_step(times(matrix), jnp.ones(6), max_kl=0.02, cg_steps=1)
    step = np.asarray(size * direction, np.float64)
    assert 0.5 * step @ matrix @ step == pytest.approx(0.02, rel=1e-4)


def test_the_natural_gradient_of_a_softmax_is_its_advantages():
    """F⁻¹ ∇ E[A] = A - E[A] up to a constant, which changes no probability (Kakade 2001)."""
    advantages = np.array([1.0, -2.0, 0.5, 3.0])
    gradient = -SOFTMAX * (advantages - SOFTMAX @ advantages)  # of -E[A]
    product = fisher_vector_product(same, softmax_kl, LOGITS, damping=0.0)
    direction, size = natural_step(product, jnp.asarray(gradient, jnp.float32), max_kl=1e-4, cg_steps=8)
    np.testing.assert_allclose(direction - np.mean(direction), advantages - advantages.mean(), atol=1e-3)
    # For such a small step the quadratic model is accurate: the exact KL is δ, too.
    assert float(softmax_kl(LOGITS + size * direction)) == pytest.approx(1e-4, rel=0.05)


def test_without_a_gradient_the_step_is_0_and_not_nan():
    direction, size = natural_step(times(np.eye(3)), jnp.zeros(3), max_kl=0.01, cg_steps=5)
    np.testing.assert_array_equal(size * direction, np.zeros(3))


# The line search: a KL of |x|² and a loss of |x - goal|²

GOAL = jnp.array([1.0, 0.0])
START = jnp.array([0.0, -0.0])  # adding to it would lose the sign of -0.0


def bowl(parameters: jax.Array) -> tuple[jax.Array, jax.Array]:
    return jnp.sum((parameters - GOAL) ** 2), jnp.sum(parameters**2)


def search(step, max_kl=4.0, evaluate=bowl, tries=5):
    return line_search(evaluate, START, jnp.array(step), max_kl, 0.5, tries)


def test_a_full_step_with_a_lower_loss_and_a_small_kl_is_accepted():
    found = search([1.0, 0.0])
    np.testing.assert_array_equal(found.parameters, [1.0, 0.0])
    assert (bool(found.accepted), int(found.backtracks), float(found.fraction)) == (True, 0, 1.0)
    assert (float(found.loss), float(found.kl)) == (0.0, 1.0)


@pytest.mark.parametrize(("max_kl", "backtracks"), [(1.0, 0), (0.99, 1), (0.25, 1), (0.2, 2), (0.06, 3)])
def test_a_step_is_halved_until_its_kl_is_at_most_delta(max_kl, backtracks):
    found = search([1.0, 0.0], max_kl)
    assert (bool(found.accepted), int(found.backtracks)) == (True, backtracks)
    assert float(found.fraction) == float(found.parameters[0]) == 0.5**backtracks
    assert float(found.kl) <= max_kl


@pytest.mark.parametrize(("length", "backtracks"), [(1.9, 0), (2.0, 1), (3.9, 1), (4.0, 2)])
def test_a_step_is_halved_until_the_loss_is_lower_and_equal_is_not_lower(length, backtracks):
    found = search([length, 0.0], max_kl=100.0)
    assert (bool(found.accepted), int(found.backtracks)) == (True, backtracks)
    assert float(found.loss) < 1.0


FAILURES = {
    "every step is worse": {"step": [-1.0, 0.0]},
    "every step is too far": {"step": [1.0, 0.0], "max_kl": 1e-9},
    "a zero step is no better": {"step": [0.0, 0.0]},
    "the loss becomes NaN": {
        "step": [1.0, 0.0],
        "evaluate": lambda p: (jnp.where(p[0] == 0, 1.0, jnp.nan), bowl(p)[1]),
    },
    "the KL is NaN": {"step": [1.0, 0.0], "evaluate": lambda p: (bowl(p)[0], bowl(p)[1] * jnp.nan)},
    "the step is NaN": {"step": [jnp.nan, 0.0]},
}


@pytest.mark.parametrize("failure", FAILURES.values(), ids=FAILURES)
def test_if_no_candidate_is_accepted_the_parameters_are_unchanged_bit_for_bit(failure):
    found = search(**failure)
    assert np.asarray(found.parameters).tobytes() == np.asarray(START).tobytes()
    assert (bool(found.accepted), int(found.backtracks)) == (False, 5)
    assert (float(found.loss), float(found.kl), float(found.fraction)) == (1.0, 0.0, 0.0)


def test_if_the_initial_loss_is_nan_no_candidate_is_accepted():
    found = search([1.0, 0.0], evaluate=lambda p: (jnp.where(p[0] == 0, jnp.nan, 0.0), bowl(p)[1]))
    assert not bool(found.accepted)
    assert np.asarray(found.parameters).tobytes() == np.asarray(START).tobytes()


def test_no_more_candidates_are_tried_than_allowed():
    assert bool(search([8.0, 0.0], max_kl=1.0, tries=4).accepted)  # 8, 4, 2, 1
    assert not bool(search([8.0, 0.0], max_kl=1.0, tries=3).accepted)


# Projection


def test_a_gradient_within_the_trust_region_is_not_changed():
    gradients, kl_gradients = jnp.array([[1.0, -2.0], [0.5, 0.5]]), jnp.array([[0.2, 0.3], [1.0, 0.9]])
    np.testing.assert_array_equal(project(gradients, kl_gradients, 1.0), gradients)  # k·g = -0.4 and 0.95


def test_a_gradient_beyond_the_trust_region_is_projected_to_k_z_equals_delta():
    """Wang et al. 2017, eq. 12: z = g - (k·g - δ) / ‖k‖² k."""
    gradients, kl_gradients = jnp.array([[3.0, 1.0, 0.0]]), jnp.array([[1.0, 2.0, 2.0]])
    found = np.asarray(project(gradients, kl_gradients, 0.5))
    np.testing.assert_allclose(found, [[3.0 - 0.5, 1.0 - 1.0, 0.0 - 1.0]], atol=1e-6)  # (5 - 0.5) / 9 = 0.5 of k
    assert float(found[0] @ kl_gradients[0]) == pytest.approx(0.5, abs=1e-6)


def test_no_other_point_of_the_trust_region_is_closer_to_the_gradient():
    rng = np.random.default_rng(0)
    gradient, kl_gradient = rng.standard_normal((2, 4)) + 1.0
    found = np.asarray(project(jnp.asarray(gradient), jnp.asarray(kl_gradient), 0.1))
    others = found + 0.5 * rng.standard_normal((2000, 4))
    others = others[others @ kl_gradient <= 0.1]
    assert len(others) > 100
    assert np.linalg.norm(others - gradient, axis=1).min() > np.linalg.norm(found - gradient)


def test_equal_policies_leave_the_gradient_unchanged_without_nan():
    gradients = jnp.array([[1e3, -5.0]])
    for limit in (1e-9, 1.0, jnp.inf):
        np.testing.assert_array_equal(project(gradients, jnp.zeros((1, 2)), limit), gradients)
        assert np.isfinite(project(gradients, gradients, limit)).all()


def test_leaves_are_projected_as_one_vector_and_each_state_separately():
    rng = np.random.default_rng(1)
    gradients, kl_gradients = (
        DiagonalGaussian(*map(jnp.asarray, rng.standard_normal((2, 5, 3)) + 1.0)) for _ in range(2)
    )
    found = project(gradients, kl_gradients, 0.2)
    flat = project(jnp.concatenate(gradients, axis=-1), jnp.concatenate(kl_gradients, axis=-1), 0.2)
    np.testing.assert_allclose(jnp.concatenate(found, axis=-1), flat, atol=1e-6)
    np.testing.assert_allclose(dot(found, kl_gradients), np.minimum(dot(gradients, kl_gradients), 0.2), atol=1e-5)
    alone = project(*(jax.tree.map(lambda x: x[2], tree) for tree in (gradients, kl_gradients)), 0.2)
    np.testing.assert_allclose(alone.mean, found.mean[2], atol=1e-6)
