"""MuJoCo Playground's environments, where it is installed: pip install '.[playground]'."""

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

pytest.importorskip("mujoco_playground")
NAMES = ["CartpoleBalance", "CheetahRun"]  # of the Control Suite: nothing is downloaded
CARTPOLE = "playground/CartpoleBalance"


def made(name: str, **kwargs: object):
    return make_compiled(EnvConfig(f"playground/{name}", kwargs=kwargs))


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
    assert env.max_episode_steps == 1000


def test_the_limit_truncates_and_the_observation_is_not_that_of_a_reset() -> None:
    played = play_id(CARTPOLE, 1.0, 32, kwargs={"episode_length": 30}).steps
    assert first_end(played.truncated) == 29
    assert not played.terminated.any()
    moved = np.abs(played.observations[:, 0, 0])  # the cart is pushed to one side
    assert moved[29] > moved[28] > moved[30]
    assert not played.valid[30, 0]


def test_a_state_that_is_no_number_terminates() -> None:
    env = made("CartpoleBalance")
    state, _ = jax.jit(env.reset)(jax.random.PRNGKey(0))
    broken = state.replace(data=state.data.replace(qvel=state.data.qvel * jnp.nan))
    step = jax.jit(env.step)
    assert step(broken, jnp.zeros(1), jax.random.PRNGKey(0))[3]
    assert not step(state, jnp.zeros(1), jax.random.PRNGKey(0))[3]


def test_the_same_key_gives_the_same_trajectory() -> None:
    require_same_for_same_key(CARTPOLE, 0.3)


def test_what_is_wrong_is_said() -> None:
    with pytest.raises(ConfigError, match=r"playground/CartpoleBalanc' is not .* use CartpoleBalance"):
        made("CartpoleBalanc")
    with pytest.raises(
        ConfigError, match=r"env.kwargs 'ctrl_td' is no entry of 'playground/CartpoleBalance'; .*ctrl_dt"
    ):
        made("CartpoleBalance", ctrl_td=0.02)
    with pytest.raises(ConfigError, match=r"env.kwargs .*'long'.* do not fit env.id 'playground/CartpoleBalance'"):
        made("CartpoleBalance", ctrl_dt="long")
    with pytest.raises(ConfigError, match=r"action_repeat 2 .* leave it at 1"):
        made("CartpoleBalance", action_repeat=2)


def test_it_can_be_drawn() -> None:
    assert isinstance(made("CartpoleBalance"), HasRender)
