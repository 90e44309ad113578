"""Value distributions against closed forms, explicit sums and the exact quantiles of a mixture."""

from functools import partial
from statistics import NormalDist

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given

from birl.maths import losses
from birl.maths.value_distributions import (
    CategoricalValues,
    Projected,
    QuantileValues,
    ScalarValues,
    atoms,
    drop_largest,
    midpoints,
    project,
    quantile_huber,
)

jit = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
GENERATOR = np.random.default_rng(0)
VALUES = GENERATOR.normal(size=(2, 3, 4)).astype(np.float32)  # [B, A, K]
OTHERS = GENERATOR.normal(size=(2, 3, 4)).astype(np.float32)
ACTIONS = jnp.array([2, 0])
REWARDS, DISCOUNTS = jnp.array([1.0, -0.5]), jnp.array([0.9, 0.0])
SUPPORT = atoms(-1.0, 2.0, 4)  # -1, 0, 1, 2

compiled_project = jit(project)


def kinds(values: np.ndarray = VALUES) -> dict[str, ScalarValues | QuantileValues | CategoricalValues]:
    """One of each kind for a batch of 2 and 3 actions."""
    values = jnp.asarray(values)
    return {
        "scalar": ScalarValues(values[..., 0]),
        "quantiles": QuantileValues(values, midpoints(4)),
        "sampled quantiles": QuantileValues(values, jnp.array([[0.1, 0.7, 0.2, 0.9], [0.3, 0.6, 0.5, 0.4]])),
        "categorical": CategoricalValues(values, SUPPORT),
    }


every_kind = pytest.mark.parametrize("kind", kinds())


def project_by_algorithm_1(p: np.ndarray, z: np.ndarray, reward: float, discount: float) -> np.ndarray:
    """Bellemare et al. 2017, algorithm 1, for one transition in float64."""
    m = np.zeros(len(z))
    for p_j, z_j in zip(p, z, strict=True):
        b = (np.clip(reward + discount * z_j, z[0], z[-1]) - z[0]) / ((z[-1] - z[0]) / (len(z) - 1))
        below, above = int(np.floor(b)), int(np.ceil(b))
        if below == above:  # the algorithm as printed loses this mass
            m[below] += p_j
        else:
            m[below] += p_j * (above - b)
            m[above] += p_j * (b - below)
    return m


def probabilities_of(seed: int, shape: tuple[int, ...]) -> np.ndarray:
    """Rows that add up to 1, some of them far from uniform."""
    rows = np.random.default_rng(seed).gamma(0.3, size=shape) + 1e-6
    return (rows / rows.sum(-1, keepdims=True)).astype(np.float32)


def test_the_mean_of_each_kind_is_its_expected_value_per_action():
    weights = np.exp(VALUES) / np.exp(VALUES).sum(-1, keepdims=True)
    means = {kind: distribution.mean() for kind, distribution in kinds().items()}
    np.testing.assert_array_equal(means["scalar"], VALUES[..., 0])
    np.testing.assert_allclose(means["quantiles"], VALUES.mean(-1), rtol=1e-5)
    np.testing.assert_allclose(means["categorical"], weights @ [-1.0, 0.0, 1.0, 2.0], rtol=1e-5)


@every_kind
def test_of_has_the_mean_of_the_chosen_action_and_no_action_axis(kind):
    distribution = kinds()[kind]
    chosen = distribution.of(ACTIONS)
    np.testing.assert_allclose(chosen.mean(), [distribution.mean()[0, 2], distribution.mean()[1, 0]], rtol=1e-6)
    assert type(chosen) is type(distribution)


@every_kind
def test_the_loss_of_some_rows_is_that_part_of_the_loss_of_all(kind):
    values, targets = kinds()[kind], kinds(OTHERS)[kind].of(ACTIONS).backup(REWARDS, DISCOUNTS)
    whole, _ = values.of(ACTIONS).loss(targets)
    last, _ = values.rows(slice(1, 2)).of(ACTIONS[1:]).loss(targets.rows(slice(1, 2)))
    one, _ = values.rows(1).of(ACTIONS[1]).loss(targets.rows(1))
    np.testing.assert_allclose([last[0], one], [whole[1]] * 2, rtol=1e-6)


@every_kind
def test_the_mean_of_a_backup_is_reward_plus_discounted_mean(kind):
    chosen = kinds()[kind].of(ACTIONS)
    rewards, discounts = jnp.array([0.2, -0.1]), jnp.array([0.7, 0.0])  # so that r + γ z is inside the support
    backup = chosen.backup(rewards, discounts)
    np.testing.assert_allclose(backup.mean(), rewards + discounts * chosen.mean(), atol=1e-6)


@every_kind
def test_a_discount_of_0_leaves_the_reward_alone(kind):
    backup = kinds()[kind].of(ACTIONS).backup(jnp.array([1.0, -1.0]), jnp.zeros(2))
    expected = {"scalar": [1.0, -1.0], "categorical": [[0, 0, 1, 0], [1, 0, 0, 0]]}
    got = backup.probabilities if kind == "categorical" else backup.values
    np.testing.assert_array_equal(got, expected.get(kind, [[1.0] * 4, [-1.0] * 4]))


@every_kind
def test_jit_vmap_and_more_batch_axes_change_neither_loss_nor_priority(kind):
    def loss(values, targets, actions, rewards, discounts):
        return values.of(actions).loss(targets.of(actions).backup(rewards, discounts))

    inputs = kinds()[kind], kinds(OTHERS)[kind], ACTIONS, REWARDS, DISCOUNTS
    shared = {"quantiles": QuantileValues(0, None), "categorical": CategoricalValues(0, None)}.get(kind, 0)
    mapped = jit(jax.vmap(loss, in_axes=(shared, shared, 0, 0, 0)))(*inputs)
    np.testing.assert_allclose(jit(loss)(*inputs), loss(*inputs), rtol=1e-5)
    np.testing.assert_allclose(mapped, loss(*inputs), rtol=1e-5)
    more = kinds(VALUES[None])[kind], kinds(OTHERS[None])[kind], ACTIONS[None], REWARDS[None], DISCOUNTS[None]
    np.testing.assert_allclose(loss(*more), [[row] for row in loss(*inputs)], rtol=1e-5)


@every_kind
def test_only_the_actions_that_were_taken_have_a_gradient(kind):
    targets = kinds(OTHERS)[kind].of(ACTIONS).backup(REWARDS, DISCOUNTS)
    gradient = jax.grad(lambda values: values.of(ACTIONS).loss(targets)[0].sum())(kinds()[kind])
    moved = np.asarray(jax.tree.leaves(gradient)[0]).reshape(2, 3, -1).any(-1)
    np.testing.assert_array_equal(moved, [[False, False, True], [True, False, False]])


@every_kind
def test_the_gradient_of_the_loss_is_its_slope(kind):
    targets = kinds(OTHERS)[kind].of(ACTIONS).backup(REWARDS, DISCOUNTS)
    direction = np.random.default_rng(3).normal(size=VALUES.shape).astype(np.float32)

    def along(step):
        return kinds(VALUES + step * direction)[kind].of(ACTIONS).loss(targets)[0].sum()

    slope = (along(1e-2) - along(-1e-2)) / 2e-2
    assert jax.grad(along)(0.0) == pytest.approx(float(slope), rel=1e-2, abs=1e-3)


@every_kind
def test_a_batch_of_another_shape_is_refused(kind, types_unchecked):
    chosen = kinds()[kind].of(ACTIONS)
    with pytest.raises(ValueError, match=r"shapes \(2,\), \(2, 1\), \(2,\) differ"):
        chosen.backup(REWARDS[:, None], DISCOUNTS)
    targets = chosen.backup(REWARDS, DISCOUNTS)
    with pytest.raises(ValueError, match=r"shapes .* differ"):
        chosen.loss(jax.tree.map(lambda x: x[:1] if len(x) == 2 else x, targets))


def test_the_scalar_loss_is_huber_of_target_minus_value_bit_for_bit_and_its_priority_the_error():
    values, targets = GENERATOR.normal(scale=3.0, size=(2, 50)).astype(np.float32)
    loss, priorities = ScalarValues(jnp.asarray(values)).loss(ScalarValues(jnp.asarray(targets)))
    np.testing.assert_array_equal(loss, losses.huber(jnp.asarray(targets - values)))
    np.testing.assert_array_equal(priorities, np.abs(targets - values))


def test_midpoints_and_atoms_are_evenly_spaced():
    np.testing.assert_allclose(midpoints(4), [0.125, 0.375, 0.625, 0.875])
    np.testing.assert_allclose(atoms(-10.0, 10.0, 5), [-10.0, -5.0, 0.0, 5.0, 10.0])
    with pytest.raises(ValueError, match="1 atoms"):
        atoms(0.0, 1.0, 1)


# C51


@given(
    reward=st.floats(-30, 30, width=32),
    discount=st.floats(0, 1, width=32),
    low=st.floats(-100, 0, width=32),
    seed=st.integers(0, 9),
)
def test_the_projection_conserves_mass_and_has_no_negative_probability(reward, discount, low, seed):
    probabilities = probabilities_of(seed, (51,))
    projected = np.asarray(
        compiled_project(probabilities, atoms(low, 10.0, 51), jnp.float32(reward), jnp.float32(discount)), np.float64
    )
    assert projected.sum() == pytest.approx(probabilities.sum(), abs=1e-6)
    assert projected.min() >= 0.0


@given(share=st.floats(0, 1), discount=st.floats(0, 1, width=32), seed=st.integers(0, 9))
def test_inside_the_support_the_projection_conserves_the_mean(share, discount, seed):
    probabilities = probabilities_of(seed, (51,))
    reward = np.float32((2.0 * share - 1.0) * (1.0 - discount))  # so that r + γ z stays within ±1
    projected = compiled_project(probabilities, atoms(-1.0, 1.0, 51), reward, jnp.float32(discount))
    z = np.linspace(-1.0, 1.0, 51)
    assert np.asarray(projected, np.float64) @ z == pytest.approx(reward + discount * (probabilities @ z), abs=1e-6)


@pytest.mark.parametrize("shift", [-3, 0, 1, 7])
def test_a_shift_by_whole_atoms_is_exact(shift):
    probabilities = np.zeros(51, np.float32)
    probabilities[10:40] = probabilities_of(0, (30,))
    reward = jnp.float32(shift * 0.4)  # Δz
    projected = compiled_project(probabilities, atoms(-10.0, 10.0, 51), reward, jnp.float32(1.0))
    np.testing.assert_allclose(projected, np.roll(probabilities, shift), atol=1e-6)


@pytest.mark.parametrize(
    ("reward", "expected"), [(100.0, [0, 0, 0, 1]), (-100.0, [1, 0, 0, 0]), (2.0, [0, 0, 0.1, 0.9])]
)
def test_mass_beyond_the_support_is_on_its_end_atoms(reward, expected):
    probabilities = jnp.array([0.1, 0.2, 0.3, 0.4])
    np.testing.assert_allclose(
        project(probabilities, SUPPORT, jnp.float32(reward), jnp.float32(1.0)), expected, atol=1e-6
    )


def test_a_terminal_reward_between_two_atoms_is_shared_by_their_distances():
    projected = project(jnp.array([0.1, 0.2, 0.3, 0.4]), SUPPORT, jnp.float32(0.25), jnp.float32(0.0))
    np.testing.assert_allclose(projected, [0.0, 0.75, 0.25, 0.0], atol=1e-6)


def test_the_projection_is_bellemare_2017_algorithm_1():
    rng = np.random.default_rng(1)
    for low, high, count in ((-10.0, 10.0, 51), (0.0, 200.0, 51), (-3.0, 1.0, 2), (-1.0, 2.0, 7)):
        probabilities = probabilities_of(count, (8, count))
        rewards = rng.uniform(low, high, 8).astype(np.float32)
        discounts = rng.choice([0.0, 0.5, 0.99, 1.0], 8).astype(np.float32)
        support = atoms(low, high, count)
        projected = compiled_project(probabilities, support, jnp.asarray(rewards), jnp.asarray(discounts))
        expected = [
            project_by_algorithm_1(p, np.linspace(low, high, count), float(r), float(d))
            for p, r, d in zip(probabilities, rewards, discounts, strict=True)
        ]
        np.testing.assert_allclose(projected, expected, atol=1e-5)  # places up to 50 in float32


def test_the_categorical_loss_is_the_cross_entropy_and_its_gradient_probability_minus_target():
    m = np.array([0.5, 0.0, 0.5, 0.0], np.float32)  # probabilities of exactly 0
    logits = jnp.array([0.3, -1.0, 2.0, 0.0])
    p = np.exp(logits) / np.exp(logits).sum()
    targets = Projected(jnp.asarray(m), SUPPORT)
    loss, priority = CategoricalValues(logits, SUPPORT).loss(targets)
    assert loss == pytest.approx(-0.5 * np.log(p[0]) - 0.5 * np.log(p[2]), rel=1e-5)
    assert priority == pytest.approx(0.5 * np.log(0.5 / p[0]) + 0.5 * np.log(0.5 / p[2]), rel=1e-5)
    gradient = jax.grad(lambda logits: CategoricalValues(logits, SUPPORT).loss(targets)[0])(logits)
    np.testing.assert_allclose(gradient, p - m, atol=1e-6)


def test_a_categorical_that_predicts_its_target_has_priority_0_and_no_gradient():
    chosen = kinds()["categorical"].of(ACTIONS)
    targets = chosen.backup(jnp.zeros(2), jnp.ones(2))
    np.testing.assert_allclose(chosen.loss(targets)[1], 0.0, atol=1e-6)
    gradient = jax.grad(lambda logits: CategoricalValues(logits, SUPPORT).loss(targets)[0].sum())(chosen.logits)
    np.testing.assert_allclose(gradient, 0.0, atol=1e-6)


def test_extreme_logits_give_a_finite_loss():
    loss, priority = CategoricalValues(jnp.array([1e4, -1e4, 0.0, 0.0]), SUPPORT).loss(
        Projected(jnp.eye(4)[1], SUPPORT)
    )
    assert loss == pytest.approx(2e4)
    assert priority == pytest.approx(2e4)


# Quantiles


@pytest.mark.parametrize("error", [-3.0, -0.5, 0.0, 0.25, 8.0])
def test_one_quantile_at_one_half_has_half_the_loss_of_a_scalar(error):
    target = jnp.array([error])
    half, _ = QuantileValues(jnp.zeros((1, 1)), midpoints(1)).loss(QuantileValues(target[:, None], midpoints(1)))
    whole, _ = ScalarValues(jnp.zeros(1)).loss(ScalarValues(target))
    np.testing.assert_array_equal(half, 0.5 * whole)


def test_one_quantile_with_a_large_kappa_has_a_quarter_of_the_squared_error():
    loss = quantile_huber(jnp.array([1.0]), midpoints(1), jnp.array([8.0]), kappa=1e6)
    assert loss == pytest.approx(0.25 * 49.0)


def test_quantile_huber_is_dabney_2018_equation_10_by_hand():
    values, fractions = jnp.array([0.0, 2.0]), jnp.array([0.25, 0.9])
    targets = jnp.array([0.5, 4.0, -1.5])
    first = (0.25 * 0.125 + 0.25 * 3.5 + 0.75 * 1.0) / 3  # u is 0.5, 4, -1.5
    second = (0.1 * 1.0 + 0.9 * 1.5 + 0.1 * 3.0) / 3  # u is -1.5, 2, -3.5
    assert quantile_huber(values, fractions, targets) == pytest.approx(first + second, rel=1e-5)


def test_the_order_and_repetition_of_targets_do_not_matter():
    chosen, targets = kinds()["quantiles"].of(ACTIONS), kinds(OTHERS)["quantiles"].of(ACTIONS)
    repeated = QuantileValues(jnp.repeat(targets.values, 3, axis=-1)[:, ::-1], midpoints(12))  # of another number
    np.testing.assert_allclose(chosen.loss(repeated)[0], chosen.loss(targets)[0], rtol=1e-5)


def test_the_priority_of_quantiles_sees_a_wrong_shape_whose_mean_is_right():
    narrow, wide = (QuantileValues(jnp.array([[-x, x]]), midpoints(2)) for x in (0.0, 5.0))
    assert narrow.loss(wide)[1] > narrow.loss(narrow)[1] == 0.0


def test_fractions_of_each_row_are_used_for_that_row():
    own = kinds()["sampled quantiles"]
    chosen, targets = own.of(ACTIONS), kinds(OTHERS)["quantiles"].of(ACTIONS)
    for row in range(2):
        alone = quantile_huber(chosen.values[row], own.fractions[row], targets.values[row])
        assert chosen.loss(targets)[0][row] == pytest.approx(float(alone), rel=1e-5)


MIXTURE = ((0.4, NormalDist(-2.0, 0.5)), (0.6, NormalDist(3.0, 1.0)))
FRACTIONS = np.array([0.05, 0.25, 0.5, 0.7, 0.95])


def mixture_quantiles(fractions: np.ndarray) -> np.ndarray:
    """x with F(x) = τ, by bisection."""
    low, high = np.full(len(fractions), -20.0), np.full(len(fractions), 20.0)
    for _ in range(60):
        middle = (low + high) / 2
        above = np.array([sum(w * normal.cdf(x) for w, normal in MIXTURE) for x in middle]) > fractions
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    return (low + high) / 2


def test_in_expectation_the_gradient_is_0_at_the_true_quantiles():
    kappa = 1e-3  # with a large κ it is 0 elsewhere, at something between quantiles and the mean
    rewards = jnp.asarray(mixture_quantiles((np.arange(4000) + 0.5) / 4000), jnp.float32)
    exact = jnp.asarray(mixture_quantiles(FRACTIONS), jnp.float32)
    gradient = jit(jax.grad(quantile_huber))(exact, jnp.asarray(FRACTIONS, jnp.float32), rewards, kappa) / kappa
    np.testing.assert_allclose(gradient, 0.0, atol=1e-3)
    # A quantile moved up has F(x) - τ as its gradient.
    moved = jit(jax.grad(quantile_huber))(exact + 0.5, jnp.asarray(FRACTIONS, jnp.float32), rewards, kappa) / kappa
    above = [sum(w * normal.cdf(x + 0.5) for w, normal in MIXTURE) for x in np.asarray(exact)]
    np.testing.assert_allclose(moved, above - FRACTIONS, atol=1e-3)


def test_gradient_descent_on_a_bandit_finds_the_exact_quantiles_of_its_rewards():
    scale = 100.0  # of rewards, beside which κ = 1 is small
    rewards = jnp.asarray(scale * mixture_quantiles((np.arange(500) + 0.5) / 500), jnp.float32)
    targets = QuantileValues(jnp.zeros((500, 1)), midpoints(1)).backup(rewards, jnp.zeros(500))

    def loss(values):
        predicted = QuantileValues(jnp.broadcast_to(values, (500, len(FRACTIONS))), jnp.asarray(FRACTIONS, jnp.float32))
        return predicted.loss(targets)[0].mean()

    def step(values, size):
        return values - size * jax.grad(loss)(values), None

    sizes = jnp.geomspace(300.0, 30.0, 400)
    values, _ = jit(lambda: jax.lax.scan(step, jnp.zeros(len(FRACTIONS)), sizes))()
    np.testing.assert_allclose(values / scale, mixture_quantiles(FRACTIONS), atol=0.02)


def test_dropping_keeps_the_smallest_of_all_critics_together():
    quantiles = jnp.array([[[5.0, 1.0, 9.0], [1.0, 1.0, 1.0]], [[2.0, 8.0, 7.0], [0.0, 3.0, 2.0]]])  # [C, N, K]
    np.testing.assert_array_equal(drop_largest(quantiles, 1), [[1, 2, 5, 7], [0, 1, 1, 1]])
    np.testing.assert_array_equal(drop_largest(quantiles, 2), [[1, 2], [0, 1]])
    np.testing.assert_array_equal(drop_largest(quantiles, 0), [[1, 2, 5, 7, 8, 9], [0, 1, 1, 1, 2, 3]])


@pytest.mark.parametrize("dropped", [-1, 4])
def test_as_many_quantiles_as_there_are_cannot_be_dropped(dropped):
    with pytest.raises(ValueError, match=rf"{dropped} of 4 quantiles cannot be dropped; use 0 to 3"):
        drop_largest(jnp.asarray(VALUES), dropped)


def test_critics_learn_from_pooled_targets_of_another_number():
    pooled = jit(drop_largest, static_argnums=1)(jnp.asarray(OTHERS), 1)  # 2 critics, 3 rows: [3, 6]
    current = jnp.asarray(VALUES[0])
    rows = [quantile_huber(current[row], midpoints(4), pooled[row]) for row in range(3)]
    np.testing.assert_allclose(quantile_huber(current, midpoints(4), pooled), rows, rtol=1e-5)
