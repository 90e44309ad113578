"""Jumanji's environments, where Jumanji is installed: pip install '.[jumanji]'."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from birl.config import ConfigError, EnvConfig
from birl.envs.compiled.copies import copies_of, require_compiles
from birl.envs.registration import make_compiled
from tests.envs.compiled.lessons import first_end, play_id, require_same_for_same_key

pytest.importorskip("jumanji")
NAMES = ["Snake-v1", "Game2048-v1", "Maze-v0", "RubiksCube-v0", "Minesweeper-v0", "Tetris-v0", "TSP-v1", "BinPack-v2"]
SNAKE = "jumanji/Snake-v1"
UP = 0


def made(name: str, **kwargs: object):
    return make_compiled(EnvConfig(f"jumanji/{name}", kwargs=kwargs))


@pytest.mark.parametrize("name", NAMES)
def test_spaces_are_those_of_reset_and_step(name: str) -> None:
    env = made(name)
    require_compiles(env, name)
    state, _ = jax.eval_shape(env.reset, jax.random.PRNGKey(0))
    action = jnp.zeros(env.action_space.shape, jnp.int32)
    stepped = jax.eval_shape(env.step, state, action, jax.random.PRNGKey(0))
    assert [leaf.dtype for leaf in jax.tree.leaves(state)] == [leaf.dtype for leaf in jax.tree.leaves(stepped[0])]
    assert (stepped[2].dtype, stepped[3].dtype, stepped[4].dtype) == (np.float32, bool, bool)


def test_the_wall_terminates_and_the_state_is_not_that_of_a_reset() -> None:
    played = play_id(SNAKE, UP, 30)
    end = first_end(played.steps.terminated)
    assert not played.steps.truncated.any()
    assert played.states.step_count[end : end + 2, 0].tolist() == [end + 1, 0]
    assert played.steps.valid[end : end + 2, 0].tolist() == [True, False]


def test_the_limit_truncates_and_the_observation_is_the_last_of_the_episode() -> None:
    assert made("Snake-v1").max_episode_steps == 4000
    played = play_id("jumanji/RubiksCube-v0", jnp.zeros(3, jnp.int32), 8, kwargs={"time_limit": 5})
    cubes = played.steps.observations["cube"]
    assert first_end(played.steps.truncated) == 4
    assert not played.steps.terminated.any()
    # Four turns of a face are none; the fifth is the first again. Then comes another cube.
    np.testing.assert_array_equal(cubes[4], cubes[0])
    assert not np.array_equal(cubes[5], cubes[1])


def test_the_count_of_steps_is_not_observed() -> None:
    assert "step_count" not in made("Snake-v1").observation_space.spaces


def test_the_wall_at_the_limit_is_the_wall() -> None:
    end = first_end(play_id(SNAKE, UP, 30).steps.terminated)
    limited = play_id(SNAKE, UP, 30, kwargs={"time_limit": end + 1}).steps
    assert limited.terminated[end, 0]
    assert not limited.truncated[end, 0]


def test_actions_into_the_wall_are_masked() -> None:
    played = play_id(SNAKE, UP, 30).steps
    end = first_end(played.terminated)
    assert played.action_masks is not None
    assert not played.action_masks[end - 1, 0, UP]
    assert "action_mask" not in played.observations


def test_a_mask_over_combinations_makes_them_one_choice() -> None:
    env = made("Minesweeper-v0")
    assert env.action_space == spaces.Discrete(100)
    state, before = jax.jit(env.reset)(jax.random.PRNGKey(0))
    _, after, *_ = jax.jit(env.step)(state, jnp.int32(37), jax.random.PRNGKey(0))
    assert np.argwhere(np.asarray(before["board"] != after["board"])).tolist() == [[3, 7]]
    assert np.flatnonzero(np.asarray(before["action_mask"] != after["action_mask"])).tolist() == [37]


def test_masks_of_the_parts_of_an_action_lie_side_by_side() -> None:
    copies = copies_of(EnvConfig("jumanji/Cleaner-v0", num_envs=2))
    assert copies.spaces[1] == spaces.MultiDiscrete([4, 4, 4])
    masks = jax.jit(copies.reset)(jax.random.PRNGKey(0)).masks
    assert masks is not None
    # All three begin in the corner above on the left: they cannot go up or left.
    assert masks.shape == (2, 12)
    assert not masks.reshape(2, 3, 4)[:, :, [0, 3]].any()


def test_the_same_key_gives_the_same_trajectory() -> None:
    require_same_for_same_key("jumanji/Game2048-v1", UP)


def test_what_is_wrong_is_said() -> None:
    with pytest.raises(ConfigError, match=r"jumanji/Snake-v0' is not an environment of Jumanji; use one of Snake-v1"):
        made("Snake-v0")
    with pytest.raises(ConfigError, match=r"'time_limit': 0.* do not fit env.id 'jumanji/RubiksCube-v0'"):
        made("RubiksCube-v0", time_limit=0)
    with pytest.raises(ConfigError, match=r"step returned reward float32\[10\]; return one number"):
        copies_of(EnvConfig("jumanji/Connector-v3"))
    with pytest.raises(ConfigError, match="actions that are whole numbers and no choices"):
        made("MultiCVRP-v0")
