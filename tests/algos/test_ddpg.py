"""DDPG: bounded actions, noise of each environment, losses in closed form, and the probes."""

from contextlib import closing
from dataclasses import replace
from functools import cache, partial
from itertools import islice
from typing import Any

import equinox as eqx
import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from birl.accel.numpy_acting import take_apart
from birl.algos import ddpg
from birl.config import ConfigError, EnvConfig, RunConfig
from birl.envs.make import make_envs
from birl.envs.serial import SerialEnvs
from birl.maths.exploration import action_distance
from birl.maths.schedules import linear
from birl.nets.critics import initial_noise_memory, perturbable, perturbed_weights
from birl.nets.heads import ActionBounds
from birl.nets.layers import LayerNorm
from birl.rollouts.source import Collector
from birl.speed import compiled_acting, prepare_jax
from birl.types import Rollout, Transitions
from tests.algos.bounded import sampled
from tests.algos.probing import assert_same_bits
from tests.tiers import sooner

ENVS = 4
KEY = np.array([3, 5], np.uint32)
SEEN = spaces.Box(-np.inf, np.inf, (3,), np.float32)
BOX = spaces.Box(np.array([-2, 0], np.float32), np.array([3, 10], np.float32))
SMALL = ddpg.Config(
    env=EnvConfig("Pendulum-v1", num_envs=ENVS, max_episode_steps=9),
    run=RunConfig(total_steps=1000),
    rollout_length=8,
    update_ratio=0.25,
    learning_starts=20,
    batch_size=16,
    replay_size=500,
    hidden_sizes=(8,),
    layer_norm=True,
)
every_noise = pytest.mark.parametrize("noise", ["ou", "gaussian", "parameter"])


@pytest.fixture(scope="module", autouse=True)
def compiled_programs_on_disk() -> None:
    prepare_jax()


# Hardly optimised: else the tests would mostly compile. The probes run what users run.
jit = partial(jax.jit, static_argnames="config", compiler_options={"xla_backend_optimization_level": 0})
update, learn = jit(ddpg.update.__wrapped__), jit(ddpg.learn)


@cache
def fresh(config: ddpg.Config) -> ddpg.State:
    """A state that no longer warms up, with an actor that is far from 0."""
    state = ddpg.init(config, SEEN, BOX)
    network = eqx.tree_at(
        lambda network: network.actor.head.weight, state.network, replace_fn=lambda weight: 50 * weight
    )
    return state._replace(network=network, in_warmup=np.bool_(False))


def with_scale(state: ddpg.State, scale: float) -> ddpg.State:
    return state._replace(exploration=replace(state.exploration, scale=np.float32(scale)))


def observations(rows: int = ENVS) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((rows, 3), np.float32)


def act(
    state: ddpg.State,
    seen: np.ndarray,
    memory: Any = (),
    resets: np.ndarray | None = None,
    key: np.ndarray | None = KEY,
):
    return ddpg.act(
        ddpg.policy(state), seen, memory, np.zeros(len(seen), bool) if resets is None else resets, None, key
    )


def transitions(*shape: int) -> Transitions:
    """Steps as a replay gives them; a third of them terminated."""
    rng = np.random.default_rng(1)
    return Transitions(
        observations=rng.standard_normal((*shape, 3), np.float32),
        actions=rng.uniform(BOX.low, BOX.high, (*shape, 2)).astype(np.float32),
        rewards=rng.standard_normal(shape, np.float32),
        discounts=np.where(rng.random(shape) < 1 / 3, 0, 0.9).astype(np.float32),
        next_observations=rng.standard_normal((*shape, 3), np.float32),
    )


def rollout(config: ddpg.Config, began: tuple[int, ...] = ()) -> Rollout:
    """One in which episodes of these environments begin."""
    shape = config.rollout_length, config.env.num_envs
    valid = np.ones(shape, bool)
    valid[1, list(began)] = False
    falses, zeros = np.zeros(shape, bool), np.zeros(shape, np.float32)
    return Rollout(
        np.zeros((shape[0] + 1, shape[1], 3), np.float32),
        np.zeros((*shape, 2)),
        zeros,
        falses,
        falses,
        valid,
        (),
        resets=falses[0],
    )


# Actions


def test_actions_reach_the_bounds_of_a_box_that_is_not_symmetric_and_their_middle():
    state = fresh(SMALL)
    for output, expected in ((-100.0, [-2, 0]), (0.0, [0.5, 5]), (100.0, [3, 10])):
        head = replace(state.network.actor.head, weight=jnp.zeros((8, 2)), bias=jnp.full(2, output))
        pushed = state._replace(network=eqx.tree_at(lambda network: network.actor.head, state.network, head))
        memory = np.zeros((ENVS, 2), np.float32)
        np.testing.assert_allclose(act(pushed, observations(), memory, key=None).actions, [expected] * ENVS, atol=1e-5)


@every_noise
def test_without_a_key_the_action_is_the_actors_whatever_the_noise_and_the_warm_up(noise):
    state = with_scale(fresh(replace(SMALL, noise=noise)), 9.0)._replace(in_warmup=np.bool_(True))
    memory = jax.tree.map(lambda m: m + 5, state.network.initial_memory(ENVS))
    found = act(state, observations(), memory, key=None)
    np.testing.assert_allclose(
        found.actions, state.network.bounds.from_unit(state.network.actor(observations())), atol=1e-5
    )
    assert_same_bits(found.memory, memory)


@every_noise
def test_noise_of_any_size_leaves_no_bound_and_what_was_sent_is_what_is_kept(noise):
    config = replace(SMALL, noise=noise, env=EnvConfig("birl/ProbeContinuous-v0", num_envs=ENVS))
    with make_envs(config.env, 1) as envs:
        state = with_scale(
            ddpg.init(config, envs.observation_space, envs.action_space)._replace(in_warmup=np.bool_(False)), 100.0
        )
        collector = Collector(envs, ddpg.act, 50, state.network.initial_memory(ENVS))
        collector.start(1)
        found = collector.collect(ddpg.policy(state), KEY)
    assert (found.actions.min(), found.actions.max()) == pytest.approx((-2.0, 3.0))
    expected = -((found.actions[..., 0] - 0.5) ** 2)
    np.testing.assert_allclose(found.rewards[found.valid], expected[found.valid], rtol=1e-5, atol=1e-5)


def test_first_actions_are_uniform_in_the_box():
    state = fresh(SMALL)._replace(in_warmup=np.bool_(True))
    actions = np.asarray(act(state, observations(20_000), np.zeros((20_000, 2), np.float32)).actions)
    np.testing.assert_allclose(actions.mean(0), [0.5, 5], rtol=0.1)
    np.testing.assert_allclose(actions.var(0), [5**2 / 12, 10**2 / 12], rtol=0.05)
    assert (actions >= BOX.low).all()
    assert (actions <= BOX.high).all()


def test_the_warm_up_ends_where_learning_starts():
    with closing(ddpg.train(SMALL)) as training:
        updates = list(islice(training, 4))
    assert [bool(u.state.in_warmup) for u in updates] == [int(u.state.env_steps) < 20 for u in updates]
    # Steps of the second rollout, which has four resets, are left to learn from after the third.
    assert ["loss/value" in u.metrics for u in updates] == [False, False, True, True]
    assert [int(u.state.gradient_steps) for u in updates] == [0, 0, 8, 16]


@every_noise
def test_the_noise_of_each_environment_is_its_own_and_new_at_each_key(noise):
    state = fresh(replace(SMALL, noise=noise))
    same = np.repeat(observations(1), ENVS, axis=0)
    memory = state.network.initial_memory(ENVS)
    first, second = (np.asarray(act(state, same, memory, key=key).actions) for key in (KEY, KEY + 1))
    for actions in (first, second):
        assert len({row.tobytes() for row in actions}) == ENVS
    assert np.array_equal(first, second) == (noise == "parameter")  # which stays through an episode


@every_noise
def test_acting_is_taken_apart_and_says_the_same_as_the_compiled_function(noise):
    config = replace(SMALL, noise=noise, normalize_observations=True, hidden_sizes=(16, 16))
    policy = ddpg.policy(fresh(config))
    memory = jax.tree.map(
        lambda m: m + np.float32(0.3).astype(m.dtype),
        initial_noise_memory(fresh(config).network.initial_memory(ENVS), noise, ENVS),
    )
    inputs = observations(), memory, np.arange(ENVS) == 1, None
    start = take_apart(ddpg.act, policy, inputs, KEY, 3)
    if noise == "parameter":  # a network for each environment, chosen in each step: too many operations to be worth it
        assert start is None
        return
    assert start is not None
    in_parts = start(policy, KEY)
    whole = compiled_acting(ddpg.act, policy, 3)(policy, KEY)
    for t in range(3):
        jax.tree.map(partial(np.testing.assert_allclose, atol=1e-5), in_parts(t, *inputs), whole(t, *inputs))


# Action noise


def test_gaussian_noise_has_sigma_of_half_the_box():
    state = with_scale(fresh(replace(SMALL, noise="gaussian")), 0.05)
    seen = np.zeros((20_000, 3), np.float32)
    away = np.asarray(act(state, seen).actions - act(state, seen, key=None).actions)
    np.testing.assert_allclose(away.std(0), [0.05 * 2.5, 0.05 * 5], rtol=0.03)


def test_ornstein_uhlenbeck_noise_is_added_to_the_actors_action_decays_and_begins_each_episode_at_0():
    state = with_scale(fresh(SMALL), 0.0)
    memory = np.array([[0.2, -0.1], [0.1, 0.0], [5.0, -5.0], [0.0, 0.1]], np.float32)
    resets = np.array([False, True, False, False])
    found = act(state, observations(), memory, resets)
    expected = 0.85 * memory * ~resets[:, None]
    np.testing.assert_allclose(found.memory, expected, atol=1e-6)
    unit = np.clip(state.network.actor(observations()) + expected, -1, 1)
    np.testing.assert_allclose(found.actions, state.network.bounds.from_unit(unit), atol=1e-5)


def test_the_noise_carried_between_rollouts_is_a_row_of_each_environment_and_is_in_the_world():
    with closing(ddpg.train(SMALL)) as training:
        first, second = (update.snapshot().arrays["collector/memory/0"].copy() for update in islice(training, 2))
    assert first.shape == second.shape == (ENVS, 1)
    assert len(np.unique(first)) == ENVS
    assert not np.intersect1d(first, second).size


@every_noise
def test_a_run_continued_from_its_state_and_world_is_the_run_that_went_on(noise):
    config = replace(SMALL, noise=noise)
    with closing(ddpg.train(config)) as training:
        *_, stopped = islice(training, 2)
        snapshot = stopped.snapshot()
        snapshot = replace(snapshot, arrays={name: array.copy() for name, array in snapshot.arrays.items()})
        whole = next(training)
    with closing(ddpg.train(config, state=stopped.state, snapshot=snapshot)) as training:
        assert_same_bits(next(training).state, whole.state)


def test_the_scale_of_action_noise_follows_its_schedule():
    config = replace(SMALL, exploration_noise=linear(0.4, 0.0))
    state = fresh(config)._replace(env_steps=np.int32(500 - 32))
    after, metrics, _ = update(state, rollout(config), None, config)
    assert float(after.exploration.scale) == pytest.approx(0.2)
    assert float(metrics["exploration/noise"]) == pytest.approx(0.4)  # of the rollout that was


# Parameter noise

PARAMETER = replace(SMALL, noise="parameter")


def test_a_perturbed_actors_weights_are_the_actors_and_sigma_times_its_own_normals():
    state = with_scale(fresh(PARAMETER), 0.03)
    seen = observations()
    found = act(state, seen).actions
    for i in range(ENVS):
        own = jax.tree.map(lambda x, i=i: 0.03 * x[0, i], state.exploration.perturbations)
        actor = eqx.apply_updates(state.network.actor, own)
        np.testing.assert_allclose(found[i], state.network.bounds.from_unit(actor(seen[i])), atol=1e-4)


def test_layer_norms_are_not_perturbed_and_all_else_is():
    kept = perturbable(fresh(PARAMETER).network.actor)
    norms = [
        node
        for node in jax.tree.leaves(kept, is_leaf=lambda n: isinstance(n, LayerNorm))
        if isinstance(node, LayerNorm)
    ]
    assert len(norms) == 1
    assert jax.tree.leaves(norms) == []
    assert len(jax.tree.leaves(kept)) == 4  # weight and bias of the hidden layer and of the head


def test_where_an_episode_began_its_perturbation_goes_on_and_another_is_drawn_for_the_next():
    state = fresh(PARAMETER)
    after, *_ = update(state, rollout(PARAMETER, began=(1, 3)), None, PARAMETER)
    for old, new in zip(*(jax.tree.leaves(s.exploration.perturbations) for s in (state, after)), strict=True):
        for i in range(ENVS):
            began = i in (1, 3)
            np.testing.assert_array_equal(new[0, i], old[int(began), i])
            assert bool(np.all(new[1, i] == old[1, i])) == (not began)
            assert not began or np.all(np.asarray(new)[1, i] != np.asarray(old)[:, i])
        assert np.all(new[1, 1] != new[1, 3])
    unchanged, *_ = update(state, rollout(PARAMETER), None, PARAMETER)
    assert_same_bits(unchanged.exploration.perturbations, state.exploration.perturbations)


def test_more_environments_than_perturbations_share_them_and_fewer_take_the_first():
    state = fresh(PARAMETER)
    seen = np.repeat(observations(1), 6, axis=0)
    six, two = act(state, seen).actions, act(state, seen[:2]).actions
    assert len({row.tobytes() for row in np.asarray(six)}) == ENVS
    np.testing.assert_array_equal(six[4:], six[:2])
    np.testing.assert_allclose(six[:2], two, atol=1e-6)


@pytest.mark.parametrize("start", [1e-3, 3.0])
def test_the_scale_of_parameter_noise_settles_where_the_actions_lie_at_the_wanted_distance(start):
    config = replace(
        PARAMETER, exploration_noise=0.15, noise_adaptation=1.05, actor_learning_rate=0.0, critic_learning_rate=0.0
    )
    state = with_scale(fresh(config), start)
    batches = sampled(transitions(8, 16))
    steps = rollout(config)
    for _ in range(200):
        state, metrics, _ = update(state, steps, batches, config)
    assert float(metrics["exploration/action_distance"]) == pytest.approx(0.15, rel=0.06)
    weights = perturbed_weights(state.network.actor, state.exploration, 0, ENVS)
    actors = [eqx.combine(jax.tree.map(lambda x, i=i: x[i], weights), state.network.actor) for i in range(ENVS)]
    seen = batches.steps.observations[-1]
    distance = action_distance(state.network.actor(seen), jnp.stack([actor(seen) for actor in actors]))
    assert float(distance) == pytest.approx(0.15, rel=0.06)


class Still(gym.Env):
    """Shows the same at each step, and ends after so many steps, then after one more, and so on."""

    observation_space = spaces.Box(-1, 1, (3,), np.float32)
    action_space = BOX

    def __init__(self, length: int) -> None:
        self.length = length

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = self.length
        self.length = self.length + 1
        return np.ones(3, np.float32), {}

    def step(self, action):
        self.left -= 1
        return np.ones(3, np.float32), 0.0, self.left == 0, False, {}


@pytest.mark.parametrize("length", [1, 3, 8])
def test_a_perturbation_stays_through_an_episode_wherever_rollouts_end_and_the_next_episode_has_another(length):
    config = replace(PARAMETER, env=EnvConfig(num_envs=2), rollout_length=length, learning_starts=0)
    state = ddpg.init(config, Still.observation_space, Still.action_space)
    collector = Collector(
        SerialEnvs([partial(Still, length + 2), partial(Still, length + 3)]),
        ddpg.act,
        length,
        initial_noise_memory(state.network.initial_memory(2), config.exploration.noise, 2),
    )
    collector.start(0)
    rollouts = []
    for _ in range(80 // length):
        rollouts.append(collector.collect(ddpg.policy(state), state.key))
        state, *_ = update(state, rollouts[-1], None, config)
    actions, valid = (np.concatenate([getattr(rollout, name) for rollout in rollouts]) for name in ("actions", "valid"))
    for i in range(2):
        episodes = np.split(actions[:, i], np.flatnonzero(~valid[:, i]))
        # Without the action that a reset ignored.
        episodes = [episode[1:] if number else episode for number, episode in enumerate(episodes)]
        distinct = [np.unique(episode, axis=0) for episode in episodes if len(episode)]
        assert [len(rows) for rows in distinct] == [1] * len(distinct)
        assert len(distinct) > 4
        assert len(np.unique(np.concatenate(distinct), axis=0)) == len(distinct)


def test_on_images_layer_norm_follows_the_dense_layer_and_convolutions_are_not_perturbed():
    image = spaces.Box(0, 255, (36, 36, 1), np.uint8)
    config = replace(PARAMETER, encoder="cnn_small")
    network = ddpg.init(config, image, BOX).network
    seen = np.random.default_rng(0).integers(0, 255, (5, 36, 36, 1)).astype(np.uint8)
    for encoder in (network.actor.encoder, network.critic.encoder):
        (part,) = encoder.parts
        assert isinstance(part.norm, LayerNorm)
        louder = eqx.tree_at(lambda p: p.dense.weight, part, 7.0 * part.dense.weight)
        np.testing.assert_allclose(louder(seen), part(seen), atol=1e-3)  # a scale is taken out again
    kept = perturbable(network.actor)
    assert jax.tree.leaves(kept.encoder.parts[0].convolutions) == []
    assert jax.tree.leaves(kept.encoder.parts[0].norm) == []
    assert len(jax.tree.leaves(kept)) == 4  # weight and bias of the dense layer and of the head


# What is learned from


def apart(config: ddpg.Config = SMALL) -> ddpg.State:
    """A state whose target networks are not its networks."""
    state = fresh(config)
    return state._replace(target=fresh(replace(config, run=replace(config.run, seed=7))).network)


def test_the_critics_loss_is_the_mean_square_of_the_bellman_error_with_the_target_networks():
    state = apart()
    batch = transitions(16)
    target = state.target
    bootstrap = np.array([float(target.critic(s, target.actor(s))) for s in batch.next_observations])
    scaled = (batch.actions - BOX.low) / (BOX.high - BOX.low) * 2 - 1
    values = np.array([float(state.network.critic(s, a)) for s, a in zip(batch.observations, scaled, strict=True)])
    errors = values - (batch.rewards + batch.discounts * bootstrap)
    (loss, metrics), gradients = jax.value_and_grad(ddpg.critic_loss, has_aux=True)(
        state.network.critic, target, state.normalizer, batch
    )
    assert float(loss) == pytest.approx((errors**2).mean(), rel=1e-4)
    assert float(metrics["value/mean"]) == pytest.approx(values.mean(), rel=1e-4)
    assert float(gradients.head.bias[0]) == pytest.approx(2 * errors.mean(), rel=1e-4)  # of targets held constant
    assert ddpg.loss is ddpg.critic_loss


class Bowl(eqx.Module):
    """Q(s, a) = -|a - best|²: a user's own critic."""

    best: jax.Array

    def __call__(self, observations, actions):
        return -jnp.sum((actions - self.best) ** 2, axis=-1)


class Slope(eqx.Module):
    """μ(s) = s W: a user's own actor."""

    weight: jax.Array

    def __call__(self, observations):
        return observations @ self.weight


class Own(eqx.Module):
    """A user's own network."""

    actor: Slope
    critic: Bowl
    bounds: ActionBounds

    def initial_memory(self, num_envs):
        return ()


def make_own(rng, observation_space, action_space):
    return Own(Slope(jnp.full((3, 2), 0.1)), Bowl(jnp.array([0.2, -0.3])), ActionBounds((-2.0, 0.0), (3.0, 10.0)))


def test_the_actors_gradient_is_the_deterministic_policy_gradient_of_eq_6():
    network = make_own(None, None, None)
    batch = transitions(16)
    gradients, _ = jax.grad(ddpg.actor_loss, has_aux=True)(
        network.actor, network.critic, fresh(SMALL).normalizer, batch
    )
    seen = batch.observations.astype(np.float64)
    slopes = -2 * (seen @ np.full((3, 2), 0.1) - [0.2, -0.3])  # ∇_a Q at μ(s)
    np.testing.assert_allclose(gradients.weight, -(seen.T @ slopes) / 16, rtol=1e-4, atol=1e-6)


def test_a_network_of_the_users_own_takes_a_cycles_steps_towards_its_critics_best_action():
    config = replace(SMALL, noise="gaussian", critic_learning_rate=0.0)
    state = ddpg.init(config, SEEN, BOX, make_own)
    after, *_ = update(state, rollout(config), sampled(transitions(8, 16)), config)
    before, now = (
        float(ddpg.actor_loss(s.network.actor, s.network.critic, s.normalizer, transitions(16))[0])
        for s in (state, after)
    )
    assert now < before
    assert isinstance(after.target, Own)


def test_after_each_gradient_step_the_target_networks_move_by_tau():
    config = replace(SMALL, target_rate=0.1)
    state = apart(config)
    after, (metrics, _) = learn(state, sampled(transitions(16)), config)
    jax.tree.map(
        lambda old, network, new: np.testing.assert_allclose(new, 0.9 * old + 0.1 * network, atol=1e-6),
        state.target,
        after.network,
        after.target,
    )
    assert int(after.gradient_steps) == 1
    assert all(np.isfinite(value) for value in metrics.values())


def test_the_actor_climbs_the_critic_after_its_step():
    state = apart()
    batch = transitions(16)
    after, (metrics, _) = learn(state, sampled(batch), replace(SMALL, critic_learning_rate=1e-1))
    old, new = (
        float(ddpg.actor_loss(state.network.actor, s.network.critic, s.normalizer, batch)[0]) for s in (state, after)
    )
    assert float(metrics["loss/policy"]) == pytest.approx(new, rel=1e-4)
    assert abs(old - new) > 1e-2


@pytest.mark.parametrize("part", ["actor", "critic"])
def test_each_of_the_two_learning_rates_is_of_its_own_network(part):
    config = replace(SMALL, **{f"{part}_learning_rate": 0.0})
    state = apart()
    after, *_ = update(state, rollout(config), sampled(transitions(8, 16)), config)
    moved = {
        name: any(
            np.any(a != b)
            for a, b in zip(*(jax.tree.leaves(getattr(s.network, name)) for s in (state, after)), strict=True)
        )
        for name in ("actor", "critic")
    }
    assert moved == {"actor": part == "critic", "critic": part == "actor"}


def test_adams_first_step_has_the_length_of_the_learning_rate_at_this_progress():
    config = replace(SMALL, critic_learning_rate=linear(2e-3, 0.0), optimizer_epsilon=1e-12)
    state = apart()._replace(env_steps=np.int32(500))
    after, metrics, _ = update(state, rollout(config), sampled(transitions(1, 16)), config)
    assert float(metrics["optimizer/learning_rate"]) == pytest.approx(1e-3)
    steps = [
        np.abs(a - b).max() for a, b in zip(*(jax.tree.leaves(s.network.critic) for s in (state, after)), strict=True)
    ]
    assert max(steps) == pytest.approx(1e-3, rel=1e-2)


# Probes: values and actions that are known


class Steady(gym.Env):
    """A reward of 1 at each of three steps, then the episode is cut, or terminates."""

    observation_space, action_space = spaces.Box(0, 3, (1,), np.float32), spaces.Box(-2, 3, (1,), np.float32)

    def __init__(self, terminates: bool) -> None:
        self.terminates = terminates
        self.time = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.time += 1
        last = self.time == 3
        seen = np.full(1, self.time if self.terminates else 0, np.float32)
        return seen, 1.0, last and self.terminates, last and not self.terminates, {}


PROBE = replace(
    SMALL,
    run=RunConfig(total_steps=1500),
    rollout_length=16,
    update_ratio=0.5,
    learning_starts=200,
    batch_size=64,
    replay_size=2000,
    discount=0.5,
    hidden_sizes=(32,),
    target_rate=0.05,
    actor_learning_rate=3e-3,
    critic_learning_rate=3e-3,
)


def value(state: ddpg.State, seen: float) -> float:
    return float(state.network.critic(jnp.array([seen]), state.network.actor(jnp.array([seen]))))


@pytest.mark.parametrize("terminates", [True, False])
def test_probe_where_an_episode_terminates_nothing_follows_and_where_it_is_cut_the_value_goes_on(terminates):
    if "tests/Steady-v0" not in gym.registry:
        gym.register("tests/Steady-v0", entry_point=Steady)
    *_, last = ddpg.train(
        replace(PROBE, env=EnvConfig("tests/Steady-v0", num_envs=ENVS, kwargs={"terminates": terminates}))
    )
    if terminates:
        assert [value(last.state, time) for time in (0, 1, 2)] == pytest.approx([1.75, 1.5, 1.0], abs=0.15)
    else:
        assert value(last.state, 0) == pytest.approx(2.0, abs=0.15)


@pytest.mark.parametrize("noise", sooner(["gaussian"], ["ou", "gaussian", "parameter"]))
def test_probe_the_best_action_of_a_box_with_bounds_that_are_not_symmetric(noise):
    env = EnvConfig("birl/ProbeContinuous-v0", num_envs=ENVS)
    # A smooth critic and falling rates: the peak is flat, and a rough one puts it up to 0.3 away.
    smooth: dict[str, Any] = {"hidden_sizes": (64, 64), "activation": "tanh", "update_ratio": 1.0}
    rates = {"actor_learning_rate": linear(1e-3, 1e-4), "critic_learning_rate": linear(3e-3, 1e-4)}
    run = RunConfig(total_steps=2500)
    *_, last = ddpg.train(replace(PROBE, env=env, run=run, noise=noise, **smooth, **rates))
    found = ddpg.act(
        ddpg.policy(last.state),
        np.array([[1], [-1]], np.float32),
        last.state.network.initial_memory(2),
        np.zeros(2, bool),
        None,
        None,
    )
    np.testing.assert_allclose(found.actions, [[0.5], [0.5]], atol=0.1)
    assert [value(last.state, sign) for sign in (1, -1)] == pytest.approx([0.0, 0.0], abs=0.15)


# Settings

WRONG: dict[str, dict[str, Any]] = {
    "rollout_length 0 must be at least 1": {"rollout_length": 0},
    "batch_size 0 must be at least 1": {"batch_size": 0},
    r"discount 1.5 must lie in \[0, 1\]": {"discount": 1.5},
    "target_rate 0.0 must be positive; 0.005 is usual": {"target_rate": 0.0},
    "learning_starts -1 must not be negative": {"learning_starts": -1},
    "replay_size 31 must hold a rollout: 8 steps of 4 environments": {"replay_size": 31},
    "actor_learning_rate -0.1 must not be negative": {"actor_learning_rate": linear(1e-3, -0.1)},
    "critic_learning_rate -1.0 must not be negative": {"critic_learning_rate": -1.0},
    "exploration_noise -0.1 must not be negative": {"exploration_noise": -0.1},
    "noise_rate 0.0 must be positive; 0.15 is usual": {"noise_rate": 0.0},
    "noise_rate 4.0 times noise_time_step 0.5 must be below 2": {"noise_rate": 4.0, "noise_time_step": 0.5},
    "noise_adaptation 1.0 must be above 1; 1.01 is usual": {"noise_adaptation": 1.0},
    "noise parameter with layer_norm False.*use layer_norm True": {"noise": "parameter", "layer_norm": False},
    "exploration_noise reaches 0, and parameter noise cannot adapt": {
        "noise": "parameter",
        "exploration_noise": linear(0.2, 0.0),
    },
    r"hidden_sizes \(8, 0\) must each be at least 1": {"hidden_sizes": (8, 0)},
    "ddpg takes Box actions with finite bounds, and action space Discrete.*algorithms that take it: .*dqn": {
        "env": EnvConfig("CartPole-v1", num_envs=4)
    },
}


@pytest.mark.parametrize(("message", "changes"), WRONG.items(), ids=WRONG)
def test_a_setting_that_cannot_work_is_named_with_its_value_and_what_to_use_before_the_first_step(message, changes):
    with pytest.raises(ConfigError, match=message):
        next(ddpg.train(replace(SMALL, **changes)))
