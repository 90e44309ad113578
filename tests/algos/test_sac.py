"""SAC: soft targets, temperature and bounds in closed form, and the probes."""

import math
from dataclasses import replace
from functools import cache, partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from birl.accel.numpy_acting import take_apart
from birl.algos import sac
from birl.config import ConfigError, RunConfig
from birl.maths.gaussians import SquashedGaussian
from birl.nets.critics import critic_loss
from birl.speed import prepare_jax
from tests import oracle
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
SMALL = sac.Config(
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
update, learn = (jit(function, static_argnames="config") for function in (sac.update.__wrapped__, sac.learn))


@pytest.fixture(scope="module", autouse=True)
def compiled_programs_on_disk() -> None:
    prepare_jax()


@cache
def fresh(config: sac.Config = SMALL) -> sac.State:
    return sac.init(config, VECTOR, BOX)


def after(steps: int, state: sac.State | None = None, config: sac.Config = SMALL) -> sac.State:
    """The state after so many gradient steps."""
    state = fresh() if state is None else state
    for step in range(steps):
        state, _ = learn(state, sampled(transitions(16, seed=step), noise_of(2, 16)), config)
    return state


def gaussian(std: float, actions: int = 2):
    """An actor whose action is tanh of a Gaussian about 0, wherever it is."""
    return lambda o: SquashedGaussian(jnp.zeros((len(o), actions)), jnp.full((len(o), actions), math.log(std)))


def entropy_of(std: float) -> float:
    """-∫ p log p of tanh(u), u normal about 0, over u."""

    def integrand(u: np.ndarray) -> np.ndarray:
        return -oracle.normal_density(u, 0.0, std) * (
            np.log(oracle.normal_density(u, 0.0, std)) - np.log(1 - np.tanh(u) ** 2)
        )

    return oracle.integral(integrand, -8 * std, 8 * std)


def state_of(actor, first, second, temperature: float) -> sac.State:
    """A state of plain functions, the same as network and target."""
    network = bare(actor, first, second)
    return fresh()._replace(network=network, target=network.critics, log_temperature=np.float32(math.log(temperature)))


# Targets


def test_the_target_is_the_smaller_value_of_the_two_target_critics():
    first, second = (lambda o, a: o[:, 0] + a[:, 0]), (lambda o, a: o[:, 1] - a[:, 1])
    certain = lambda o: SquashedGaussian(o[:, :2], jnp.full((len(o), 2), -20.0))  # noqa: E731
    batch = transitions(50)
    targets = sac.targets_of(state_of(certain, first, second, temperature=1e-20), batch, noise_of(50))
    following = batch.next_observations
    actions = np.tanh(batch.next_observations[:, :2])
    values = np.stack([following[:, 0] + actions[:, 0], following[:, 1] - actions[:, 1]])
    assert set(values.argmin(axis=0)) == {0, 1}
    np.testing.assert_allclose(targets, batch.rewards + batch.discounts * np.minimum(*values), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("std", [0.3, 1.0])
def test_the_target_counts_the_entropy_of_the_next_action_at_the_temperature(std):
    state = state_of(
        gaussian(std), lambda o, a: jnp.full(len(o), 5.0), lambda o, a: jnp.full(len(o), 3.0), temperature=0.5
    )
    batch = transitions(20_000)._replace(
        rewards=np.zeros(20_000, np.float32), discounts=np.full(20_000, 0.9, np.float32)
    )
    targets = np.asarray(sac.targets_of(state, batch, noise_of(20_000)))
    assert targets.mean() == pytest.approx(
        0.9 * (3 + 0.5 * 2 * entropy_of(std)), abs=4.5 * float(targets.std()) / math.sqrt(20_000)
    )


def test_a_terminated_step_has_neither_bootstrap_nor_entropy_and_a_truncated_one_keeps_both():
    state = fresh()._replace(target=critics_of(fresh().network, 5.0, 7.0))
    batch = terminated_and_cut(0.9)
    without = np.asarray(sac.targets_of(state._replace(log_temperature=np.float32(-50)), batch, noise_of(3)))
    np.testing.assert_allclose(without, [1 + 0.9 * 5, 2, 4 + 0.9 * 5], rtol=1e-6)
    entropies = np.asarray(sac.targets_of(state, batch, noise_of(3))) - without
    assert entropies[1] == 0.0
    assert np.all(entropies[[0, 2]] != 0.0)


def test_the_critics_loss_is_the_sum_of_both_mean_squared_errors_to_one_target():
    batch = transitions(20)
    value, _ = critic_loss((lambda o, a: o[:, 0], lambda o, a: a[:, 1]), jnp.asarray(batch.rewards), batch)
    errors = batch.observations[:, 0] - batch.rewards, batch.actions[:, 1] - batch.rewards
    assert value == pytest.approx(sum(np.mean(error**2) for error in errors), rel=1e-5)


@pytest.mark.usefixtures("types_unchecked")
def test_targets_of_another_shape_are_an_error_and_not_a_broadcast():
    batch = transitions(20)
    with pytest.raises(ValueError, match="shapes"):
        critic_loss((lambda o, a: o[:, 0], lambda o, a: a[:, 1]), batch.rewards[:, None], batch)


def test_there_is_no_target_actor_and_the_target_critics_move_by_the_target_rate_in_each_gradient_step():
    before, now = after(1), after(2)
    expected = jax.tree.map(
        lambda t, n: 0.995 * np.asarray(t) + 0.005 * np.asarray(n), before.target, now.network.critics
    )
    jax.tree.map(
        lambda found, known: np.testing.assert_allclose(found, known, rtol=1e-5, atol=1e-7), now.target, expected
    )


def test_the_two_critics_begin_apart():
    first, second = fresh().network.critics
    assert not parameters_equal(first, second)


# The actor


def test_the_actors_loss_is_minus_the_smaller_value_less_the_entropy_at_the_temperature():
    batch = transitions(20_000)
    critics = (lambda o, a: jnp.where(o[:, 0] > 0, 2.0, 7.0), lambda o, a: jnp.where(o[:, 0] > 0, 6.0, 4.0))
    value, entropy = sac.actor_loss(gaussian(0.7), critics, jnp.float32(0.5), batch, noise_of(20_000))
    known = 2 * entropy_of(0.7)
    assert entropy == pytest.approx(known, abs=0.05)
    smaller = np.where(batch.observations[:, 0] > 0, 2.0, 4.0).mean()
    assert value == pytest.approx(-smaller - 0.5 * known, abs=0.03)


def test_the_actors_gradient_goes_through_the_sampled_action():
    """Almost without noise and temperature it is -E[w (1 - μ²)] at the mean, for Q = w·a."""
    weights = np.array([2.0, -3.0], np.float32)
    means = jnp.array([0.3, -0.8])
    critics = (lambda o, a: a @ weights, lambda o, a: a @ weights + 1.0)

    def loss(means: jax.Array) -> jax.Array:
        actor = lambda o: SquashedGaussian(jnp.broadcast_to(means, (len(o), 2)), jnp.full((len(o), 2), -12.0))  # noqa: E731
        return sac.actor_loss(actor, critics, jnp.float32(0.0), transitions(4), noise_of(4))[0]

    np.testing.assert_allclose(jit(jax.grad(loss))(means), -weights * (1 - np.tanh(means) ** 2), rtol=1e-4)


def test_the_loss_is_the_critics_and_the_actors():
    state = state_of(
        gaussian(0.7), lambda o, a: jnp.full(len(o), 3.0), lambda o, a: jnp.full(len(o), 5.0), temperature=1e-20
    )
    batch = transitions(16)._replace(rewards=np.zeros(16, np.float32), discounts=np.ones(16, np.float32))
    assert sac.loss(state, batch, noise_of(2, 16)) == pytest.approx(0.0 + (5 - 3) ** 2 - 3.0)


# Temperature


@pytest.mark.parametrize(("entropy", "slope"), [(-3.0, -1.0), (-2.0, 0.0), (1.0, 3.0)])
def test_the_temperatures_slope_is_the_entropy_above_its_target(entropy, slope):
    found = jit(jax.grad(sac.temperature_loss))(jnp.float32(math.log(0.5)), jnp.float32(entropy), -2.0)
    assert found == pytest.approx(0.5 * slope)


@pytest.mark.parametrize(("log_std", "change"), [(-4.0, 3e-4), (0.0, -3e-4)], ids=["below", "above"])
def test_the_temperature_rises_while_the_entropy_is_below_its_target_and_falls_while_it_is_above(log_std, change):
    biases = jnp.array([0.0, 0.0, log_std, log_std])
    state = fresh()._replace(network=eqx.tree_at(lambda network: network.actor.head.bias, fresh().network, biases))
    moved = after(1, state).log_temperature - state.log_temperature
    assert moved == pytest.approx(change, rel=1e-3)  # Adam's first step is the learning rate, whatever the gradient


def test_a_temperature_with_a_learning_rate_of_0_stays_the_same_to_the_bit():
    state = fresh()._replace(log_temperature=np.float32(math.log(0.2)))
    moved = after(2, state, replace(SMALL, temperature_learning_rate=0.0))
    assert np.asarray(moved.log_temperature).tobytes() == np.float32(math.log(0.2)).tobytes()
    assert not parameters_equal(moved.network.actor, state.network.actor)


def test_the_temperature_begins_where_the_settings_say():
    assert np.exp(sac.init(replace(SMALL, temperature=0.2), VECTOR, BOX).log_temperature) == pytest.approx(0.2)


def test_the_entropys_target_is_minus_the_number_of_numbers_in_an_action_unless_it_is_given():
    assert sac.target_entropy_of(SMALL, 6) == -6.0
    assert sac.target_entropy_of(replace(SMALL, target_entropy=-0.5), 6) == -0.5


# Acting


def act(state: sac.State, key: np.ndarray | None = KEY, envs: int = 2000):
    return sac.act(sac.policy(state), np.zeros((envs, 3), np.float32), (), np.zeros(envs, bool), None, key)


def test_while_warming_actions_are_uniform_in_a_box_from_minus_2_to_3():
    action = act(fresh()._replace(in_warmup=np.bool_(True)))
    actions = np.asarray(action.actions)
    assert np.all((actions >= -2) & (actions <= 3))
    for column in actions.T:
        histogram, _ = np.histogram(column, bins=5, range=(-2, 3))
        assert np.all(np.abs(histogram - 400) < 4.5 * math.sqrt(2000 * 0.2 * 0.8))


def test_sampled_actions_stay_in_a_box_from_minus_2_to_3_and_reach_both_sides():
    actions = np.asarray(act(fresh()).actions)
    assert np.all((actions >= -2) & (actions <= 3))
    assert np.all(actions.min(axis=0) < -1.9)
    assert np.all(actions.max(axis=0) > 2.9)
    assert abs(np.corrcoef(actions.T)[0, 1]) < 4.5 / math.sqrt(2000)


def test_without_a_key_the_action_is_tanh_of_the_mean():
    state = fresh()._replace(in_warmup=np.bool_(True))
    expected = state.network.bounds.from_unit(jnp.tanh(state.network.actor(np.zeros((5, 3), np.float32)).mean))
    np.testing.assert_allclose(act(state, None, 5).actions, expected, rtol=1e-6)


def test_deviations_are_bounded_whatever_the_network_says():
    actor = fresh().network.actor
    extremes = [actor(np.full((1, 3), scale, np.float32)).log_std for scale in (-1e9, 1e9)]
    assert all(np.all((log_std >= -20) & (log_std <= 2)) for log_std in extremes)


def test_acting_is_taken_apart_into_numpy():
    inputs = np.zeros((2, 3), np.float32), (), np.zeros(2, bool), None
    assert take_apart(sac.act, sac.policy(fresh()), inputs, KEY, 4) is not None


def test_before_learning_starts_nothing_but_the_counters_and_the_key_changes():
    config = replace(SMALL, learning_starts=4)
    state = fresh(config)
    assert state.in_warmup
    states = [state := update(state, rollout_of(2), None, config)[0] for _ in range(2)]
    assert [bool(state.in_warmup) for state in states] == [True, False]
    assert parameters_equal(states[-1].network, fresh(config).network)
    assert states[-1].log_temperature == fresh(config).log_temperature


# Settings


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": 0.0}, "temperature 0.0 must be positive"),
        ({"temperature_learning_rate": -1e-4}, "temperature_learning_rate -0.0001 must not be negative"),
        ({"hidden_sizes": (8, 0)}, "hidden_sizes"),
    ],
)
def test_settings_that_cannot_work_are_refused_with_the_remedy(settings, message):
    with pytest.raises(ConfigError, match=message):
        sac.validate(replace(SMALL, **settings))


# Probes

FIXED = {"temperature_learning_rate": 0.0}


@pytest.mark.slow
def test_probe_a_terminated_step_is_worth_its_reward_and_no_entropy():
    state = bounded.learned(sac, "tests/BoundedConstant-v0", temperature=1.0, **FIXED).state
    assert bounded.values_at(state) == pytest.approx([1.0, 1.0], abs=0.05)


def test_probe_where_an_episode_is_cut_the_value_goes_on():
    state = bounded.learned(sac, "tests/BoundedTruncation-v0", temperature=1e-3, **FIXED).state
    # 1 / (1 - 0.9); without the bootstrap at the truncation, below 4.1
    assert bounded.values_at(state) == pytest.approx([10.0, 10.0], abs=0.7)


@pytest.mark.slow
def test_probe_the_best_actions_near_both_sides_of_a_box_with_bounds_that_are_not_symmetric():
    state = bounded.learned(sac, "tests/BoundedSides-v0", temperature=1e-3, **FIXED).state
    assert bounded.best_action(sac, state, sign(1)) == pytest.approx(2.5, abs=0.25)
    assert bounded.best_action(sac, state, sign(-1)) == pytest.approx(-1.5, abs=0.25)


@pytest.mark.slow
def test_probe_at_a_fixed_temperature_the_policy_is_boltzmanns():
    """π ∝ exp(Q/α): for Q = -(2.5 a)², a on [-1, 1], a Gaussian of variance α / 12.5."""
    state = bounded.learned(sac, "birl/ProbeContinuous-v0", temperature=0.5, **FIXED).state
    distribution = state.network.actor(sign(1)[None])
    assert float(distribution.mean[0, 0]) == pytest.approx(0.0, abs=0.08)
    assert math.exp(float(distribution.log_std[0, 0])) == pytest.approx(math.sqrt(0.5 / 12.5), rel=0.25)


def test_the_targets_action_and_the_actors_are_drawn_apart():
    rates = {"actor_learning_rate": 0.0, "critic_learning_rate": 0.0, "temperature_learning_rate": 0.0}
    config = replace(SMALL, batch_size=1, temperature=10.0, **rates)
    one = transitions(1)._replace(rewards=np.full(1, 1e3, np.float32), discounts=np.ones(1, np.float32))
    one = one._replace(next_observations=one.observations)  # the same policy in both
    state = fresh(config)
    batches = jax.tree.map(lambda x: x[None], sampled(one))
    found = []
    for number in range(40):
        metrics = update(state._replace(key=np.array([0, number], np.uint32)), rollout_of(4), batches, config)[1]
        # Each grows with -log π of its own action.
        found.append((float(metrics["loss/value"]), float(metrics["policy/entropy"])))
    assert abs(np.corrcoef(np.array(found).T)[0, 1]) < 0.5
