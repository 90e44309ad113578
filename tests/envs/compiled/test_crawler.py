"""Crawler: physics with known results, finite numbers, and a gait that is worth learning."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from birl.config import EnvConfig
from birl.envs.compiled import crawler
from birl.envs.compiled.copies import copies_of
from birl.envs.compiled.crawler import Crawler, CrawlerState, contacts, substep

ENV = Crawler()
KEY = jax.random.PRNGKey(0)


def gait(steps: int) -> jax.Array:
    """[steps, 2] torques by the clock: the shoulder presses the tip down, the elbow pulls."""
    pressing = jnp.arange(steps) % 23 < 10
    return jnp.where(pressing[:, None], jnp.array([-1.0, 0.25]), jnp.array([0.0, -0.5]))


@jax.jit
def rolled(state: CrawlerState, actions: jax.Array) -> tuple[CrawlerState, jax.Array, jax.Array]:
    """The states, observations and rewards of T steps, whatever ends."""

    def one(state, action):
        state, observation, reward, _, _ = ENV.step(state, action, KEY)
        return state, (state, observation, reward)

    return jax.lax.scan(one, state, actions)[1]


def flying(key: jax.Array) -> CrawlerState:
    positions = jnp.array([0.0, 1.5, 0.3, 0.4, -1.0])
    return CrawlerState(positions, jax.random.uniform(key, (5,), minval=-2.0, maxval=2.0))


def test_in_the_air_it_falls_as_a_stone_whatever_the_motors_do():
    state = flying(KEY)
    after = jax.lax.fori_loop(0, 50, lambda _, state: substep(state, jnp.array([3.0, -3.0])), state)
    seconds = 50 * crawler.SECONDS
    np.testing.assert_allclose(after.velocities[0], state.velocities[0], atol=1e-6)
    np.testing.assert_allclose(after.velocities[1], state.velocities[1] - 9.81 * seconds, atol=1e-5)
    np.testing.assert_allclose(after.velocities[2], state.velocities[2], atol=1e-6)
    np.testing.assert_allclose(after.positions[0], state.velocities[0] * seconds, atol=1e-5)
    assert after.velocities[3] != state.velocities[3]


def test_at_rest_the_ground_carries_its_weight():
    state, _ = ENV.reset(KEY)
    states, _, rewards = rolled(state, jnp.zeros((250, 2)))
    depths = np.asarray(contacts(jax.tree.map(lambda x: x[-1], states).positions))[:2, 1]
    np.testing.assert_allclose(-crawler.STIFFNESS * depths.sum(), crawler.BODY_MASS * 9.81, rtol=1e-3)
    np.testing.assert_allclose(states.velocities[-1], 0.0, atol=1e-4)
    assert abs(float(rewards.sum())) < 1e-3


def test_a_sliding_box_is_stopped_by_coulombs_friction():
    """v² / 2 μ g from 1 m/s, with the arm in the air."""
    state, _ = ENV.reset(KEY)
    state = jax.tree.map(lambda x: x[-1], rolled(state, jnp.zeros((100, 2)))[0])
    begin = state.positions[0]
    state = state._replace(velocities=state.velocities.at[0].set(1.0))
    after = jax.tree.map(lambda x: x[-1], rolled(state, jnp.zeros((50, 2)))[0])
    np.testing.assert_allclose(after.positions[0] - begin, 1 / (2 * 0.3 * 9.81), rtol=0.05)
    assert abs(after.velocities[0]) < 1e-5


def energy(state: CrawlerState) -> jax.Array:
    """Of motion, of height, and in the springs of the ground."""
    depths = jnp.maximum(-contacts(state.positions)[:, 1], 0.0)
    motion = 0.5 * jnp.sum(crawler.INERTIAS * state.velocities**2)
    return motion + crawler.BODY_MASS * 9.81 * state.positions[1] + 0.5 * crawler.STIFFNESS * jnp.sum(depths**2)


@pytest.mark.parametrize(("parts", "most_rise"), [(1, 0.2), (4, 0.01)])
def test_without_torque_energy_is_only_lost(parts, most_rise):
    """In 200 falls with random spins.

    It may rise by the integrator's error in the first substep of a hard impact, by a share of what
    there was at first that vanishes with the substep.
    """
    seconds = crawler.SECONDS / parts

    def fall(key):
        state = flying(key)
        state = state._replace(positions=state.positions.at[1].set(0.4))

        def one(state, _):
            state = substep(state, jnp.zeros(2), seconds)
            return state, energy(state)

        _, energies = jax.lax.scan(one, state, length=500 * parts)
        return jnp.concatenate([energy(state)[None], energies])

    energies = np.asarray(jax.jit(jax.vmap(fall))(jax.random.split(KEY, 200)))
    most_from_here_on = np.maximum.accumulate(energies[:, ::-1], axis=1)[:, ::-1]
    assert ((most_from_here_on - energies).max(axis=1) < most_rise * energies[:, 0]).all()
    assert (energies[:, -1] < 0.6 * energies[:, 0]).all()


def test_shorter_substeps_give_nearly_the_same_motion():
    def end_of_gait(parts: int) -> np.ndarray:
        def one(state, action):
            torques, seconds = crawler.TORQUE * action, crawler.SECONDS / parts
            count = parts * crawler.SUBSTEPS
            return jax.lax.fori_loop(0, count, lambda _, state: substep(state, torques, seconds), state), None

        return np.asarray(jax.lax.scan(one, ENV.reset(KEY)[0], gait(250))[0].positions)

    coarse, fine = end_of_gait(1), end_of_gait(8)
    assert fine[0] > 1.0  # a metre in ten seconds
    np.testing.assert_allclose(coarse[0], fine[0], rtol=0.08)
    np.testing.assert_allclose(coarse[1:], fine[1:], atol=0.15)


@pytest.mark.parametrize("extreme", [False, True])
def test_numbers_stay_finite_for_10_000_steps_of_any_actions(extreme):
    """Without a reset, also after it has fallen over."""

    def run(key):
        random_actions = jax.random.uniform(key, (10_000, 2), minval=-1.0, maxval=1.0)
        held = jnp.repeat(jax.random.rademacher(key, (10_000 // 8, 2), jnp.float32), 8, axis=0)
        state, _ = ENV.reset(key)
        return rolled(state, 1e6 * held if extreme else random_actions)

    states, observations, rewards = jax.vmap(run)(jax.random.split(KEY, 8))
    assert np.isfinite(np.asarray(states.positions)).all()
    assert np.isfinite(np.asarray(rewards)).all()
    assert (np.abs(np.asarray(observations)) < 50).all()
    angles = np.asarray(states.positions)[..., 3:]
    assert (angles > crawler.LEAST_ANGLES - 1e-5).all()
    assert (angles < crawler.MOST_ANGLES + 1e-5).all()


def test_a_gait_gets_further_than_any_constant_action_and_than_random_ones():
    state, _ = ENV.reset(KEY)
    sides = jnp.linspace(-1.0, 1.0, 21)
    constants = jnp.stack(jnp.meshgrid(sides, sides), axis=-1).reshape(-1, 1, 2).repeat(250, axis=1)
    random_actions = jax.random.uniform(KEY, (200, 250, 2), minval=-1.0, maxval=1.0)
    best_constant, best_random = (
        float(jax.vmap(rolled, (None, 0))(state, actions)[2].sum(axis=1).max())
        for actions in (constants, random_actions)
    )
    assert best_constant < 8
    assert best_random < 0
    assert float(rolled(state, gait(250))[2].sum()) > 15


def test_an_episode_is_cut_after_250_steps_and_a_key_gives_one_episode():
    copies = copies_of(EnvConfig("birl/Crawler-v0", backend="compiled", num_envs=4))
    assert copies.limit == 250

    @jax.jit
    def run(key):
        return jax.lax.scan(copies.step, copies.reset(key), jnp.stack([gait(260)] * 4, axis=1))[1]

    once, again, other = run(KEY), run(KEY), run(jax.random.PRNGKey(1))
    jax.tree.map(np.testing.assert_array_equal, once, again)
    assert (np.asarray(once.rewards) != np.asarray(other.rewards)).any()
    np.testing.assert_array_equal(np.asarray(once.truncated).argmax(axis=0), 249)
    assert all(copies.spaces[0].contains(each) for each in np.asarray(once.observations).reshape(-1, 10))


def test_an_episode_ends_when_it_has_fallen_over():
    state, _ = ENV.reset(KEY)
    for pitch, over in ((1.0, False), (1.4, True), (-1.4, True)):
        tilted = state._replace(positions=state.positions.at[1].set(1.0).at[2].set(pitch))
        assert bool(ENV.step(tilted, jnp.zeros(2), KEY)[3]) == over


def test_the_cost_of_torque_is_a_setting():
    state, action = ENV.reset(KEY)[0], jnp.array([1.0, -0.5])
    free, dear = (Crawler(weight).step(state, action, KEY)[2] for weight in (0.0, 2.0))
    np.testing.assert_allclose(free - dear, 2.0 * 1.25, rtol=1e-5)


def test_the_picture_moves_with_the_robot():
    state, _ = ENV.reset(KEY)
    picture = ENV.render(state)
    assert picture.shape == (240, 480, 3)
    assert picture.dtype == np.uint8
    assert len(np.unique(picture.reshape(-1, 3), axis=0)) == 7  # sky, two of ground, box, links, joints, tip
    forward = ENV.render(state._replace(positions=state.positions.at[0].add(0.4)))  # two marks
    assert (picture != forward).any(axis=2).mean() < 0.002  # the edges of the marks are rounded
    between = ENV.render(state._replace(positions=state.positions.at[0].add(0.1)))
    assert (picture != between).any(axis=2).mean() > 0.02
