"""Robots: environments of Brax (Freeman et al. 2021) and MuJoCo Playground (Zakka et al. 2025).

Both have the same interface. In Playground's package are the environments of the DeepMind Control
Suite. For the others, Playground clones the models of MuJoCo's menagerie from the network when the
first of them is made.
"""

import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from birl.config import ConfigError, require
from birl.types import Array, PyTree

BRAX_LIMIT = 1000  # steps, as brax.envs.create has it


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


def make_brax(name: str, **kwargs: Any) -> Robot:
    """The environment `brax/name`; `kwargs` go to its class: backend="spring", ..."""
    from brax import envs

    known = sorted(set(envs._envs) - {"fast"})  # which has no model: Brax tests its training with it
    if name not in known:
        near = get_close_matches(name, known) or known
        raise ConfigError(f"env.id 'brax/{name}' is not an environment of Brax; use one of {', '.join(near)}")
    try:
        env = envs.get_environment(name, **kwargs)
    except ValueError as problem:  # of a backend that Brax does not have
        raise ConfigError(f"env.kwargs {kwargs} do not fit env.id 'brax/{name}': {problem}") from problem
    camera = first_camera(env.sys.mj_model)

    def render(state: Any) -> np.ndarray:
        return np.asarray(env.render([state.pipeline_state], camera=camera)[0])

    return make_robot(env, BRAX_LIMIT, render)


def make_playground(name: str, **kwargs: Any) -> Robot:
    """The environment `playground/name`; `kwargs` are entries of its configuration.

    An entry inside of another has a dot in its name: {"noise_config.level": 0.5}. The physics is
    MJX in JAX; impl="warp" needs a GPU.
    """
    from mujoco_playground import registry

    known = registry.ALL_ENVS
    if name not in known:
        near = get_close_matches(name, known) or known
        raise ConfigError(f"env.id 'playground/{name}' is not an environment of Playground; use {', '.join(near)}")
    config = registry.get_default_config(name)
    entries = _entries(config.to_dict())
    for unknown in kwargs.keys() - entries:
        near = get_close_matches(unknown, entries) or sorted(entries)
        raise ConfigError(f"env.kwargs {unknown!r} is no entry of 'playground/{name}'; use {', '.join(near)}")
    try:
        config.update_from_flattened_dict({"impl": "jax"} | kwargs)
        env = registry.load(name, config)
    except (KeyError, TypeError, ValueError) as problem:
        raise ConfigError(f"env.kwargs {kwargs} do not fit env.id 'playground/{name}': {problem}") from problem
    except (OSError, subprocess.CalledProcessError) as problem:
        wrong = f"env.id 'playground/{name}' needs MuJoCo's menagerie, which Playground cannot clone"
        raise ConfigError(f"{wrong}: {problem}; use one of the Control Suite, as CartpoleBalance") from problem
    repeats = config.get("action_repeat", 1)
    wrong = f"env.kwargs action_repeat {repeats} of env.id 'playground/{name}' is for Playground's wrappers"
    require(repeats == 1, f"{wrong}; leave it at 1, and set ctrl_dt for longer steps")
    camera = first_camera(env.mj_model)

    def render(state: Any) -> np.ndarray:
        return np.asarray(env.render([state], camera=camera)[0])

    return make_robot(env, int(config.episode_length), render)


def make_robot(env: Any, limit: int, render: Callable[[Any], np.ndarray]) -> Robot:
    """The environment with its spaces: actions from -1 to 1, observations without bounds."""
    observation = jax.eval_shape(env.reset, jax.random.PRNGKey(0)).obs
    return Robot(env, _observation_space(observation), spaces.Box(-1.0, 1.0, (env.action_size,)), limit, render)


def first_camera(model: Any) -> str | None:
    """The name of the first camera of a MuJoCo model, which mostly follows the robot."""
    return model.camera(0).name if model.ncam else None


def _entries(config: dict[str, Any]) -> set[str]:
    """The names of the entries; Playground itself ignores a name that is not among them."""
    inner = {f"{name}.{entry}" for name, part in config.items() if isinstance(part, dict) for entry in _entries(part)}
    return inner | {name for name, part in config.items() if not isinstance(part, dict)}


def _observation_space(observation: Any) -> gym.Space:
    """One array, or a Dict of them."""
    if isinstance(observation, jax.ShapeDtypeStruct):
        return spaces.Box(-np.inf, np.inf, observation.shape)
    return spaces.Dict({name: _observation_space(part) for name, part in observation.items()})
