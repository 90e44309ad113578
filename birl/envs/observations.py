"""Read what environments return: observations as arrays, `terminated` and `truncated` as bools."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from birl.config import require
from birl.envs.spaces import MASK, Path, at_path, mask_width, name_of, part_names, shown, walk
from birl.errors import EnvError
from birl.types import PyTree

Arrays = dict[str, np.ndarray]  # the arrays of an observation by name; an observation that is one array has the name ""


@dataclass(frozen=True)
class ObservationLayout:
    """The arrays of an observation: names, spaces, and paths in what an environment returns."""

    space: gym.Space  # what networks see: nested Dicts and Tuples as one flat Dict, without the action mask
    leaves: dict[str, gym.Space]
    paths: dict[str, Path]
    mask_path: Path | None = None

    def empty(self, num_envs: int) -> Arrays:
        """Uninitialised [B, ...] arrays, new at each call because JAX may alias earlier ones."""
        return {name: np.empty((num_envs, *leaf.shape), leaf.dtype) for name, leaf in self.leaves.items()}  # type: ignore[misc]

    def write(self, arrays: Arrays, index: int, observation: Any, number: int = 0) -> None:
        """Copy the observation of environment `number` into row `index`."""
        for name in self.paths:
            arrays[name][index] = self._part(observation, name, (), f"environment {number}")

    def batch(self, observations: Any, num_envs: int) -> Arrays:
        """The observations of a vector environment, copied into new arrays."""
        owner = "the vector environment"
        return {
            name: np.array(self._part(observations, name, (num_envs,), owner), self.leaves[name].dtype)
            for name in self.paths
        }

    def tree(self, arrays: Arrays) -> PyTree:
        """The arrays as networks see them: one array, or a dict of arrays for a Dict space."""
        return arrays.get("", arrays)

    def _part(self, observation: Any, name: str, batch: tuple[int, ...], owner: str) -> Any:
        """One array of an observation; raises EnvError if it is missing or has the wrong shape.

        Without the check NumPy would broadcast an array that is too small.
        """
        try:
            part = at_path(observation, self.paths[name])
        except (KeyError, IndexError, TypeError) as problem:
            raise EnvError(f"{owner} returned an observation without {name}; its space has it") from problem
        shape = np.shape(part)
        expected = (*batch, *(self.leaves[name].shape or ()))
        if shape != expected:
            label = f"observation {name}" if name else "observation"
            raise EnvError(f"{owner} returned an {label} of shape {shape}; its space says {expected}")
        return part


def layout_of(space: gym.Space, action_space: gym.Space, ignored: Sequence[str] = ()) -> ObservationLayout:
    """The layout of observations from this space, without the parts whose names are ignored.

    If actions can be masked, the entry "action_mask" of a Dict is the mask and no observation.
    """
    _require_parts(space, ignored)
    masked = isinstance(space, spaces.Dict) and MASK in space.spaces and mask_width(action_space) is not None
    walked = walk(space, "observation", ignored=ignored)
    found = [(path, leaf) for path, leaf in walked if not (masked and path[0] == MASK)]
    wrong = f"ignore_observations {tuple(ignored)} leaves nothing of the observation {shown(space)}"
    require(bool(found) or not ignored, f"{wrong}; leave out fewer parts")
    paths = {name_of(path): path for path, _ in found}
    leaves = {name_of(path): narrowed(leaf) for path, leaf in found}
    wrong = f"observation space {shown(space)} has two parts of one name"
    require(len(paths) == len(found), f"{wrong}; use keys without a slash")
    if "" in leaves:
        return ObservationLayout(leaves[""], leaves, paths)
    return ObservationLayout(spaces.Dict(leaves), leaves, paths, (MASK,) if masked else None)


def _require_parts(space: gym.Space, ignored: Sequence[str]) -> None:
    """Raise ConfigError unless these are names of parts of an observation."""
    names = [name for name in part_names(space) if name != MASK]
    for name in ignored:
        listed = f"its parts are {', '.join(names)}" if names else "it has no parts"
        require(name in names, f"ignore_observations {name!r} is no part of the observation {shown(space)}; {listed}")


def narrowed(space: gym.Space) -> gym.Space:
    """The space with 64-bit numbers as float32, the precision of the networks.

    JAX would silently cut 64-bit integers to 32 bits.
    """
    if isinstance(space, spaces.Box) and space.dtype in (np.float64, np.int64, np.uint64):
        with np.errstate(over="ignore"):  # a bound beyond float32 becomes infinite: no bound
            return spaces.Box(space.low.astype(np.float32), space.high.astype(np.float32), dtype=np.float32)
    return space


def read_flag(given: Any, name: str, number: int) -> bool:
    """The flag that environment `number` returned as terminated or truncated.

    Raises EnvError for None, NaN and everything else that is neither true nor false.
    """
    if isinstance(given, bool | np.bool_):
        return bool(given)
    if np.shape(given) == () and np.asarray(given).dtype.kind in "biuf" and given in (0, 1):
        return bool(given)
    raise EnvError(f"environment {number} returned {given!r} as {name}; return True or False")


def read_flags(given: Any, name: str, num_envs: int) -> np.ndarray:
    """[B] bools: what a vector environment returned as terminated or truncated."""
    flags = np.asarray(given)
    if flags.shape != (num_envs,):
        wrong = f"the vector environment returned {name} of shape {flags.shape}"
        raise EnvError(f"{wrong}; return ({num_envs},), a bool for each environment")
    if flags.dtype == bool:
        return flags
    return np.array([read_flag(flag, name, index) for index, flag in enumerate(flags)])
