"""DPG: the paper's equations by hand, a linear-quadratic problem, and the probes."""

from dataclasses import replace
from functools import cache, partial
from operator import attrgetter

import equinox as eqx
import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

import birl
from birl.accel.numpy_acting import take_apart
from birl.algos import dpg
from birl.config import ConfigError, EnvConfig, RunConfig
from birl.envs.make import make_envs
from birl.envs.probes import OneStep
from birl.maths.schedules import linear
from birl.nets.compatible import CompatibleActorCritic
from birl.nets.heads import ActionBounds
from birl.rollouts.source import Collector
from birl.speed import prepare_jax
from tests import linear_quadratic as lq
from tests.algos.probing import assert_same_bits

LINEAR_QUADRATIC = "birl/ProbeLinearQuadratic-v0"
OFF_CENTRE = "tests/OffCentre-v0"
# Episodes of seven steps and a reset: some end inside every rollout, and some are cut by its end.
SMALL = dpg.Config(
    env=EnvConfig(LINEAR_QUADRATIC, num_envs=3, kwargs={"limit": 7}),
    run=RunConfig(total_steps=1000),
    rollout_length=10,
    actor_learning_rate=1e-2,
    num_features=16,
)
RATES = dpg.LearningRates(jnp.float32(0.1), jnp.float32(0.02), jnp.float32(0.01))


@pytest.fixture(scope="module", autouse=True)
def ready() -> None:
    prepare_jax()
    if OFF_CENTRE not in gym.registry:  # the best action is 1.5 at +1 and -0.5 at -1, of bounds that are not symmetric
        reward = {"reward": lambda sign, action: -((float(action[0]) - 0.5 - sign) ** 2)}
        gym.register(
            OFF_CENTRE, entry_point=OneStep, kwargs={"action_space": spaces.Box(-2, 3, (1,), np.float32)} | reward
        )


# Hardly optimised: else the tests would mostly compile.
HARDLY = {"xla_backend_optimization_level": 0}
update = jax.jit(dpg.update.__wrapped__, static_argnames="config", compiler_options=HARDLY)
learn = jax.jit(dpg.learn, static_argnames="discount", compiler_options=HARDLY)


class Given(eqx.Module):
    """Features that are the observation itself."""

    def __call__(self, observations):
        return observations


def network_of(theta, w, v, size: int = 2) -> CompatibleActorCritic:
    """An actor-critic whose observations are its features."""
    return CompatibleActorCritic(
        Given(), Given(), *map(jnp.float32, (theta, w, v)), ActionBounds((-2.0,) * size, (3.0,) * size)
    )


def steps_of(observations, actions, rewards, following, terminated=None, valid=None) -> dpg.Steps:
    count = len(observations)
    terminated = jnp.zeros(count, bool) if terminated is None else jnp.array(terminated)
    valid = jnp.ones(count, bool) if valid is None else jnp.array(valid)
    return dpg.Steps(*map(jnp.float32, (observations, actions, rewards)), terminated, valid, jnp.float32(following))


def drawn(seed: int = 0, count: int = 1):
    """A random network of two actions and three features, and steps; no action is near a bound."""
    rng = np.random.default_rng(seed)
    theta = 0.1 * rng.standard_normal((3, 2))
    w = rng.standard_normal((3, 2))
    v = rng.standard_normal(3)
    observations, following = rng.uniform(-1, 1, (2, count, 3))
    actions = rng.uniform(-1, 1, (count, 2))
    rewards = rng.standard_normal(count)
    return network_of(theta, w, v), steps_of(observations, actions, rewards, following), (theta, w, v)


# The paper's equations


def test_one_step_moves_theta_w_and_v_as_copdac_q_says():
    network, steps, (theta, w, v) = drawn()
    x, a, r, following = (np.asarray(part[0], np.float64) for part in (*steps[:3], steps.next_observations))
    away = a - theta.T @ x
    slope = w.T @ x
    delta = r + 0.9 * v @ following - (away @ slope + v @ x)
    after, metrics = learn(network, steps, RATES, discount=0.9)
    np.testing.assert_allclose(after.theta, theta + 0.1 * np.outer(x, slope), atol=1e-6)
    np.testing.assert_allclose(after.w, w + 0.02 * delta * np.outer(x, away), atol=1e-6)
    np.testing.assert_allclose(after.v, v + 0.01 * delta * x, atol=1e-6)
    assert float(metrics["value/td_error"]) == pytest.approx(abs(delta), rel=1e-5)
    assert float(metrics["loss/value"]) == pytest.approx(delta**2 / 2, rel=1e-5)


def test_of_several_environments_the_mean_is_taken_over_those_that_are_valid():
    network, steps, _ = drawn(count=3)
    steps = steps._replace(valid=jnp.array([True, False, True]))
    together, _ = learn(network, steps, RATES, discount=0.9)
    alone = [learn(network, jax.tree.map(lambda x, i=i: x[i : i + 1], steps), RATES, discount=0.9)[0] for i in (0, 2)]
    for name in ("theta", "w", "v"):
        np.testing.assert_allclose(
            getattr(together, name), (getattr(alone[0], name) + getattr(alone[1], name)) / 2, atol=1e-6
        )


def test_the_critics_slope_is_the_same_for_every_action_and_its_value_at_the_preferred_one_is_v():
    network, steps, (_, w, _) = drawn()
    x = steps.observations
    np.testing.assert_allclose(network.action_values(x, network.preferred(x)), network.values(x), atol=1e-6)
    for action in (steps.actions, 3 * steps.actions):
        slopes = jax.grad(lambda a: network.action_values(x, a).sum())(action)
        np.testing.assert_allclose(slopes, np.asarray(x) @ w, atol=1e-6)


def test_nothing_follows_a_terminated_step_and_a_cut_episode_goes_on():
    network = network_of(np.zeros((3, 2)), np.zeros((3, 2)), [1.0, 0.0, 0.0])
    steps = steps_of(np.zeros((2, 3)), np.zeros((2, 2)), [5.0, 5.0], [[10.0, 0, 0]] * 2, terminated=[True, False])
    np.testing.assert_allclose(dpg.td_errors(network, steps, 0.9), [5.0, 5.0 + 0.9 * 10])


def test_terminated_and_truncated_ends_of_a_rollout_are_told_apart():
    state, rollout = collected(SMALL)
    assert rollout.truncated.any()
    state = state._replace(network=eqx.tree_at(lambda n: n.v, state.network, state.network.v + 1.0))
    cut, ended = (
        update(state, rollout._replace(terminated=terminated, truncated=truncated), SMALL)[0].network.v
        for terminated, truncated in ((rollout.terminated, rollout.truncated), (rollout.truncated, rollout.terminated))
    )
    assert np.abs(np.asarray(cut - ended)).max() > 1e-3


# The bounds


def test_an_action_beyond_a_bound_counts_as_the_bound():
    network = network_of([[3.0, -3.0]], [[2.0, 5.0]], [0.0])
    np.testing.assert_allclose(network.action_values(jnp.ones((1, 1)), jnp.float32([[1.0, -1.0]])), [0.0])
    np.testing.assert_allclose(
        network.action_values(jnp.ones((1, 1)), jnp.float32([[0.5, -0.8]])), [-0.5 * 2 + 0.2 * 5], atol=1e-6
    )


@pytest.mark.parametrize(
    ("theta", "slope", "followed"),
    [(1.5, 1.0, 0.0), (1.5, -1.0, -1.0), (-1.5, -1.0, 0.0), (-1.5, 1.0, 1.0), (0.5, 1.0, 1.0)],
)
def test_a_slope_is_followed_unless_it_leads_further_out(theta, slope, followed):
    network = network_of([[theta]], [[slope]], [0.0], size=1)
    steps = steps_of([[1.0]], [[0.0]], [0.0], [[1.0]])
    assert dpg.policy_gradient(network, steps).item() == followed


def test_what_was_done_is_what_is_learned_from_and_it_lies_within_the_bounds():
    sent: list[float] = []
    reward = {"reward": lambda _, action: sent.append(float(action[0])) or 0.0}
    gym.register(
        "tests/Sent-v0", entry_point=OneStep, kwargs={"action_space": spaces.Box(-2, 3, (1,), np.float32)} | reward
    )
    _, rollout = collected(
        replace(SMALL, env=EnvConfig("tests/Sent-v0", num_envs=1), exploration_noise=2.0, rollout_length=40)
    )
    del gym.registry["tests/Sent-v0"]
    actions = rollout.actions[rollout.valid][:, 0]
    np.testing.assert_array_equal(actions, np.float32(sent[-len(actions) :]))
    assert (actions.min(), actions.max()) == (-2.0, 3.0)


def test_noise_has_the_given_deviation_in_halves_of_the_range_and_without_a_key_there_is_none():
    network = network_of([[0.2, -0.2]], np.zeros((1, 2)), [0.0])
    answer = partial(
        dpg.act, (network, None, jnp.float32(0.1)), jnp.ones((20_000, 1)), (), np.zeros(20_000, bool), None
    )
    middle, half = 0.5, 2.5
    noisy, best = (np.asarray(answer(key).actions) for key in (np.array([1, 2], np.uint32), None))
    np.testing.assert_allclose(best, np.broadcast_to([middle + 0.2 * half, middle - 0.2 * half], best.shape), atol=1e-6)
    np.testing.assert_allclose(noisy.mean(0), best[0], atol=0.01)
    np.testing.assert_allclose(noisy.std(0), 0.1 * half, rtol=0.02)


# Step sizes


@pytest.mark.parametrize("factor", [1.0, 1e3, 1e6])
def test_no_step_undoes_more_than_its_whole_error(factor):
    network, steps, _ = drawn()
    steps = steps._replace(terminated=jnp.array([True]))  # its target does not move
    before = float(dpg.td_errors(network, steps, 0.9)[0])
    lengths = [float(length[0]) for length in network.feature_lengths(steps.observations, steps.actions)]
    rates = dpg.LearningRates(jnp.float32(0.0), factor * RATES.critic, factor * RATES.value)
    after = float(dpg.td_errors(learn(network, steps, rates, discount=0.9)[0], steps, 0.9)[0])
    undone = min(1.0, factor * (0.02 * lengths[0] + 0.01 * lengths[1]))
    assert after / before == pytest.approx(1 - undone, abs=1e-4)


def test_schedules_stand_where_progress_is():
    state, rollout = collected(SMALL)
    halfway = state._replace(env_steps=np.int32(500))
    changing = {
        name: linear(2 * value, 0.0)
        for name, value in (("actor_learning_rate", 1e-2), ("critic_learning_rate", 1.0), ("value_learning_rate", 0.1))
    }
    scheduled, standing, early = (
        update(start, rollout, replace(SMALL, **settings))[0].network
        for start, settings in ((halfway, changing), (halfway, {}), (state, changing))
    )
    for name in ("theta", "w", "v"):
        np.testing.assert_allclose(getattr(scheduled, name), getattr(standing, name), atol=1e-6)
        assert np.abs(np.asarray(getattr(early, name) - getattr(standing, name))).max() > 1e-5


def test_the_next_rollouts_noise_is_that_of_the_steps_done_by_then():
    config = replace(SMALL, run=RunConfig(total_steps=100), exploration_noise=linear(0.5, 0.0))
    updates = list(dpg.train(config))
    noises, steps = (
        [float(value) for value in values]
        for values in zip(*[(u.state.noise, int(u.state.env_steps)) for u in updates], strict=True)
    )
    assert noises == pytest.approx([0.5 * max(0.0, 1 - done / 100) for done in steps], abs=1e-6)
    assert float(dpg.init(config, *spaces_of(config)).noise) == 0.5


# A rollout


def spaces_of(config):
    with make_envs(config.env, 0) as envs:
        return envs.observation_space, envs.action_space


@cache
def collected(config):
    """A state that is not the first, and the second rollout that it has collected."""
    with make_envs(config.env, config.run.seed) as envs:
        state = dpg.init(config, envs.observation_space, envs.action_space)
        rng = np.random.default_rng(0)
        stir = [
            jnp.float32(0.3 * rng.standard_normal(part.shape))
            for part in (state.network.theta, state.network.w, state.network.v)
        ]
        state = state._replace(network=eqx.tree_at(lambda n: (n.theta, n.w, n.v), state.network, stir))
        collector = Collector(envs, dpg.act, config.rollout_length, ())
        collector.start(config.run.seed)
        collector.collect(dpg.policy(state), np.array([0, 1], np.uint32))
        return state, collector.collect(dpg.policy(state), state.key)


def test_a_rollout_is_learned_from_step_by_step():
    state, rollout = collected(SMALL)
    whole = update(state, rollout, SMALL)[0]
    parts = state
    for t in range(SMALL.rollout_length):
        row = jax.tree.map(lambda x, t=t: x[t : t + 1], rollout._replace(observations=None))
        parts = update(
            parts, row._replace(observations=rollout.observations[t : t + 2]), replace(SMALL, rollout_length=1)
        )[0]
    assert int(whole.env_steps) == int(parts.env_steps) == rollout.valid.sum()
    for name in ("theta", "w", "v"):
        np.testing.assert_allclose(getattr(whole.network, name), getattr(parts.network, name), atol=1e-5)


def test_what_follows_a_step_is_the_next_observation():
    config = replace(SMALL, rollout_length=1)
    state, rollout = collected(config)
    assert rollout.valid.all()
    now, following = (np.asarray(state.network.values(rollout.observations[t])) for t in (0, 1))
    assert np.abs(now - following).min() > 1e-3
    advantages = state.network.action_values(rollout.observations[0], rollout.actions[0] / HALF) - now
    errors = rollout.rewards[0] + config.discount * following - (now + advantages)
    assert float(update(state, rollout, config)[1]["value/td_error"]) == pytest.approx(np.abs(errors).mean(), rel=1e-4)


def test_what_stands_in_a_row_that_is_not_valid_changes_no_bit_of_the_update():
    config = replace(SMALL, normalize_rewards=True, normalize_observations=True)
    state, rollout = collected(config)
    strange = rollout._replace(
        rewards=np.where(rollout.valid, rollout.rewards, 1e6).astype(np.float32),
        actions=np.where(rollout.valid[..., None], rollout.actions, -rollout.actions),
    )
    assert np.any(strange.rewards != rollout.rewards)
    assert_same_bits(update(state, rollout, config), update(state, strange, config))


def test_from_a_rollout_of_resets_nothing_is_learned_and_no_nan_comes_of_it():
    state, rollout = collected(SMALL)
    after, metrics = update(state, rollout._replace(valid=np.zeros_like(rollout.valid)), SMALL)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((after, metrics)))
    assert_same_bits(after.network, state.network)


def test_features_are_drawn_once_and_never_learned():
    state, rollout = collected(SMALL)
    after = update(state, rollout, SMALL)[0].network
    assert_same_bits(
        (after.actor_features, after.critic_features), (state.network.actor_features, state.network.critic_features)
    )
    assert np.any(after.actor_features.frequencies != after.critic_features.frequencies)


@pytest.mark.parametrize("features", ["linear", "fourier"])
def test_acting_needs_no_compiled_call(features):
    state, rollout = collected(replace(SMALL, actor_features=features))
    inputs = rollout.observations[0], (), np.zeros(3, bool), None
    start = take_apart(dpg.act, dpg.policy(state), inputs, state.key, 2)
    assert start is not None
    found = start(dpg.policy(state), state.key)(0, *inputs)
    assert found.actions.shape == (3, 1)


# A linear-quadratic problem: everything is known


GAIN = np.array([[0.4, 0.9]])  # not the best one
HALF = 3.0  # half the range of actions: what 1 means to the network


def exact_network(discount: float, constant: float = 0.0) -> CompatibleActorCritic:
    """The linear policy with that gain, its compatible critic and its values."""
    config = dpg.Config(env=EnvConfig(LINEAR_QUADRATIC), actor_features="linear", critic_features="quadratic")
    network = dpg.init(config, *spaces_of(config)).network
    theta = np.vstack([-GAIN.T / HALF, [[0.0]]])
    w = np.vstack([HALF * lq.slopes_of(GAIN, discount).T, [[0.0]]])
    (a, b), (_, d) = lq.values_of(GAIN, discount)
    v = [-a, -2 * b, -d, 0.0, 0.0, constant]  # of p², pq, q², p, q, 1
    return eqx.tree_at(lambda n: (n.theta, n.w, n.v), network, tuple(map(jnp.float32, (theta, w, v))))


def numeric_gradient(discount: float, size: float = 1e-5) -> np.ndarray:
    """Of the mean discounted return, in the gain, by differences."""
    change = [np.array([[size, 0.0]]), np.array([[0.0, size]])]
    return np.array(
        [(lq.mean_return(GAIN + d, discount) - lq.mean_return(GAIN - d, discount)) / (2 * size) for d in change]
    )


@pytest.mark.parametrize("discount", [0.9, 0.99])
def test_with_the_exact_critic_the_policy_gradient_is_that_of_the_return(discount):
    # Four points with the second moments of the discounted state visits (ρ of theorem 1).
    roots = np.linalg.cholesky((1 - discount) * lq.visits_of(GAIN, discount))
    states = np.sqrt(2) * np.concatenate([roots.T, -roots.T])
    steps = steps_of(states, np.zeros((4, 1)), np.zeros(4), states)
    found = np.asarray(dpg.policy_gradient(exact_network(discount), steps))[:, 0] / (1 - discount)
    expected = -HALF * numeric_gradient(discount)  # a = -Ks = HALF Θᵀx
    np.testing.assert_allclose(found, [*expected, 0.0], rtol=1e-4, atol=1e-4)
    assert np.abs(expected).min() > 0.1


def test_the_exact_critic_is_where_the_critic_comes_to_rest():
    discount, noise = 0.9, 0.3
    P = lq.values_of(GAIN, discount)
    # Noise costs the same everywhere: σ² (R + γBᵀPB) a step.
    cost = (HALF * noise) ** 2 * (lq.R + discount * lq.B.T @ P @ lq.B).item()
    network = exact_network(discount, constant=-cost / (1 - discount))
    states = np.random.default_rng(0).uniform(-1, 1, (50, 2)).repeat(2, axis=0)
    actions = -states @ GAIN.T + HALF * noise * np.tile([[1.0], [-1.0]], (50, 1))
    rewards = -np.einsum("ni,ij,nj->n", states, lq.C, states) - lq.R.item() * actions[:, 0] ** 2
    steps = steps_of(states, actions / HALF, rewards, states @ lq.A.T + actions @ lq.B.T)
    gradient = jax.jit(jax.grad(lambda n: dpg.loss(n, steps, jnp.ones(100), discount)[0]), compiler_options=HARDLY)
    at_rest = gradient(network)
    for name in ("w", "v"):
        wrong = gradient(eqx.tree_at(attrgetter(name), network, replace_fn=lambda part: 1.1 * part))
        assert np.abs(getattr(at_rest, name)).max() < 1e-3 * np.abs(getattr(wrong, name)).max()


@pytest.mark.slow
def test_the_linear_quadratic_optimum_is_reached_within_1_percent():
    *_, last = dpg.train(birl.preset("dpg", LINEAR_QUADRATIC))
    *gain, constant = HALF * np.asarray(last.state.network.theta[:, 0], np.float64)
    best = -np.trace(lq.riccati(50)[0] @ lq.STARTS)
    assert best >= lq.mean_return_with(-np.array([gain]), constant, steps=50) >= 1.01 * best
    assert lq.mean_return(np.zeros((1, 2)), steps=50) < 5 * best


def test_the_best_action_follows_the_observation_within_bounds_that_are_not_symmetric():
    config = dpg.Config(
        env=EnvConfig(OFF_CENTRE),
        run=RunConfig(total_steps=5000),
        exploration_noise=0.1,
        actor_learning_rate=5e-3,
        critic_learning_rate=20.0,
        actor_features="linear",
        critic_features="linear",
    )
    *_, last = dpg.train(config)
    signs = np.array([[1.0], [-1.0]], np.float32)
    actions = dpg.act(dpg.policy(last.state), signs, (), np.zeros(2, bool), None, None).actions[:, 0]
    np.testing.assert_allclose(actions, [1.5, -0.5], atol=0.05)
    np.testing.assert_allclose(last.state.network.values(signs), -((0.1 * 2.5) ** 2), atol=0.05)


# Settings


WRONG = {
    "rollout_length 0 must be at least 1": {"rollout_length": 0},
    "num_features 0 must be at least 1": {"num_features": 0},
    r"discount 1.5 must lie in \[0, 1\]": {"discount": 1.5},
    "feature_scale 0.0 must be positive; 1 is usual": {"feature_scale": 0.0},
    "actor_learning_rate -0.1 must not be negative": {"actor_learning_rate": linear(1e-3, -0.1)},
    "critic_learning_rate -1.0 must not be negative": {"critic_learning_rate": -1.0},
    "value_learning_rate -1.0 must not be negative": {"value_learning_rate": -1.0},
    "exploration_noise -1.0 must not be negative": {"exploration_noise": -1.0},
    r"dpg takes Box actions with finite bounds, and action space Discrete\(2\) is none": {
        "env": EnvConfig("CartPole-v1")
    },
}


@pytest.mark.parametrize(("message", "changes"), WRONG.items(), ids=WRONG)
def test_a_setting_that_cannot_work_is_named_with_its_value_and_what_to_use_before_the_first_step(message, changes):
    with pytest.raises(ConfigError, match=message):
        next(dpg.train(replace(SMALL, **changes)))


def test_features_of_the_users_own_are_learned_with():
    def make(rng, observation_space, action_space):
        return network_of(np.zeros((2, 1)), np.zeros((2, 1)), np.zeros(2), size=1)

    first = next(dpg.train(SMALL, make_network=make))
    assert isinstance(first.state.network.actor_features, Given)
    assert np.any(first.state.network.theta)
