"""The three kinds of values that DQN learns: one loss, known distributions, and all switches."""

from dataclasses import replace
from itertools import product
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from birl.algos import dqn
from birl.config import EnvConfig, RunConfig
from birl.maths.schedules import linear
from birl.maths.value_distributions import CategoricalValues, QuantileValues, ScalarValues, midpoints
from birl.nets.values import values_here
from birl.registry import algorithm_named
from birl.rollouts.learning import Batch
from birl.speed import prepare_jax
from birl.types import Transitions
from tests.algos import mixture
from tests.algos.test_dqn import MASKED, SMALL, loss_and_gradients, one_batch, replayed
from tests.tiers import sooner

KINDS = {"mean": ScalarValues, "quantiles": QuantileValues, "categorical": CategoricalValues}


@pytest.fixture(scope="module", autouse=True)
def compiled_programs_on_disk() -> None:
    prepare_jax()


# Every kind with every switch

SWITCHES: dict[str, tuple[dqn.Config, dict[str, Any]]] = {
    "vanilla": (SMALL, {"double": False}),
    "double, dueling, prioritised, 3 steps": (SMALL, {"dueling": True, "prioritized": True, "n_step": 3}),
    "masks": (MASKED, {"dueling": True}),
    "sequences": (SMALL, {"core": "lstm", "n_step": 3, "dueling": True, "burn_in": 2}),
    "sequences with masks": (MASKED, {"core": "lstm", "double": False}),
}


FIRST = [
    ("mean", "vanilla"), ("mean", "sequences with masks"), ("quantiles", "double, dueling, prioritised, 3 steps"),
    ("quantiles", "sequences"), ("categorical", "masks"), ("categorical", "sequences"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "switches"), sooner(FIRST, product(KINDS, SWITCHES)))
def test_every_kind_learns_with_every_switch(kind, switches):
    config, settings = SWITCHES[switches]
    config = replace(config, values=kind, num_quantiles=5, num_atoms=7, value_min=-5.0, value_max=5.0, **settings)
    updates = [update for update, _ in zip(dqn.train(config), range(4), strict=False)]
    learned = [update for update in updates if "loss/value" in update.metrics]
    assert len(learned) >= 2
    for update in learned:
        numbers = [value for name, value in update.metrics.items() if not name.startswith("episode/")]
        assert np.isfinite(numbers).all(), update.metrics
        assert update.metrics["loss/value"] > 0
        assert update.metrics["value/td_error"] > 0
    first, last = (update.state.network for update in (updates[0], updates[-1]))
    assert np.any(first.head.bias != last.head.bias)
    observations = replayed(SWITCHES[switches][0]).rollouts[0].observations[0]
    values, _ = values_here(last, observations, last.initial_memory(4), np.zeros(4, bool))
    assert type(values) is KINDS[kind]


# One loss


def layers_of(network: Any) -> list[np.ndarray]:
    """Weight and bias of the hidden layer and of the head, in float64."""
    return [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(network)]


def test_of_means_loss_gradient_and_priorities_are_those_of_double_dqn_written_out():
    """L = E[w huber(δ)], δ = r + γᵏ Q'(s', argmax Q(s', ·)) - Q(s, a), w = (P / min P)^-β."""
    state, batch = one_batch(replace(SMALL, n_step=3))
    steps: Transitions = jax.tree.map(np.asarray, batch.steps)
    steps = steps._replace(rewards=steps.rewards + np.linspace(-3, 3, 16, dtype=np.float32))
    probabilities = np.random.default_rng(0).uniform(0.1, 3, 16).astype(np.float32)
    inputs = Batch(steps, probabilities), replace(SMALL, priority_correction=0.7)
    (value, (metrics, priorities)), (gradients, _) = loss_and_gradients(*state[:2], state.normalizer, *inputs)

    def forward(network, observations):
        w1, b1, w2, b2 = layers_of(network)
        hidden = np.maximum(observations @ w1 + b1, 0)
        return hidden, hidden @ w2 + b2

    rows = np.arange(16)
    best = forward(state.network, steps.next_observations)[1].argmax(-1)
    targets = steps.rewards + steps.discounts * forward(state.target, steps.next_observations)[1][rows, best]
    hidden, q = forward(state.network, steps.observations)
    errors = targets - q[rows, steps.actions]
    weights = (probabilities / probabilities.min()).astype(np.float64) ** -0.7
    huber = np.where(np.abs(errors) <= 1, errors**2 / 2, np.abs(errors) - 0.5)
    assert (np.abs(errors) > 1).any()
    assert (np.abs(errors) < 1).any()
    assert float(value) == pytest.approx(np.mean(weights * huber), rel=1e-4)
    assert float(metrics["value/td_error"]) == pytest.approx(np.abs(errors).mean(), rel=1e-4)
    assert float(metrics["value/mean"]) == pytest.approx(targets.mean(), rel=1e-4)
    np.testing.assert_allclose(priorities, np.abs(errors), rtol=1e-4, atol=1e-5)

    slopes = np.zeros((16, 2))
    slopes[rows, steps.actions] = -weights * np.clip(errors, -1, 1) / 16
    of_hidden = (slopes @ layers_of(state.network)[2].T) * (hidden > 0)
    expected = [steps.observations.T @ of_hidden, of_hidden.sum(0), hidden.T @ slopes, slopes.sum(0)]
    for found, known in zip(jax.tree.leaves(gradients), expected, strict=True):
        np.testing.assert_allclose(found, known, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("core", ["feedforward", "lstm"])
def test_one_quantile_has_half_the_loss_of_the_mean_and_the_same_values(core):
    """|τ - 1{u < 0}| is ½ for τ = ½ (Dabney et al. 2018, eq. 10)."""
    one = replace(SMALL, core=core, values="quantiles", num_quantiles=1)
    state, batch = one_batch(replace(SMALL, core=core))
    networks = [replace(network, kind=one.value) for network in state[:2]]
    of_means, of_quantiles = (
        loss_and_gradients(*pair, state.normalizer, batch, config)
        for pair, config in ((state[:2], replace(SMALL, core=core)), (networks, one))
    )
    (value, (metrics, _)), (gradients, _) = of_means
    (half, (same, priorities)), (halves, _) = of_quantiles
    assert float(value) > 0
    assert float(half) == pytest.approx(float(value) / 2, rel=1e-5)
    assert float(same["value/td_error"]) == pytest.approx(float(metrics["value/td_error"]), rel=1e-5)
    for left, right in zip(jax.tree.leaves(halves), jax.tree.leaves(gradients), strict=True):
        np.testing.assert_allclose(left, right / 2, rtol=1e-4, atol=1e-6)
    assert priorities.shape == batch.steps.rewards.shape


class Fixed(eqx.Module):
    """Two quantiles for each of two actions, wherever it is."""

    values: jax.Array

    def initial_memory(self, num_envs):
        return ()

    def __call__(self, observations, memory, resets):
        return QuantileValues(jnp.broadcast_to(self.values, (*resets.shape, 2, 2)), midpoints(2)), memory


@pytest.mark.parametrize(("values", "best"), [([[0, 10], [6, 6]], 1), ([[0, 14], [6, 6]], 0), ([[5, 5], [-9, 9]], 0)])
def test_the_best_action_is_that_of_the_highest_mean(values, best):
    network = Fixed(jnp.asarray(values, jnp.float32))
    action = dqn.act((network, None, np.float32(1)), np.zeros((3, 2), np.float32), (), np.zeros(3, bool), None, None)
    assert action.actions.tolist() == [best] * 3


# Distributions that are known


def learned_values(name: str, **settings: Any) -> Any:
    """What a tabular network has learned of both states of the mixture."""
    algorithm = algorithm_named(name)
    config = algorithm.Config(
        env=EnvConfig(mixture.ID, num_envs=4),
        run=RunConfig(total_steps=6000),
        rollout_length=12,
        update_ratio=0.5,
        learning_starts=200,
        batch_size=128,
        replay_size=6000,
        discount=mixture.DISCOUNT,
        exploration=1.0,  # off-policy: acts at random, learns the best
        target_every=20,
        learning_rate=linear(1e-1, 1e-4),
        hidden_sizes=(),
        **settings,
    )
    *_, last = algorithm.train(config)
    return values_here(last.state.network, mixture.OBSERVATIONS, (), np.zeros(2, bool))[0]


def huber_quantiles(values: np.ndarray) -> np.ndarray:
    """The quantiles of equally likely values far from each other, K of K: where eq. 10 is least.

    There the pull of those above and below, τ P(above) - (1 - τ) P(below), is that of the value
    itself, which is P |τ - 1{u < 0}| u within κ = 1.
    """
    count = values.shape[-1]
    ranks, fractions = np.arange(count), (np.arange(count) + 0.5) / count
    pull = fractions * (count - 1 - ranks) / count - (1 - fractions) * ranks / count
    return values + count * pull / np.where(pull > 0, 1 - fractions, fractions)


def test_huber_quantiles_are_where_the_loss_is_least():
    values = np.array([-12.0, -4.0, 4.0, 12.0])
    np.testing.assert_allclose(huber_quantiles(values) - values, [3 / 7, 1 / 5, -1 / 5, -3 / 7])
    slopes = jax.grad(lambda q: QuantileValues(q, midpoints(4)).loss(QuantileValues(jnp.asarray(values), None))[0])
    np.testing.assert_allclose(slopes(jnp.asarray(huber_quantiles(values))), 0.0, atol=1e-6)


def test_quantiles_converge_to_those_of_the_known_returns():
    found = learned_values("qr-dqn", num_quantiles=4)
    last = huber_quantiles(mixture.return_values()[1])
    # In the first state the returns are learned from the quantiles of the second.
    first = huber_quantiles(1 + mixture.DISCOUNT * np.broadcast_to(last[1], (2, 4)))
    np.testing.assert_allclose(found.values, [first, last], atol=0.1)
    np.testing.assert_allclose(found.mean(), mixture.return_values().mean(-1), atol=0.1)


def test_probabilities_converge_to_those_of_the_known_returns():
    found = learned_values("c51", num_atoms=33, value_min=-16.0, value_max=16.0)
    atoms = np.linspace(-16, 16, 33)
    expected = (mixture.return_values()[..., None] == atoms).mean(-2)
    assert (expected.sum(-1) == 1).all()
    np.testing.assert_allclose(jax.nn.softmax(found.logits), expected, atol=0.05)
    np.testing.assert_allclose(found.mean(), mixture.return_values().mean(-1), atol=0.25)


def test_a_return_outside_the_support_is_taken_for_the_nearest_atom():
    found = learned_values("c51", num_atoms=3, value_min=-4.0, value_max=4.0)
    # -14, -6, 2, 10 after action 0 become -4, -4, 2, 4; and 2 is half of 0 and half of 4.
    last = [[0.5, 0.125, 0.375], [0.5, 0.0, 0.5]]
    first = [0.125, 0.5, 0.375]  # 1 + γ z of the better one: -1 and 3 equally often
    np.testing.assert_allclose(jax.nn.softmax(found.logits), [[first, first], last], atol=0.05)
