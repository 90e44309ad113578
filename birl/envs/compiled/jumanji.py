"""Environments of Jumanji (Bonnet et al. 2023) by their names: Snake-v1, Game2048-v1, TSP-v1, ...

Several agents with a reward each are refused: a step has one reward.
"""

from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Protocol, runtime_checkable

import gymnasium as gym
import jax
import jax.numpy as jnp
import jumanji
import numpy as np
from gymnasium import spaces
from jumanji import specs

from birl.config import ConfigError, require
from birl.envs.spaces import MASK, mask_width
from birl.types import Array, PyTree

CHOICES = (specs.DiscreteArray, specs.MultiDiscreteArray)
CLOCK = "step_count"  # left out of observations: it goes up to thousands, and the limit is Birl's
NO_LIMIT = int(np.iinfo(np.int32).max)  # steps


@runtime_checkable
class HasTimeLimit(Protocol):
    """An environment of Jumanji that ends long episodes, mostly as if they were lost."""

    time_limit: int


@dataclass(frozen=True, eq=False)
class Jumanji:
    """An environment of Jumanji, without its time limit, which Birl has."""

    env: Any
    observation_space: gym.Space
    action_space: gym.Space
    max_episode_steps: int | None
    parts: tuple[int, ...] | None  # choices of each part of an action that is one choice here

    def reset(self, key: Array) -> tuple[PyTree, PyTree]:
        """The beginning of an episode."""
        state, timestep = self.env.reset(key)
        return state, _observed(self.observation_space, timestep.observation)

    def step(self, state: PyTree, action: Array, key: Array) -> tuple[PyTree, PyTree, Array, Array, Array]:
        """One step; what is random comes from a key in the state.

        The last step has the discount 0 if the episode ended, and another if it was cut.
        """
        if self.parts is not None:
            action = jnp.stack(jnp.unravel_index(action, self.parts)).astype(jnp.int32)
        after, timestep = self.env.step(state, action)
        after = jax.tree.map(lambda new, old: jnp.asarray(new, old.dtype), after, state)
        last, ended = timestep.last(), timestep.discount == 0
        observation = _observed(self.observation_space, timestep.observation)
        return after, observation, jnp.float32(timestep.reward), last & ended, last & ~ended


def make_jumanji(name: str, **kwargs: Any) -> Jumanji:
    """The environment `jumanji/name`; `kwargs` go to its class."""
    known = sorted(jumanji.registered_environments())
    if name not in known:
        near = get_close_matches(name, known) or known
        raise ConfigError(f"env.id 'jumanji/{name}' is not an environment of Jumanji; use one of {', '.join(near)}")
    try:
        env = jumanji.make(name, **kwargs)
    except OSError as problem:
        raise ConfigError(f"env.id 'jumanji/{name}' cannot download its data: {problem}; use another") from problem
    except ValueError as problem:
        raise ConfigError(f"env.kwargs {kwargs} do not fit env.id 'jumanji/{name}': {problem}") from problem
    limit = env.time_limit if isinstance(env, HasTimeLimit) else None
    observations = _space(env.observation_spec)
    whole = np.issubdtype(env.action_spec.dtype, np.integer) and not isinstance(env.action_spec, CHOICES)
    wrong = f"env.id 'jumanji/{name}' has actions that are whole numbers and no choices"
    require(not whole, f"{wrong}: {env.action_spec}; use another")
    actions, parts = _actions(_space(env.action_spec), observations)
    if limit is not None:
        env.time_limit = NO_LIMIT
    return Jumanji(env, _with_flat_mask(observations, actions), actions, limit, parts)


def _actions(actions: gym.Space, observations: gym.Space) -> tuple[gym.Space, tuple[int, ...] | None]:
    """The action space, and the choices of its parts if it is one choice of all combinations.

    That is so if the mask has an entry for each combination, as in Minesweeper: row and column.
    """
    mask = observations[MASK] if isinstance(observations, spaces.Dict) and MASK in observations.spaces else None
    if mask is None or not isinstance(actions, spaces.MultiDiscrete) or mask.shape != tuple(actions.nvec):
        return actions, None
    parts = tuple(int(choices) for choices in actions.nvec)
    return spaces.Discrete(int(np.prod(parts))), parts


def _with_flat_mask(observations: gym.Space, actions: gym.Space) -> gym.Space:
    """The mask as one row; it is left out if it does not fit the actions."""
    if not isinstance(observations, spaces.Dict) or MASK not in observations.spaces:
        return observations
    parts = dict(observations.spaces)
    size = int(np.prod(parts.pop(MASK).shape or ()))
    return spaces.Dict(parts | ({MASK: spaces.MultiBinary(size)} if size == mask_width(actions) else {}))


def _space(spec: Any) -> gym.Space:
    """A space for what a spec describes: numbers as float32, single choices as Discrete."""
    match spec:
        case specs.DiscreteArray():
            return spaces.Discrete(int(spec.num_values))
        case specs.MultiDiscreteArray() if len(spec.shape) == 1:
            return spaces.MultiDiscrete(np.asarray(spec.num_values))
        case specs.BoundedArray():
            low, high = (
                np.broadcast_to(np.asarray(bound, np.float32), spec.shape) for bound in (spec.minimum, spec.maximum)
            )
            return spaces.Box(low, high)
        case specs.Array():
            return spaces.Box(-np.inf, np.inf, spec.shape)
    parts = {name: part for name, part in vars(spec).items() if isinstance(part, specs.Spec) and name != CLOCK}
    return spaces.Dict({name: _space(part) for name, part in parts.items()})


def _observed(space: gym.Space, value: Any) -> PyTree:
    """An observation in the structure and the types of its space."""
    if isinstance(space, spaces.Dict):
        # A NamedTuple or a dataclass.
        fields = value._asdict() if isinstance(value, tuple) else vars(value)  # type: ignore[attr-defined]
        return {name: _observed(part, fields[name]) for name, part in space.spaces.items()}
    dtype = jnp.float32 if isinstance(space, spaces.Box) else jnp.int32
    return jnp.asarray(value, dtype).reshape(space.shape or ())
