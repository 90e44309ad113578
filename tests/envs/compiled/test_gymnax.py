"""gymnax's environments, with whichever version of gymnax is installed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from birl.config import ConfigError, EnvConfig
from birl.envs.compiled.classic import CartPole
from birl.envs.compiled.copies import require_compiles
from birl.envs.compiled.interface import HasRender
from birl.envs.registration import make_compiled
from tests.envs.compiled.lessons import first_end, play_id, require_same_for_same_key

gymnax = pytest.importorskip("gymnax")
BROKEN = {  # in gymnax itself
    "MNISTBandit-bsuite",  # downloads its images
    "SimpleBandit-bsuite",  # 0.0.9: its observation has no axes
}
NAMES = [name for name in gymnax.registered_envs if name not in BROKEN]
RIGHT = 1
FALLEN = 12 * np.pi / 180  # radians


def made(name: str, **kwargs: object):
    return make_compiled(EnvConfig(f"gymnax/{name}", kwargs=kwargs))


@pytest.mark.parametrize("name", NAMES)
def test_spaces_are_those_of_reset_and_step(name: str) -> None:
    env = made(name)
    require_compiles(env, name)
    state, observation = jax.eval_shape(env.reset, jax.random.PRNGKey(0))
    action = jnp.zeros(env.action_space.shape, jnp.int32 if isinstance(env.action_space, spaces.Discrete) else float)
    stepped = jax.eval_shape(env.step, state, action, jax.random.PRNGKey(0))
    assert [leaf.dtype for leaf in jax.tree.leaves(state)] == [leaf.dtype for leaf in jax.tree.leaves(stepped[0])]
    if isinstance(env.observation_space, spaces.Box):
        assert observation.dtype == stepped[1].dtype == env.observation_space.dtype == np.float32
    assert (stepped[2].dtype, stepped[3].dtype, stepped[4].dtype) == (np.float32, bool, bool)
    assert env.max_episode_steps == env.params.max_steps_in_episode


def test_a_fall_terminates_and_its_observation_is_that_of_the_fall() -> None:
    played = play_id("gymnax/CartPole-v1", RIGHT, 30).steps
    end = first_end(played.terminated)
    assert not played.truncated.any()
    assert abs(played.observations[end, 0, 2]) > FALLEN >= abs(played.observations[end - 1, 0, 2])
    # The step after the end begins the next episode, and is no transition.
    assert not played.valid[end + 1, 0]
    assert np.abs(played.observations[end + 1, 0]).max() <= 0.05
    assert played.rewards[: end + 1, 0].tolist() == [1.0] * (end + 1)


def test_the_limit_truncates() -> None:
    played = play_id("gymnax/CartPole-v1", RIGHT, 30, kwargs={"max_steps_in_episode": 5}).steps
    assert first_end(played.truncated) == 4
    assert not played.terminated.any()


def test_an_environment_that_never_terminates_is_truncated_at_its_own_limit() -> None:
    played = play_id("gymnax/Pendulum-v1", 0.5, 201).steps
    assert played.truncated[199].all()
    assert played.truncated.sum() == 4
    assert not played.terminated.any()


def test_a_fall_at_the_limit_is_a_fall() -> None:
    end = first_end(play_id("gymnax/CartPole-v1", RIGHT, 30).steps.terminated)
    limited = play_id("gymnax/CartPole-v1", RIGHT, 30, kwargs={"max_steps_in_episode": end + 1}).steps
    assert limited.terminated[end, 0]
    assert not limited.truncated[end, 0]


def test_a_longer_limit_of_the_settings_replaces_that_of_gymnax() -> None:
    played = play_id(
        "gymnax/SpaceInvaders-MinAtar", 0, 20, kwargs={"max_steps_in_episode": 5}, max_episode_steps=12
    ).steps
    assert first_end(played.truncated) == 11
    assert not played.terminated.any()


def test_breakout_is_lost_where_the_ball_passes_the_paddle() -> None:
    played = play_id("gymnax/Breakout-MinAtar", 0, 40).steps
    end = first_end(played.terminated)
    ball = np.argwhere(played.observations[end, 0, :, :, 1])[0]
    paddle = np.argwhere(played.observations[end, 0, :, :, 0])[0]
    assert ball[0] == paddle[0] == 9
    assert ball[1] != paddle[1]


def test_an_observation_that_shows_the_time_left_sees_the_true_limit() -> None:
    played = play_id("gymnax/DiscountingChain-bsuite", 0, 10).steps
    np.testing.assert_allclose(played.observations[:, 0, 1], np.arange(1, 11) / 100, rtol=1e-6)


def test_cartpole_moves_as_birls() -> None:
    theirs, ours = made("CartPole-v1"), CartPole()
    state, observation = theirs.reset(jax.random.PRNGKey(5))
    for action in (1, 1, 0, 1, 0):
        state, seen, *_ = theirs.step(state, jnp.int32(action), jax.random.PRNGKey(0))
        _, observation, *_ = ours.step(observation, jnp.int32(action), jax.random.PRNGKey(0))
        np.testing.assert_allclose(seen, observation, rtol=0, atol=1e-6)


def test_the_same_key_gives_the_same_trajectory() -> None:
    require_same_for_same_key("gymnax/Catch-bsuite", 1)


def test_parameters_and_arguments_are_set_by_name() -> None:
    env = made("Breakout-MinAtar", use_minimal_action_set=False, max_steps_in_episode=70)
    assert env.action_space == spaces.Discrete(6)
    assert env.max_episode_steps == 70
    assert made("CartPole-v1", gravity=3.7).params.gravity == 3.7


def test_what_is_wrong_is_said() -> None:
    with pytest.raises(ConfigError, match=r"gymnax/Breakout-MinAtra' is not .* use one of Breakout-MinAtar"):
        made("Breakout-MinAtra")
    with pytest.raises(ConfigError, match=r"env.kwargs .*'colour'.* do not fit env.id 'gymnax/CartPole-v1'"):
        made("CartPole-v1", colour="red")
    with pytest.raises(ConfigError, match="max_steps_in_episode 0 is too small"):
        made("CartPole-v1", max_steps_in_episode=0)


def test_a_grid_is_drawn_and_a_vector_is_not() -> None:
    env = made("Breakout-MinAtar")
    assert isinstance(env, HasRender)
    picture = env.render(env.reset(jax.random.PRNGKey(0))[0])
    assert picture.shape == (240, 240, 3)
    assert picture.dtype == np.uint8
    cells = picture[12::24, 12::24]
    assert len({tuple(color) for color in cells[1:3].reshape(-1, 3)}) == 1  # bricks
    assert len({tuple(color) for color in cells.reshape(-1, 3)}) >= 4
    assert not isinstance(made("CartPole-v1"), HasRender)


def test_whole_numbers_in_a_box_of_floats_become_floats() -> None:
    env = made("FourRooms-misc")
    _, observation = env.reset(jax.random.PRNGKey(0))
    assert observation.dtype == env.observation_space.dtype == np.float32
