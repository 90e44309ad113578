"""What Birl sees of an environment's spaces: observations flat and at most 32 bits wide, actions counted from 0, masks apart."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from birl.config import ConfigError
from birl.types import PyTree

MASK = "action_mask"  # the key in an info, or in a Dict observation, that says which actions are allowed
Arrays = dict[str, np.ndarray]
Path = tuple[str | int, ...]

ARRAY_SPACES = (spaces.Box, spaces.Discrete, spaces.MultiBinary, spaces.MultiDiscrete)
NAMES = "Box, Discrete, MultiBinary, MultiDiscrete"


@dataclass(frozen=True)
class Layout:
    """Where the arrays of an observation lie in what the environment returns. A plain observation is one array named ""."""

    space: gym.Space  # what networks see: without an action mask, nested Dict and Tuple made one flat Dict
    leaves: dict[str, gym.Space]
    paths: dict[str, Path]
    mask_path: Path | None = None

    def empty(self, num_envs: int) -> Arrays:
        """Uninitialised [B, ...] arrays, new at each call: jax may alias host memory, so it is never written twice."""
        return {name: np.empty((num_envs, *leaf.shape), leaf.dtype) for name, leaf in self.leaves.items()}  # type: ignore[misc]

    def write(self, arrays: Arrays, index: int, observation: Any) -> None:
        """Copy one environment's observation into row `index`."""
        for name, path in self.paths.items():
            arrays[name][index] = _at(observation, path)

    def batch(self, observations: Any) -> Arrays:
        """A vector environment's observations as arrays of our own."""
        return {name: np.array(_at(observations, path), self.leaves[name].dtype) for name, path in self.paths.items()}

    def check_shapes(self, observation: Any, index: int) -> None:
        """Raise unless each array has its space's shape: NumPy would broadcast a smaller one without a word."""
        for name, path in self.paths.items():
            shape, expected = np.shape(_at(observation, path)), self.leaves[name].shape
            if shape != expected:
                raise ValueError(f"environment {index} returned an observation {name} of shape {shape}; its space says {expected}")

    def tree(self, arrays: Arrays) -> PyTree:
        """An array for a plain observation, else a dict of arrays."""
        return arrays.get("", arrays)


def layout_of(space: gym.Space, action_space: gym.Space) -> Layout:
    """How to read observations of this space; a Dict's top-level "action_mask" is taken out where actions can be masked."""
    paths = {"/".join(map(str, path)): path for path, _ in _walk(space)}
    leaves = {"/".join(map(str, path)): narrowed(leaf) for path, leaf in _walk(space)}
    if "" in leaves:
        return Layout(leaves[""], leaves, paths)
    masked = mask_width(action_space) is not None and paths.get(MASK) == (MASK,)
    if masked:
        del leaves[MASK], paths[MASK]
    return Layout(spaces.Dict(leaves), leaves, paths, (MASK,) if masked else None)


def narrowed(space: gym.Space) -> gym.Space:
    """The space with float64 made float32, the networks' precision."""
    if isinstance(space, spaces.Box) and space.dtype == np.float64:
        with np.errstate(over="ignore"):  # a bound beyond float32 becomes infinite, which is what it means
            return spaces.Box(space.low.astype(np.float32), space.high.astype(np.float32), dtype=np.float32)
    return space


def zero_based(space: gym.Space) -> gym.Space:
    """The action space as policies see it: Discrete actions are 0 to n-1 wherever the environment starts counting."""
    if not isinstance(space, ARRAY_SPACES):
        raise ConfigError(f"action space {space} is not supported; use one of {NAMES} (gymnasium.wrappers can flatten others)")
    if isinstance(space, spaces.Discrete):
        return spaces.Discrete(int(space.n))
    if isinstance(space, spaces.MultiDiscrete):
        return spaces.MultiDiscrete(space.nvec)
    return space


def first_value(space: gym.Space) -> np.ndarray | None:
    """Where the space starts to count, to be added to a zero-based action; None: at 0."""
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete) and np.any(space.start):
        return np.asarray(space.start)
    return None


def mask_width(space: gym.Space) -> int | None:
    """The number of entries of an action mask: n, or for MultiDiscrete all parts side by side; None: cannot be masked."""
    if isinstance(space, spaces.Discrete):
        return int(space.n)
    return int(space.nvec.sum()) if isinstance(space, spaces.MultiDiscrete) else None


def flat_mask(mask: Any) -> np.ndarray:
    """A mask as one array of booleans; Gymnasium's MultiDiscrete masks are tuples with one array for each part."""
    return np.concatenate([np.ravel(part) for part in mask]).astype(bool) if isinstance(mask, tuple) else np.ravel(mask).astype(bool)


def batched_actions(actions: Any, space: gym.Space, num_envs: int) -> np.ndarray:
    """A copy of the actions, [B, ...] in the space's type. A wrong length makes EnvPool abort the process: raise before that."""
    given = np.asarray(actions)
    expected = (num_envs, *(space.shape or ()))
    if given.shape != expected:
        raise ValueError(f"actions have shape {given.shape}; {num_envs} environments with action space {space} need {expected}")
    if not np.can_cast(given.dtype, space.dtype, "same_kind"):  # type: ignore[arg-type]
        raise ValueError(f"actions have type {given.dtype}; action space {space} needs {space.dtype}")
    return given.astype(space.dtype)


def derived_seeds(seed: int | Sequence[int], count: int) -> list[int]:
    """Distinct seeds below 2³¹ (EnvPool's and ALE's limit), unrelated to those of seed + 1; 0 is a seed like any other."""
    words = np.random.SeedSequence(seed).generate_state(4 * count) >> 1
    return list(dict.fromkeys(words.tolist()))[:count]


def _walk(space: gym.Space, path: Path = ()) -> Iterator[tuple[Path, gym.Space]]:
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = space.spaces.items() if isinstance(space.spaces, Mapping) else enumerate(space.spaces)
        for key, part in parts:
            yield from _walk(part, (*path, key))
    elif isinstance(space, ARRAY_SPACES) and first_value(space) is None:
        yield path, space
    else:
        raise ConfigError(f"observation space {space} is not supported; use {NAMES} that start at 0, or a Dict or Tuple of them")


def _at(observation: Any, path: Path) -> Any:
    for key in path:
        observation = observation[key]
    return observation
