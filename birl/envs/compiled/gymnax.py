"""Environments of gymnax (Lange 2022) by their names: MinAtar games, classic control, bsuite.

Versions 0.0.9 and 1.0 are supported. Their `step` functions differ in what they return and both
reset an episode at its end, so only `step_env` is called, which is below `step` in both.
"""

import dataclasses
import warnings
from collections.abc import Callable
from difflib import get_close_matches
from typing import Any, Protocol, runtime_checkable

import gymnasium as gym
import gymnax
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from birl.config import ConfigError, require
from birl.types import Array, PyTree

NO_LIMIT = np.iinfo(np.int32).max  # steps
SIDE = 240  # pixels of the longer side of a picture, at least
EMPTY = (24, 24, 32)  # the colour of a cell with nothing in it
COLORS = np.array(  # of the channels; they repeat after ten
    [
        (31, 119, 180),
        (255, 127, 14),
        (44, 160, 44),
        (214, 39, 40),
        (148, 103, 189),
        (140, 86, 75),
        (227, 119, 194),
        (160, 160, 160),
        (188, 189, 34),
        (23, 190, 207),
    ],
    np.uint8,
)


@runtime_checkable
class Truncates(Protocol):
    """An environment of gymnax 1.0: `step_env` returns `terminated`, without the time limit."""

    def is_truncated(self, state: Any, params: Any) -> Array:
        """True if the episode is truncated here."""


@dataclasses.dataclass(frozen=True, eq=False)
class Gymnax:
    """An environment of gymnax, without its resets and without its time limit, which Birl has."""

    env: Any
    params: Any
    observation_space: gym.Space
    action_space: gym.Space
    max_episode_steps: int
    render: Callable[[Any], np.ndarray] | None  # None: it cannot be drawn

    def reset(self, key: Array) -> tuple[PyTree, PyTree]:
        """The beginning of an episode."""
        observation, state = _quiet(self.env.reset_env, key, self.params)
        # Numbers become arrays of a fixed type, as they are after a step.
        state = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.asarray(leaf).dtype), state)
        return state, self._typed(observation)

    def step(self, state: PyTree, action: Array, key: Array) -> tuple[PyTree, PyTree, Array, Array, Array]:
        """One step. `terminated` is never because of the time limit."""
        unlimited = self.params.replace(max_steps_in_episode=NO_LIMIT)
        observation, after, reward, terminated, _ = _quiet(self.env.step_env, key, state, action, self.params)
        cut: Any = False
        if isinstance(self.env, Truncates):
            cut = self.env.is_truncated(after, unlimited)
        else:
            # gymnax 0.0.9 has one `done` for both ends, so here the limit is never reached. Only
            # the observation may depend on the true limit. XLA computes once what both steps share.
            _, after, reward, terminated, _ = _quiet(self.env.step_env, key, state, action, unlimited)
        after = jax.tree.map(lambda new, old: jnp.asarray(new, old.dtype), after, state)
        return after, self._typed(observation), jnp.float32(reward), jnp.bool_(terminated), jnp.bool_(cut)

    def _typed(self, observation: PyTree) -> PyTree:
        """The observation in its space's type; gymnax has whole numbers in a Box of floats."""
        return jnp.float32(observation) if isinstance(self.observation_space, spaces.Box) else observation


def make_gymnax(name: str, **kwargs: Any) -> Gymnax:
    """The environment `gymnax/name`; `kwargs` are its parameters or its constructor's arguments."""
    if name not in gymnax.registered_envs:
        near = get_close_matches(name, gymnax.registered_envs) or gymnax.registered_envs
        raise ConfigError(f"env.id 'gymnax/{name}' is not an environment of gymnax; use one of {', '.join(near)}")
    try:
        _, defaults = gymnax.make(name)
        fields = {field.name for field in dataclasses.fields(defaults)}
        env, params = gymnax.make(name, **{key: value for key, value in kwargs.items() if key not in fields})
    except OSError as problem:
        raise ConfigError(f"env.id 'gymnax/{name}' cannot download its data: {problem}; use another") from problem
    params = params.replace(**{key: value for key, value in kwargs.items() if key in fields})
    limit = int(params.max_steps_in_episode)
    require(limit >= 1, f"env.kwargs max_steps_in_episode {limit} is too small; use at least 1")
    observation_space = _space(env.observation_space(params))

    def render(state: Any) -> np.ndarray:
        return picture_of_grid(np.asarray(_quiet(env.get_obs, state, params, None)))

    can_draw = len(observation_space.shape or ()) == 3
    action_space = _space(env.action_space(params))
    return Gymnax(env, params, observation_space, action_space, limit, render if can_draw else None)


def _space(space: Any) -> gym.Space:
    """A space of gymnax as one of Gymnasium; gymnax's own function fails for Dict."""
    match space:
        case gymnax.environments.spaces.Discrete():
            return spaces.Discrete(int(space.n))
        case gymnax.environments.spaces.Box():
            low, high = (
                np.broadcast_to(np.asarray(bound, np.float32), space.shape) for bound in (space.low, space.high)
            )
            most = np.finfo(np.float32).max  # gymnax writes this where there is no bound
            low, high = np.where(low <= -most, -np.inf, low), np.where(high >= most, np.inf, high)
            return spaces.Box(low.astype(np.float32), high.astype(np.float32))
        case gymnax.environments.spaces.Dict():
            return spaces.Dict({key: _space(part) for key, part in space.spaces.items()})
        case gymnax.environments.spaces.Tuple():
            return spaces.Tuple([_space(part) for part in space.spaces])
    raise ConfigError(f"Birl does not know gymnax's space {type(space).__name__}; use Discrete, Box, Dict or Tuple")


def _quiet(function: Callable[..., Any], *inputs: Any) -> Any:
    """Call a function of gymnax without JAX's warnings about types in gymnax's code."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function(*inputs)


def picture_of_grid(grid: np.ndarray) -> np.ndarray:
    """[height, width, 3] bytes: a square for each cell of [rows, columns, channels].

    Its colour is that of the first channel that is not 0 there.
    """
    rows, columns, channels = grid.shape
    filled = grid > 0
    palette = np.concatenate([np.array([EMPTY], np.uint8), COLORS[np.arange(channels) % len(COLORS)]])
    cells = palette[np.where(filled.any(axis=2), filled.argmax(axis=2) + 1, 0)]
    size = max(1, -(-SIDE // max(rows, columns)))
    return cells.repeat(size, axis=0).repeat(size, axis=1)
