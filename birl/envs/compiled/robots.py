"""Environments with the interface of Brax, which MuJoCo Playground has too."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from birl.types import Array, PyTree


@dataclass(frozen=True, eq=False)
class Robot:
    """An environment whose state has `obs`, `reward` and `done`, without wrappers for training.

    Those wrappers reset episodes and count steps, which Birl does.
    """

    env: Any
    observation_space: gym.Space
    action_space: gym.Space
    max_episode_steps: int
    render: Callable[[Any], np.ndarray]

    def reset(self, key: Array) -> tuple[PyTree, PyTree]:
        """The beginning of an episode."""
        state = self.env.reset(key)
        state = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.asarray(leaf).dtype), state)
        return state, state.obs

    def step(self, state: PyTree, action: Array, key: Array) -> tuple[PyTree, PyTree, Array, Array, Array]:
        """One step; what is random comes from a key in the state.

        `done` is never because of the time limit, which is in a wrapper. `info["time_out"]` of some
        environments is the same `done`, whatever its name says.
        """
        # The dicts of a state are written into, so that of the caller is copied.
        after = self.env.step(jax.tree.map(lambda leaf: leaf, state), action)
        after = jax.tree.map(lambda new, old: jnp.asarray(new, old.dtype), after, state)
        return after, after.obs, jnp.float32(after.reward), after.done > 0, jnp.bool_(False)


def make_robot(env: Any, limit: int, render: Callable[[Any], np.ndarray]) -> Robot:
    """The environment with its spaces: actions from -1 to 1, observations without bounds."""
    observation = jax.eval_shape(env.reset, jax.random.PRNGKey(0)).obs
    return Robot(env, _observation_space(observation), spaces.Box(-1.0, 1.0, (env.action_size,)), limit, render)


def first_camera(model: Any) -> str | None:
    """The name of the first camera of a MuJoCo model, which mostly follows the robot."""
    return model.camera(0).name if model.ncam else None


def _observation_space(observation: Any) -> gym.Space:
    """One array, or a Dict of them."""
    if isinstance(observation, jax.ShapeDtypeStruct):
        return spaces.Box(-np.inf, np.inf, observation.shape)
    return spaces.Dict({name: _observation_space(part) for name, part in observation.items()})
