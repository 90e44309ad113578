"""Brax's environments, where Brax is installed: pip install '.[brax]'."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from birl.config import ConfigError, EnvConfig
from birl.envs.compiled.copies import require_compiles
from birl.envs.compiled.interface import HasRender
from birl.envs.registration import make_compiled
from tests.envs.compiled.lessons import first_end, play_id, require_same_for_same_key

pytest.importorskip("brax")
NAMES = ["ant", "halfcheetah", "hopper", "humanoid", "inverted_double_pendulum", "inverted_pendulum", "walker2d"]
PENDULUM = "brax/inverted_pendulum"
FALLEN = 0.2  # radians
SPRING = {"backend": "spring"}  # compiles fastest


def made(name: str, **kwargs: object):
    return make_compiled(EnvConfig(f"brax/{name}", kwargs=kwargs))


@pytest.mark.parametrize("name", NAMES)
def test_spaces_are_those_of_reset_and_step(name: str) -> None:
    env = made(name)
    require_compiles(env, name)
    state, _ = jax.eval_shape(env.reset, jax.random.PRNGKey(0))
    action = jnp.zeros(env.action_space.shape)
    stepped = jax.eval_shape(env.step, state, action, jax.random.PRNGKey(0))
    assert [leaf.dtype for leaf in jax.tree.leaves(state)] == [leaf.dtype for leaf in jax.tree.leaves(stepped[0])]
    assert (stepped[2].dtype, stepped[3].dtype, stepped[4].dtype) == (np.float32, bool, bool)
    assert env.action_space == spaces.Box(-1, 1, (env.env.action_size,))


def test_a_fall_terminates_and_its_observation_is_that_of_the_fall() -> None:
    played = play_id(PENDULUM, 1.0, 60, kwargs=SPRING).steps
    end = first_end(played.terminated)
    assert not played.truncated.any()
    assert abs(played.observations[end, 0, 1]) > FALLEN >= abs(played.observations[end - 1, 0, 1])
    assert not played.valid[end + 1, 0]
    assert np.abs(played.observations[end + 1, 0]).max() <= 0.01 + 1e-6


def test_the_limit_truncates() -> None:
    assert made("inverted_pendulum").max_episode_steps == 1000
    played = play_id(PENDULUM, 0.0, 8, kwargs=SPRING, max_episode_steps=5).steps
    assert first_end(played.truncated) == 4
    assert not played.terminated.any()


def test_the_same_key_gives_the_same_trajectory() -> None:
    require_same_for_same_key(PENDULUM, 0.3, kwargs=SPRING)


def test_a_step_leaves_the_state_before_it_alone() -> None:
    env = made("hopper", **SPRING)
    shapes, _ = jax.eval_shape(env.reset, jax.random.PRNGKey(0))
    state = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    metrics = dict(state.metrics)
    jax.make_jaxpr(lambda: env.step(state, jnp.zeros(3), jax.random.PRNGKey(0)))()
    assert metrics
    assert all(state.metrics[name] is metrics[name] for name in metrics)


def test_what_is_wrong_is_said() -> None:
    with pytest.raises(ConfigError, match=r"brax/hoper' is not an environment of Brax; use one of hopper"):
        made("hoper")
    with pytest.raises(ConfigError, match=r"env.kwargs .*'magic'.* do not fit env.id 'brax/hopper': backend should be"):
        made("hopper", backend="magic")
    with pytest.raises(ConfigError, match=r"env.kwargs .*'colour'.* do not fit env.id 'brax/hopper'"):
        made("hopper", colour="red")


def test_it_is_drawn() -> None:
    mujoco = pytest.importorskip("mujoco")
    env = made("inverted_pendulum", **SPRING)
    assert isinstance(env, HasRender)
    try:
        picture = env.render(jax.jit(env.reset)(jax.random.PRNGKey(0))[0])
    except (mujoco.FatalError, RuntimeError) as problem:
        pytest.skip(f"OpenGL cannot draw off screen here: {problem}")
    assert picture.shape == (240, 320, 3)
    assert picture.dtype == np.uint8
    assert len(np.unique(picture)) > 10
