"""TD3: targets, delay and noise in closed form, and the probes."""

import math
from dataclasses import replace
from functools import cache, partial
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from birl.accel.numpy_acting import take_apart
from birl.algos import td3
from birl.config import ConfigError, RunConfig
from birl.maths.schedules import linear
from birl.nets.critics import critic_loss, normalize_batch
from birl.speed import prepare_jax
from birl.types import Metrics
from tests.algos import bounded
from tests.algos.bounded import (
    VECTOR,
    bare,
    critics_of,
    noise_of,
    parameters_equal,
    rollout_of,
    sampled,
    terminated_and_cut,
    transitions,
)
from tests.algos.probing import sign

BOX = spaces.Box(-2, 3, (2,), np.float32)
SMALL = td3.Config(
    run=RunConfig(total_steps=1000),
    hidden_sizes=(8,),
    batch_size=16,
    learning_starts=0,
    actor_learning_rate=1e-3,
    critic_learning_rate=1e-3,
)
KEY = jnp.array([0, 1], jnp.uint32)

# Hardly optimised: else the tests would mostly compile. The probes run what users run.
jit = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
update, learn = (jit(function, static_argnames="config") for function in (td3.update.__wrapped__, td3.learn))


@pytest.fixture(scope="module", autouse=True)
def compiled_programs_on_disk() -> None:
    prepare_jax()


@cache
def fresh(config: td3.Config = SMALL) -> td3.State:
    return td3.init(config, VECTOR, BOX)


def steps_of(count: int, config: td3.Config = SMALL) -> list[tuple[td3.State, Metrics]]:
    """State and metrics before and after each of so many gradient steps."""
    reached: list[tuple[td3.State, Metrics]] = [(fresh(config), {})]
    for step in range(count):
        state, (metrics, _) = learn(reached[-1][0], sampled(transitions(16, seed=step), noise_of(16)), config)
        reached.append((state, metrics))
    return reached


# Targets


def test_the_target_is_the_smaller_value_of_the_two_target_critics():
    first, second = (lambda o, a: o[:, 0] + a[:, 0]), (lambda o, a: o[:, 1] - a[:, 1])
    batch = transitions(50)
    targets = td3.targets_of(
        bare(lambda o: jnp.tanh(o[:, :2]), first, second),
        batch,
        0.0 * noise_of(len(batch.rewards)),
        SMALL,
    )
    following = batch.next_observations
    actions = np.tanh(batch.next_observations[:, :2])
    values = np.stack([following[:, 0] + actions[:, 0], following[:, 1] - actions[:, 1]])
    assert set(values.argmin(axis=0)) == {0, 1}
    np.testing.assert_allclose(targets, batch.rewards + batch.discounts * np.minimum(*values), rtol=1e-5, atol=1e-6)


def test_a_terminated_step_has_no_bootstrap_and_a_truncated_one_keeps_it():
    target = replace(fresh().network, critics=critics_of(fresh().network, 5.0, 7.0))
    targets = td3.targets_of(target, terminated_and_cut(0.9), SMALL.target_noise * noise_of(3), SMALL)
    np.testing.assert_allclose(targets, [1 + 0.9 * 5, 2, 4 + 0.9 * 5], rtol=1e-6)


def test_the_critics_loss_is_the_sum_of_both_mean_squared_errors_to_one_target():
    target = bare(
        lambda o: jnp.zeros((len(o), 2)), lambda o, a: jnp.full(len(o), 2.0), lambda o, a: jnp.full(len(o), 3.0)
    )
    batch = transitions(20)
    critics = (lambda o, a: o[:, 0], lambda o, a: a[:, 1])
    made = td3.targets_of(target, batch, SMALL.target_noise * noise_of(len(batch.rewards)), SMALL)
    value, metrics = critic_loss(critics, made, batch)
    targets = batch.rewards + batch.discounts * 2.0
    errors = batch.observations[:, 0] - targets, batch.actions[:, 1] - targets
    assert value == pytest.approx(sum(np.mean(error**2) for error in errors), rel=1e-5)
    assert metrics["value/mean"] == pytest.approx(
        (batch.observations[:, 0].mean() + batch.actions[:, 1].mean()) / 2, abs=1e-5
    )


def test_the_two_critics_begin_apart():
    first, second = fresh().network.critics
    assert not parameters_equal(first, second)


# Smoothing


def test_smoothing_noise_is_clipped_and_each_number_has_its_own():
    noise = np.asarray(td3.smoothed(jnp.zeros((20_000, 2)), SMALL.target_noise * noise_of(20_000), SMALL))
    assert np.abs(noise).max() == np.float32(0.5)
    share = 1 - math.erf(0.5 / 0.2 / math.sqrt(2))  # of a normal variable beyond 2.5 deviations
    assert np.mean(np.abs(noise) == np.float32(0.5)) == pytest.approx(share, abs=4.5 * math.sqrt(share / 40_000))
    assert np.mean(np.abs(noise) < 0.2) == pytest.approx(math.erf(1 / math.sqrt(2)), abs=0.011)
    assert abs(np.corrcoef(noise.T)[0, 1]) < 4.5 / math.sqrt(20_000)


def test_smoothed_actions_stay_on_the_unit_box():
    actions = np.asarray(
        td3.smoothed(jnp.full((1000, 2), jnp.array([0.9, -0.9])), SMALL.target_noise * noise_of(1000), SMALL)
    )
    assert actions.max() == 1.0
    assert actions.min() == -1.0


def test_the_target_uses_smoothed_actions():
    target = bare(lambda o: jnp.zeros((len(o), 2)), lambda o, a: a[:, 0], lambda o, a: a[:, 0])
    batch = transitions(2000)._replace(rewards=np.zeros(2000, np.float32), discounts=np.ones(2000, np.float32))
    targets = np.asarray(td3.targets_of(target, batch, SMALL.target_noise * noise_of(len(batch.rewards)), SMALL))
    assert np.abs(targets).max() == pytest.approx(0.5)
    assert targets.std() == pytest.approx(0.2, abs=0.02)
    assert len(set(targets.tolist())) > 1900


# Delay


def test_with_a_delay_of_2_actor_and_targets_are_the_same_to_the_bit_after_one_gradient_step_and_changed_after_two():
    states = [state for state, _ in steps_of(4)]
    for (before, now), moved in zip(pairwise(states), (False, True, False, True), strict=True):
        assert parameters_equal(before.network.actor, now.network.actor) is not moved
        assert parameters_equal(before.target, now.target) is not moved
        assert parameters_equal(before.actor_optimizer, now.actor_optimizer) is not moved
        assert not parameters_equal(before.network.critics, now.network.critics)


def test_with_a_delay_of_1_the_actor_moves_at_once():
    (before, _), (now, _) = steps_of(1, replace(SMALL, policy_delay=1))
    assert not parameters_equal(now.network.actor, before.network.actor)


def test_targets_move_by_the_target_rate_to_the_new_networks():
    _, (before, _), (now, _) = steps_of(2)
    expected = jax.tree.map(lambda t, n: 0.995 * np.asarray(t) + 0.005 * np.asarray(n), before.target, now.network)
    jax.tree.map(
        lambda found, known: np.testing.assert_allclose(found, known, rtol=1e-5, atol=1e-7), now.target, expected
    )


def test_a_gradient_step_without_one_of_the_actor_reports_its_newest():
    reports = [
        (float(metrics["loss/policy"]), float(metrics["optimizer/actor_grad_norm"])) for _, metrics in steps_of(3)[1:]
    ]
    assert reports[0] == (0.0, 0.0)
    assert reports[1] == reports[2]
    assert all(reports[1])


# The actor


def test_the_actor_climbs_the_first_critic_by_the_chain_rule():
    """∇ = E[∇μ(s) ∇_a Q₁(s, a)]: at the bias of the last layer, -E[w (1 - μ²)] for Q₁ = w·a."""
    weights = np.array([2.0, -3.0], np.float32)
    critics = (lambda o, a: a @ weights, lambda o, a: 100.0 * a[:, 0])
    batch = transitions(30)
    actor = fresh().network.actor
    gradients = jit(jax.grad(lambda actor: td3.actor_loss(actor, critics, batch)))(actor)
    expected = -np.mean(weights * (1 - np.asarray(actor(batch.observations)) ** 2), axis=0)
    np.testing.assert_allclose(gradients.head.bias, expected, rtol=1e-5)


def test_the_loss_is_the_critics_and_the_actors():
    network = bare(
        lambda o: jnp.zeros((len(o), 2)), lambda o, a: jnp.full(len(o), 3.0), lambda o, a: jnp.full(len(o), 5.0)
    )
    batch = transitions(16)._replace(rewards=np.zeros(16, np.float32), discounts=np.ones(16, np.float32))
    assert td3.loss(network, network, batch, noise_of(16), SMALL) == pytest.approx(0.0 + (5 - 3) ** 2 - 3.0)


# Acting


def act(state: td3.State, key: np.ndarray | None = KEY, envs: int = 2000) -> np.ndarray:
    return np.asarray(
        td3.act(td3.policy(state), np.zeros((envs, 3), np.float32), (), np.zeros(envs, bool), None, key).actions
    )


def test_while_warming_actions_are_uniform_in_a_box_from_minus_2_to_3():
    actions = act(fresh()._replace(in_warmup=np.bool_(True)))
    assert np.all((actions >= -2) & (actions <= 3))
    for column in actions.T:
        histogram, _ = np.histogram(column, bins=5, range=(-2, 3))
        assert np.all(np.abs(histogram - 400) < 4.5 * math.sqrt(2000 * 0.2 * 0.8))


def test_noisy_actions_stay_in_a_box_from_minus_2_to_3_and_reach_both_sides():
    actions = act(fresh()._replace(exploration_noise=np.float32(1.0)))
    assert (actions.min(axis=0).tolist(), actions.max(axis=0).tolist()) == ([-2.0, -2.0], [3.0, 3.0])


def test_exploration_noise_is_in_half_widths_and_each_number_of_each_environment_has_its_own():
    actions, certain = act(fresh()), act(fresh(), None)
    np.testing.assert_allclose((actions - certain).std(axis=0), 0.1 * 2.5, rtol=0.08)
    assert abs(np.corrcoef((actions - certain).T)[0, 1]) < 4.5 / math.sqrt(2000)
    assert len(np.unique(actions[:, 0])) > 1900


def test_without_a_key_there_is_neither_noise_nor_warming():
    state = fresh()._replace(in_warmup=np.bool_(True))
    expected = state.network.bounds.from_unit(state.network.actor(np.zeros((5, 3), np.float32)))
    np.testing.assert_allclose(act(state, None, 5), expected, rtol=1e-6)


def test_the_critics_learn_from_actions_on_the_unit_box():
    state = fresh()
    drawn = transitions(3)._replace(actions=np.array([[-2, 3], [0.5, 0.5], [3, -2]], np.float32))
    batch = normalize_batch(drawn, state.network.bounds, state.normalizer)
    np.testing.assert_allclose(batch.actions, [[-1, 1], [0, 0], [1, -1]], atol=1e-6)


def test_acting_is_taken_apart_into_numpy():
    inputs = np.zeros((2, 3), np.float32), (), np.zeros(2, bool), None
    assert take_apart(td3.act, td3.policy(fresh()), inputs, KEY, 4) is not None


def test_exploration_follows_its_schedule():
    config = replace(SMALL, exploration_noise=linear(1.0, 0.0), run=RunConfig(total_steps=8))
    state, metrics, _ = update(fresh(config), rollout_of(2), None, config)
    assert metrics == {"exploration/noise": 1.0}
    assert state.exploration_noise == pytest.approx(0.75)


def test_smoothing_noise_follows_its_schedule():
    batches = jax.tree.map(lambda x: x[None], sampled(transitions(SMALL.replay.batch_size)))
    quiet, loud, falling = (
        update(state, rollout_of(2), batches, replace(SMALL, run=RunConfig(total_steps=8), target_noise=noise))[0]
        for state, noise in (
            (fresh(), 0.2),
            (fresh(), 0.4),
            (fresh()._replace(env_steps=np.int32(4)), linear(0.6, 0.2)),
        )
    )
    assert parameters_equal(falling.network, loud.network)  # halfway
    assert not parameters_equal(falling.network, quiet.network)


def test_before_learning_starts_nothing_but_the_counters_and_the_key_changes():
    config = replace(SMALL, learning_starts=4)
    state = fresh(config)
    assert state.in_warmup
    states = [state := update(state, rollout_of(2), None, config)[0] for _ in range(2)]
    assert [bool(state.in_warmup) for state in states] == [True, False]
    assert parameters_equal(states[-1].network, fresh(config).network)
    assert int(states[-1].gradient_steps) == 0


# Settings


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"policy_delay": 0}, "policy_delay 0 must be at least 1"),
        ({"target_noise": -0.1}, "target_noise -0.1 must not be negative"),
        ({"target_noise": linear(0.2, -0.1)}, "target_noise -0.1 must not be negative"),
        ({"exploration_noise": linear(0.1, -0.1)}, "exploration_noise -0.1 must not be negative"),
        ({"hidden_sizes": (8, 0)}, "hidden_sizes"),
        ({"target_rate": 0.0}, "target_rate 0.0 must be positive"),
    ],
)
def test_settings_that_cannot_work_are_refused_with_the_remedy(settings, message):
    with pytest.raises(ConfigError, match=message):
        td3.validate(replace(SMALL, **settings))


@pytest.mark.parametrize("space", [spaces.Discrete(2), spaces.Box(-np.inf, np.inf, (1,), np.float32)])
def test_actions_without_bounds_are_refused_with_the_remedy(space):
    with pytest.raises(ConfigError, match=r"ppo"):
        td3.init(SMALL, VECTOR, space)


# Probes


@pytest.mark.slow
def test_probe_a_terminated_step_is_worth_its_reward():
    assert bounded.values_at(bounded.learned(td3, "tests/BoundedConstant-v0").state) == pytest.approx(
        [1.0, 1.0], abs=0.05
    )


@pytest.mark.slow  # seconds each; other algorithms learn the same probe in make test
def test_probe_where_an_episode_is_cut_the_value_goes_on():
    values = bounded.values_at(bounded.learned(td3, "tests/BoundedTruncation-v0").state)
    assert values == pytest.approx([10.0, 10.0], abs=0.7)  # 1 / (1 - 0.9); without the bootstrap at the cut, below 4.1


@pytest.mark.slow
def test_probe_the_best_actions_near_both_sides_of_a_box_with_bounds_that_are_not_symmetric():
    state = bounded.learned(td3, "tests/BoundedSides-v0").state
    assert bounded.best_action(td3, state, sign(1)) == pytest.approx(2.5, abs=0.25)
    assert bounded.best_action(td3, state, sign(-1)) == pytest.approx(-1.5, abs=0.25)
    assert bounded.values_at(state, sign(1), 2.5) == pytest.approx([0.0, 0.0], abs=0.4)


@pytest.mark.slow
def test_probe_the_best_action_at_the_middle():
    state = bounded.learned(td3, "birl/ProbeContinuous-v0").state
    assert bounded.best_action(td3, state, sign(1)) == pytest.approx(0.5, abs=0.25)


def test_every_gradient_step_smooths_with_noise_of_its_own():
    config = replace(
        SMALL, batch_size=1, target_noise=0.5, target_noise_clip=9.0, actor_learning_rate=0.0, critic_learning_rate=0.0
    )
    state = fresh(config)
    one = transitions(1)._replace(discounts=np.full(1, 0.9, np.float32))
    standing = state._replace(target=jax.tree.map(lambda x: 3 * x, state.target))

    def spread(steps: int) -> float:
        """Standard deviation over random keys of the mean loss of so many gradient steps."""
        batches = jax.tree.map(lambda x: np.repeat(x[None], steps, axis=0), sampled(one))
        keys = [np.array([0, number], np.uint32) for number in range(24)]
        return float(
            np.std(
                [update(standing._replace(key=key), rollout_of(4), batches, config)[1]["loss/value"] for key in keys]
            )
        )

    assert 0 < spread(32) < 0.5 * spread(1)  # of independent noise 1/√32; of one noise for all, the same
