"""Environments of Brax (Freeman et al. 2021) by their names: ant, hopper, inverted_pendulum, ...

They are Brax's own, without the wrappers it trains with, which reset episodes and count steps.
"""

from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, ClassVar

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
from brax import envs
from gymnasium import spaces

from birl.config import ConfigError
from birl.types import Array, PyTree


@dataclass(frozen=True, eq=False)
class Brax:
    """An environment of Brax. Its state is Brax's State, so a picture can be made of it."""

    env: Any
    observation_space: gym.Space
    action_space: gym.Space
    camera: str | None  # follows the robot; None: stands still
    max_episode_steps: ClassVar[int] = 1000  # as brax.envs.create has it

    def reset(self, key: Array) -> tuple[PyTree, PyTree]:
        """The beginning of an episode."""
        state = self.env.reset(key)
        state = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.asarray(leaf).dtype), state)
        return state, state.obs

    def step(self, state: PyTree, action: Array, key: Array) -> tuple[PyTree, PyTree, Array, Array, Array]:
        """One step, without randomness.

        Brax's `done` is never because of the limit, which is in a wrapper. `info["time_out"]` of
        some environments is the same `done`, whatever its name says.
        """
        # Brax writes into the dict of metrics that it is given, so it gets a copy.
        after = self.env.step(jax.tree.map(lambda leaf: leaf, state), action)
        after = jax.tree.map(lambda new, old: jnp.asarray(new, old.dtype), after, state)
        return after, after.obs, jnp.float32(after.reward), after.done > 0, jnp.bool_(False)

    def render(self, state: Any) -> np.ndarray:
        """A picture, drawn by MuJoCo."""
        return np.asarray(self.env.render([state.pipeline_state], camera=self.camera)[0])


def make_brax(name: str, **kwargs: Any) -> Brax:
    """The environment `brax/name`; `kwargs` go to its class: backend="spring", ..."""
    known = sorted(set(envs._envs) - {"fast"})  # which has no model: Brax tests its training with it
    if name not in known:
        near = get_close_matches(name, known) or known
        raise ConfigError(f"env.id 'brax/{name}' is not an environment of Brax; use one of {', '.join(near)}")
    try:
        env = envs.get_environment(name, **kwargs)
    except ValueError as problem:  # of a backend that Brax does not have
        raise ConfigError(f"env.kwargs {kwargs} do not fit env.id 'brax/{name}': {problem}") from problem
    observation = jax.eval_shape(env.reset, jax.random.PRNGKey(0)).obs
    actions = spaces.Box(-1.0, 1.0, (env.action_size,))
    return Brax(env, _observation_space(observation), actions, _camera(env))


def _observation_space(observation: Any) -> gym.Space:
    """One array without bounds, or a Dict of them."""
    if isinstance(observation, jax.ShapeDtypeStruct):
        return spaces.Box(-np.inf, np.inf, observation.shape)
    return spaces.Dict({name: _observation_space(part) for name, part in observation.items()})


def _camera(env: Any) -> str | None:
    """The name of the first camera of the model."""
    model = env.sys.mj_model
    return model.camera(0).name if model.ncam else None
