"""Distributions against sums over all actions, or integrals over them."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from birl.maths.distributions import Bernoulli, Categorical, DiagonalGaussian, Joint, MultiCategorical, mask_logits
from tests import oracle

GENERATOR = np.random.default_rng(0)
LOGITS, OTHER_LOGITS = 2.0 * GENERATOR.normal(size=(2, 4, 5))  # a batch of 4

Distribution = Categorical | MultiCategorical | DiagonalGaussian | Bernoulli | Joint

# One compiled call each, with little optimisation, to save compile time.
jit = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
log_prob = jit(lambda distribution, actions: distribution.log_prob(actions))
entropy = jit(lambda distribution: distribution.entropy())
kl = jit(lambda distribution, other: distribution.kl(other))
mode = jit(lambda distribution: distribution.mode())
sample = jit(lambda distribution, key: distribution.sample(key))


@partial(jit, static_argnums=1)
def samples_of(distribution: Distribution, repetitions: int) -> jax.Array:
    return jax.vmap(distribution.sample)(jax.random.split(jax.random.key(1), repetitions))


def draw(distribution: Distribution, repetitions: int) -> np.ndarray:
    """Samples [repetitions, ...], each with its own key."""
    return np.asarray(samples_of(distribution, repetitions))


def array(values: object) -> jax.Array:
    return jnp.array(values, jnp.float32)


def categorical(logits: np.ndarray) -> Categorical:
    return Categorical(array(logits))


def multi_categorical(logits: np.ndarray) -> MultiCategorical:
    return MultiCategorical(array(logits), (2, 3))


def bernoulli(logits: np.ndarray) -> Bernoulli:
    return Bernoulli(array(logits))


def categorical_table(logits: np.ndarray) -> dict[tuple[int, ...], float]:
    """The probability of every action."""
    return {(action,): float(p) for action, p in enumerate(oracle.softmax(logits))}


def multi_categorical_table(logits: np.ndarray) -> dict[tuple[int, ...], float]:
    first, second = oracle.softmax(logits[:2]), oracle.softmax(logits[2:])
    return {(i, j): float(first[i] * second[j]) for i, j in oracle.joint_actions((2, 3))}


def bernoulli_table(logits: np.ndarray) -> dict[tuple[int, ...], float]:
    ones = 1.0 / (1.0 + np.exp(-logits))
    return {
        bits: math.prod(p if bit else 1.0 - p for bit, p in zip(bits, ones, strict=True))
        for bits in oracle.joint_actions((2,) * 5)
    }


discrete = pytest.mark.parametrize(
    ("make", "table"),
    [(categorical, categorical_table), (multi_categorical, multi_categorical_table), (bernoulli, bernoulli_table)],
)


def as_actions(action: tuple[int, ...], make: object) -> jax.Array:
    """One action, repeated for the batch of 4."""
    return jnp.array(np.full(4, action[0]) if make is categorical else np.tile(action, (4, 1)), jnp.int32)


@discrete
def test_log_prob_of_every_action_is_the_log_of_its_probability(make, table):
    distribution = make(LOGITS)
    tables = [table(logits) for logits in LOGITS]
    for action in tables[0]:
        expected = [math.log(row[action]) for row in tables]
        np.testing.assert_allclose(log_prob(distribution, as_actions(action, make)), expected, rtol=1e-4, atol=1e-5)


@discrete
def test_entropy_is_the_sum_over_all_actions(make, table):
    expected = [-sum(p * math.log(p) for p in table(logits).values()) for logits in LOGITS]
    np.testing.assert_allclose(entropy(make(LOGITS)), expected, rtol=1e-5)


@discrete
def test_kl_is_the_sum_over_all_actions(make, table):
    pairs = [(table(one), table(other)) for one, other in zip(LOGITS, OTHER_LOGITS, strict=True)]
    expected = [sum(p * math.log(p / q[action]) for action, p in one.items()) for one, q in pairs]
    np.testing.assert_allclose(kl(make(LOGITS), make(OTHER_LOGITS)), expected, rtol=1e-4)


@discrete
def test_mode_is_the_most_probable_action(make, table):
    tables = [table(logits) for logits in LOGITS]
    modes = np.asarray(mode(make(LOGITS))).reshape(4, -1)
    assert [tuple(mode) for mode in modes] == [max(row, key=row.get) for row in tables]


@discrete
def test_samples_have_the_frequencies_of_their_probabilities(make, table):
    repetitions = 20_000
    samples = draw(make(LOGITS[0]), repetitions).reshape(repetitions, -1)
    for action, probability in table(LOGITS[0]).items():
        frequency = np.mean(np.all(samples == action, axis=1))
        assert abs(frequency - probability) < 4.5 * math.sqrt(probability * (1.0 - probability) / repetitions)


def test_gaussian_log_prob_is_the_log_of_the_product_of_densities():
    means, log_stds, actions = GENERATOR.normal(size=(3, 3, 2))
    expected = np.log(oracle.normal_density(actions, means, np.exp(log_stds))).sum(axis=-1)
    distribution = DiagonalGaussian(array(means), array(log_stds))
    np.testing.assert_allclose(log_prob(distribution, array(actions)), expected, rtol=1e-4)


def test_gaussian_density_integrates_to_1():
    distribution = DiagonalGaussian(array([0.7]), array([-0.5]))
    total = oracle.integral(lambda x: np.exp(jax.vmap(distribution.log_prob)(array(x[:, None]))), -8.0, 8.0)
    assert total == pytest.approx(1.0, abs=1e-4)


def test_gaussian_entropy_is_the_integral():
    def integrand(x):
        density = oracle.normal_density(x, 0.7, 0.6)
        return -density * np.log(density)

    # Two independent, equal variables have twice the entropy of one.
    distribution = DiagonalGaussian(array([0.7, 0.7]), array(np.log([0.6, 0.6])))
    assert entropy(distribution) == pytest.approx(2.0 * oracle.integral(integrand, -8.0, 8.0), abs=1e-4)


def test_gaussian_kl_is_the_integral():
    def integrand(x):
        density, other = oracle.normal_density(x, 0.7, 0.6), oracle.normal_density(x, -0.2, 1.1)
        return density * np.log(density / other)

    one = DiagonalGaussian(array([0.7]), array([math.log(0.6)]))
    other = DiagonalGaussian(array([-0.2]), array([math.log(1.1)]))
    assert kl(one, other) == pytest.approx(oracle.integral(integrand, -5.0, 6.0), abs=1e-4)


def test_gaussian_samples_have_its_mean_and_deviation():
    distribution = DiagonalGaussian(array([1.0, -2.0]), array(np.log([0.5, 3.0])))
    samples = draw(distribution, 20_000)
    np.testing.assert_allclose(samples.mean(axis=0), [1.0, -2.0], atol=0.1)
    np.testing.assert_allclose(samples.std(axis=0), [0.5, 3.0], rtol=0.03)
    assert np.array_equal(distribution.mode(), [1.0, -2.0])


def test_a_log_std_shared_by_all_states_keeps_the_batch_axes():
    shared, full = (DiagonalGaussian(array(LOGITS), log_std) for log_std in (jnp.full(5, 0.3), jnp.full((4, 5), 0.3)))
    np.testing.assert_allclose(entropy(shared), entropy(full), rtol=1e-6)
    np.testing.assert_allclose(
        kl(shared, DiagonalGaussian(array(OTHER_LOGITS), jnp.zeros(5))),
        kl(full, DiagonalGaussian(array(OTHER_LOGITS), jnp.zeros((4, 5)))),
        rtol=1e-5,
    )
    assert log_prob(shared, array(LOGITS)).shape == entropy(shared).shape == (4,)


def gaussian(logits: np.ndarray) -> DiagonalGaussian:
    return DiagonalGaussian(array(logits), array([0.1, -0.3, 0.5, 0.0, 1.0]))


def joint(logits: np.ndarray) -> Joint:
    """A distribution of four kinds of parts with 2, 2, 1 and 2 columns, from the same logits."""
    log_std = jnp.broadcast_to(array([0.1, -0.3]), (*logits.shape[:-1], 2))
    parts = (
        MultiCategorical(array(logits), (2, 3)),
        Bernoulli(array(logits[..., :2])),
        MultiCategorical(array(logits[..., 2:]), (3,)),
        DiagonalGaussian(array(logits[..., 3:]), log_std),
    )
    return Joint(parts, (2, 2, 1, 2))


every = pytest.mark.parametrize("make", [categorical, multi_categorical, bernoulli, gaussian, joint])


@every
def test_kl_of_a_distribution_from_itself_is_0_with_gradient_0(make):
    distribution = make(LOGITS)
    np.testing.assert_allclose(kl(distribution, distribution), np.zeros(4), atol=1e-6)
    gradients = jit(jax.grad(lambda other: distribution.kl(other).sum()))(distribution)
    assert all(np.allclose(gradient, 0.0, atol=1e-6) for gradient in jax.tree.leaves(gradients))


@every
def test_a_distribution_goes_through_jit_vmap_and_trees(make):
    distribution = make(LOGITS)
    np.testing.assert_allclose(entropy(distribution), distribution.entropy(), rtol=1e-6)
    rows = make(LOGITS)
    if make is gaussian:
        rows = rows._replace(log_std=jnp.tile(distribution.log_std, (4, 1)))
    np.testing.assert_allclose(jax.vmap(entropy)(rows), entropy(distribution), rtol=1e-6)
    assert [leaf.shape for leaf in jax.tree.leaves(jax.eval_shape(lambda d: d, rows))] == [
        leaf.shape for leaf in jax.tree.leaves(rows)
    ]


@every
def test_the_same_key_draws_the_same_actions_and_another_key_different_ones(make):
    distribution = make(np.zeros((100, 5)))
    one, again, other = (sample(distribution, jax.random.key(seed)) for seed in (1, 1, 2))
    assert np.array_equal(one, again)
    assert not np.array_equal(one, other)
    assert log_prob(distribution, one).shape == (100,)


@every
@pytest.mark.usefixtures("types_unchecked")
def test_actions_of_another_shape_are_an_error_and_not_a_broadcast(make):
    distribution = make(LOGITS)
    actions = distribution.mode()
    for wrong in (actions[..., None], actions[0]):
        with pytest.raises(ValueError, match="actions have shape"):
            distribution.log_prob(wrong)


def joint_terms(logits: np.ndarray, actions: np.ndarray) -> np.ndarray:
    """log π of each part of one action of `joint`, by explicit sums."""
    ones = 1.0 / (1.0 + np.exp(-logits[:2]))
    density = oracle.normal_density(actions[5:], logits[3:], np.exp([0.1, -0.3]))
    return np.array(
        [
            math.log(multi_categorical_table(logits)[int(actions[0]), int(actions[1])]),
            sum(math.log(p if bit else 1.0 - p) for bit, p in zip(actions[2:4], ones, strict=True)),
            math.log(oracle.softmax(logits[2:])[int(actions[4])]),
            np.log(density).sum(),
        ]
    )


JOINT_ACTIONS = np.array(
    [[0, 2, 1, 0, 2, 0.3, -1.5], [1, 0, 0, 0, 0, 2.0, 0.1], [1, 1, 1, 1, 1, -0.4, 0.0], [0, 0, 0, 1, 2, 1.0, 1.0]]
)


def test_joint_log_prob_is_the_sum_over_its_parts_of_their_columns():
    expected = [joint_terms(logits, actions).sum() for logits, actions in zip(LOGITS, JOINT_ACTIONS, strict=True)]
    np.testing.assert_allclose(log_prob(joint(LOGITS), array(JOINT_ACTIONS)), expected, rtol=1e-4)


def test_joint_entropy_and_kl_are_the_sums_over_its_parts():
    one, other = joint(LOGITS), joint(OTHER_LOGITS)
    np.testing.assert_allclose(entropy(one), sum(entropy(part) for part in one.parts), rtol=1e-6)
    expected = sum(kl(part, other_part) for part, other_part in zip(one.parts, other.parts, strict=True))
    np.testing.assert_allclose(kl(one, other), expected, rtol=1e-6)


def test_joint_kl_is_the_mean_log_ratio_over_its_own_samples():
    one, other = (joint(logits[0]) for logits in (LOGITS, OTHER_LOGITS))
    samples = draw(one, 20_000)
    ratios = np.asarray(jax.vmap(lambda a: one.log_prob(a) - other.log_prob(a))(array(samples)))
    assert ratios.mean() == pytest.approx(float(kl(one, other)), abs=4.5 * float(ratios.std()) / math.sqrt(20_000))


def test_joint_mode_is_the_modes_of_its_parts_concatenated():
    expected = [
        [
            *max(multi_categorical_table(row), key=multi_categorical_table(row).get),
            *(row[:2] > 0),
            row[2:].argmax(),
            *row[3:],
        ]
        for row in LOGITS
    ]
    np.testing.assert_allclose(mode(joint(LOGITS)), np.array(expected, float), rtol=1e-5)


def test_joint_samples_are_those_of_its_parts_and_the_parts_are_independent():
    samples = draw(joint(np.zeros(5)), 20_000)
    assert [sorted(set(column)) for column in samples.T[:5]] == [[0, 1], [0, 1, 2], [0, 1], [0, 1], [0, 1, 2]]
    correlations = np.corrcoef(samples.T) - np.eye(7)
    assert np.abs(correlations).max() < 4.5 / math.sqrt(20_000)


def test_integers_up_to_16_million_are_exact_in_a_row_of_floats():
    actions = np.array([2**24 - 1, 2**24 - 2, 1], np.float32)
    assert actions.astype(np.int64).tolist() == [2**24 - 1, 2**24 - 2, 1]


MASK = jnp.array([[True, False, True, True, False], [False, False, False, True, False]] * 2)


def masked(logits: np.ndarray) -> Categorical:
    return Categorical(mask_logits(array(logits), MASK))


def test_a_masked_action_is_never_drawn_nor_the_mode():
    logits = np.where(MASK, -50.0, 50.0)  # the mask forbids what the logits prefer
    samples = draw(masked(logits), 5_000)
    assert np.all(np.asarray(MASK)[np.arange(4), samples])
    assert np.all(np.asarray(MASK)[np.arange(4), mode(masked(logits))])


def test_a_masked_distribution_equals_the_distribution_over_the_allowed_actions():
    entropies = entropy(masked(LOGITS))
    kls = kl(masked(LOGITS), masked(OTHER_LOGITS))
    for row, allowed in enumerate(np.asarray(MASK)):
        p, q = oracle.softmax(LOGITS[row][allowed]), oracle.softmax(OTHER_LOGITS[row][allowed])
        assert entropies[row] == pytest.approx(-np.sum(p * np.log(p)), abs=1e-5)
        assert kls[row] == pytest.approx(np.sum(p * np.log(p / q)), abs=1e-5)
        for action, probability in zip(np.flatnonzero(allowed), p, strict=True):
            log_probs = log_prob(masked(LOGITS), as_actions((action,), categorical))
            assert log_probs[row] == pytest.approx(math.log(probability), abs=1e-5)


def test_a_masked_action_has_probability_exactly_0():
    log_probs = np.stack([log_prob(masked(LOGITS), as_actions((action,), categorical)) for action in range(5)], axis=-1)
    assert np.all(np.exp(log_probs)[~np.asarray(MASK)] == 0.0)
    assert np.all(np.isfinite(log_probs))


@pytest.mark.parametrize("mask", [MASK, jnp.zeros((4, 5), bool)])
def test_gradients_under_a_mask_are_finite_and_0_for_masked_logits(mask):
    def objective(logits):
        distribution = Categorical(mask_logits(logits, mask))
        kl = distribution.kl(Categorical(mask_logits(array(OTHER_LOGITS), mask)))
        return jnp.sum(distribution.log_prob(distribution.mode()) + distribution.entropy() + kl)

    value, gradient = jit(jax.value_and_grad(objective))(array(LOGITS))
    assert np.isfinite(value)
    assert np.all(np.isfinite(gradient))
    assert not np.any(np.asarray(gradient)[~np.asarray(mask)])


def test_a_row_with_every_action_masked_is_uniform_and_not_nan():
    distribution = Categorical(mask_logits(array(LOGITS), jnp.zeros((4, 5), bool)))
    np.testing.assert_allclose(entropy(distribution), np.full(4, math.log(5)), rtol=1e-6)
    np.testing.assert_allclose(log_prob(distribution, jnp.zeros(4, int)), np.full(4, -math.log(5)), rtol=1e-6)


def test_a_mask_works_on_the_parts_of_a_multi_categorical():
    mask = jnp.array([True, False, False, True, True])
    distribution = MultiCategorical(mask_logits(array(LOGITS), jnp.tile(mask, (4, 1))), (2, 3))
    samples = draw(distribution, 1_000)
    assert set(np.unique(samples[..., 0])) == {0}
    assert set(np.unique(samples[..., 1])) == {1, 2}
    expected = [-sum(p * math.log(p) for p in oracle.softmax(logits[3:])) for logits in LOGITS]
    np.testing.assert_allclose(entropy(distribution), expected, rtol=1e-5)


def test_extreme_logits_stay_finite():
    logits = array([[1e4, -1e4, 0.0, 88.0, -88.0]])
    for distribution in (Categorical(logits), MultiCategorical(logits, (2, 3)), Bernoulli(logits)):
        for loss in (lambda d: d.entropy().sum(), lambda d: d.log_prob(d.mode()).sum(), lambda d: d.kl(d).sum()):
            value, gradients = jit(jax.value_and_grad(loss))(distribution)
            assert np.isfinite(value)
            assert all(np.all(np.isfinite(gradient)) for gradient in jax.tree.leaves(gradients))
