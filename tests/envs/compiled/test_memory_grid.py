"""MemoryGrid: what can be seen, what a policy with memory reaches, what one without cannot."""

from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from birl.config import ConfigError, EnvConfig
from birl.envs.compiled.copies import copies_of
from birl.envs.compiled.memory_grid import BLUE, MIDDLE, RED, MemoryGrid, MemoryGridState
from birl.envs.registration import make_compiled

KEY = jax.random.PRNGKey(0)
UP, DOWN, LEFT, RIGHT = range(4)


def at(row: int, column: int, lamp: int) -> MemoryGridState:
    return MemoryGridState(jnp.array([row, column]), jnp.array(lamp))


def test_the_lamp_is_seen_only_from_the_start():
    env = MemoryGrid(length=5)
    red, blue = ([np.asarray(env.observe(at(MIDDLE, column, lamp))) for column in range(1, 7)] for lamp in (RED, BLUE))
    assert (red[0] != blue[0]).any()
    for seen_with_red, seen_with_blue in zip(red[1:], blue[1:], strict=True):
        np.testing.assert_array_equal(seen_with_red, seen_with_blue)
    for row in (MIDDLE - 1, MIDDLE + 1):
        np.testing.assert_array_equal(env.observe(at(row, 6, RED)), env.observe(at(row, 6, BLUE)))


@pytest.mark.parametrize("lamp", [RED, BLUE])
@pytest.mark.parametrize("length", [1, 8, 20])
def test_who_remembers_the_lamp_always_finds_the_right_door(length, lamp):
    env = MemoryGrid(length)
    state, rewards = at(MIDDLE, 1, lamp), []
    for action in [RIGHT] * length + [UP if lamp == RED else DOWN]:
        state, _, reward, terminated, _ = env.step(state, jnp.array(action), KEY)
        rewards.append(float(reward))
    assert terminated
    assert rewards == [0.0] * length + [1.0]


@pytest.mark.parametrize("lamp", [RED, BLUE])
def test_the_wrong_door_ends_the_episode_without_reward(lamp):
    env = MemoryGrid(length=3)
    _, _, reward, terminated, _ = env.step(at(MIDDLE, 4, lamp), jnp.array(DOWN if lamp == RED else UP), KEY)
    assert terminated
    assert reward == 0.0


@pytest.mark.parametrize(("column", "action"), [(1, LEFT), (1, UP), (1, DOWN), (3, UP), (3, DOWN), (4, RIGHT)])
def test_walls_and_the_lamp_stop_the_agent(column, action):
    after, _, reward, terminated, _ = MemoryGrid(length=3).step(at(MIDDLE, column, RED), jnp.array(action), KEY)
    np.testing.assert_array_equal(after.cell, [MIDDLE, column])
    assert reward == 0.0
    assert not terminated


def test_no_policy_without_memory_succeeds_in_more_than_half_of_the_episodes():
    """All of them: every way to give each observation an action."""
    env = MemoryGrid(length=4)
    cells = [at(MIDDLE, column, lamp) for column in range(1, 6) for lamp in (RED, BLUE)]
    seen = np.unique([np.asarray(env.observe(state)) for state in cells], axis=0)
    policies = jnp.array(list(product(range(4), repeat=len(seen))))
    assert len(policies) == 4**5  # the start with either lamp, the corridor, the cell before the doors, between them

    def success(policy: jax.Array, lamp: jax.Array) -> jax.Array:
        def one(carry, _):
            state, over, total = carry
            which = jnp.argmax((env.observe(state) == seen).all(axis=1))
            state, _, reward, terminated, _ = env.step(state, policy[which], KEY)
            return (state, over | terminated, total + jnp.where(over, 0.0, reward)), None

        start = (MemoryGridState(jnp.array([MIDDLE, 1]), lamp), jnp.bool_(False), jnp.float32(0.0))
        return jax.lax.scan(one, start, length=env.max_episode_steps)[0][2]

    rates = jax.jit(jax.vmap(lambda policy: jax.vmap(success, (None, 0))(policy, jnp.array([RED, BLUE])).mean()))
    assert rates(policies).max() == 0.5


def test_both_lamps_are_equally_likely_and_a_key_gives_one_episode():
    env = MemoryGrid()
    keys = jax.random.split(KEY, 10_000)
    states, observations = jax.vmap(env.reset)(keys)
    assert abs(float((states.lamp == RED).mean()) - 0.5) < 0.025  # 5 σ
    again = jax.vmap(env.reset)(keys)
    jax.tree.map(np.testing.assert_array_equal, again, (states, observations))
    assert len(np.unique(np.asarray(observations), axis=0)) == 2


def test_random_walks_stay_within_the_observation_space_and_are_cut_at_the_limit():
    copies = copies_of(EnvConfig("birl/MemoryGrid-v0", backend="compiled", num_envs=64, kwargs={"length": 6}))
    assert copies.limit == 70

    def one(now, key):
        now, step = copies.step(now, jax.random.randint(key, (64,), 0, 4))
        return now, (step, now.lengths)

    _, (steps, lengths) = jax.lax.scan(one, copies.reset(KEY), jax.random.split(KEY, 500))
    assert all(copies.spaces[0].contains(each) for each in np.asarray(steps.observations).reshape(-1, 36)[:1000])
    assert (np.asarray(lengths)[np.asarray(steps.truncated)] == 70).all()
    assert np.asarray(steps.truncated).any()
    assert np.asarray(steps.terminated).any()
    assert set(np.unique(steps.rewards)) == {0.0, 1.0}


@pytest.mark.parametrize("length", [0, -3, 2.5, "8"])
def test_a_length_that_is_no_corridor_is_refused(length):
    with pytest.raises(ConfigError, match=r"length .* must be a whole number of at least 1"):
        make_compiled(EnvConfig("birl/MemoryGrid-v0", backend="compiled", kwargs={"length": length}))


def test_the_picture_shows_lamp_and_agent():
    env = MemoryGrid(length=8)
    red, blue = (env.render(at(MIDDLE, 3, lamp)) for lamp in (RED, BLUE))
    assert red.shape == (5 * 32, 11 * 32, 3)
    assert red.dtype == np.uint8
    different = (red != blue).any(axis=2)
    assert different[64:96, :32].all()
    assert not different[:, 32:].any()
    moved = (env.render(at(MIDDLE, 4, RED)) != red).any(axis=2)
    assert moved[80, 3 * 32 + 16]
    assert moved[80, 4 * 32 + 16]
