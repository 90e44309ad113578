"""Read what environments return: observations as arrays, rewards as numbers, flags as bools."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from birl.config import require
from birl.envs.error_source import ErrorSource
from birl.envs.spaces import MASK, Path, at_path, mask_width, name_of, part_names, shown, walk
from birl.errors import cut
from birl.types import PyTree

NUMBERS = "biuf"  # kinds of dtypes that hold real numbers
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

    def write(self, arrays: Arrays, index: int, observation: Any, source: ErrorSource) -> None:
        """Copy the observation of one environment into row `index`."""
        for name in self.paths:
            arrays[name][index] = self._part(observation, name, (), source)

    def batch(self, observations: Any, num_envs: int, source: ErrorSource) -> Arrays:
        """The observations of a vector environment, copied into new arrays."""
        return {
            name: np.array(self._part(observations, name, (num_envs,), source), self.leaves[name].dtype)
            for name in self.paths
        }

    def tree(self, arrays: Arrays) -> PyTree:
        """The arrays as networks see them: one array, or a dict of arrays for a Dict space."""
        return arrays.get("", arrays)

    def _part(self, observation: Any, name: str, batch: tuple[int, ...], source: ErrorSource) -> np.ndarray:
        """One array of an observation; raises EnvError if it is missing or does not fit its space.

        Without the check NumPy would broadcast an array that is too small, and cast any type.
        """
        try:
            part = at_path(observation, self.paths[name])
        except (KeyError, IndexError, TypeError) as problem:
            raise source.error(f"returned an observation without {name}; its space has it") from problem
        label = f"observation {name}" if name else "observation"
        array = _real_numbers(part)
        if array is None:
            raise source.error(f"returned the {label} {cut(part)}; return an array of real numbers")
        expected = (*batch, *(self.leaves[name].shape or ()))
        if array.shape != expected:
            raise source.error(f"returned an {label} of shape {array.shape}; its space says {expected}")
        return array


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


def read_reset(answer: Any, source: ErrorSource) -> tuple[Any, dict[str, Any]]:
    """The observation and the info that `reset` returned; EnvError for anything else."""
    if isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[1], dict):
        return answer
    raise source.breaks_rules("reset", f"it returns {type(answer).__name__} {cut(answer)}")


def read_reward(given: Any, source: ErrorSource) -> np.ndarray:
    """The reward that an environment returned; EnvError for everything that is no real number."""
    reward = _real_numbers(given)
    if reward is None or reward.shape != ():
        raise source.error(f"returned the reward {cut(given)}, a {type(given).__name__}; return a float")
    return reward


def read_rewards(given: Any, num_envs: int, source: ErrorSource) -> np.ndarray:
    """[B] what a vector environment returned as rewards."""
    rewards = _real_numbers(given)
    if rewards is None:
        raise source.error(f"returned the rewards {cut(given)}; return ({num_envs},) floats")
    if rewards.shape != (num_envs,):
        raise source.error(f"returned rewards of shape {rewards.shape}; return ({num_envs},)")
    return rewards


def read_flag(given: Any, name: str, source: ErrorSource) -> bool:
    """The flag that an environment returned as terminated or truncated.

    Raises EnvError for None, NaN and everything else that is neither true nor false.
    """
    if isinstance(given, bool | np.bool_):
        return bool(given)
    flag = _real_numbers(given)
    if flag is not None and flag.shape == () and flag in (0, 1):
        return bool(flag)
    raise source.error(f"returned {cut(given)} as {name}; return True or False")


def read_flags(given: Any, name: str, num_envs: int, source: ErrorSource) -> np.ndarray:
    """[B] bools: what a vector environment returned as terminated or truncated."""
    flags = np.asarray(given)
    if flags.shape != (num_envs,):
        wrong = f"returned {name} of shape {flags.shape}"
        raise source.error(f"{wrong}; return ({num_envs},), a bool for each environment")
    if flags.dtype == bool:
        return flags
    return np.array([read_flag(flag, name, source.single(index)) for index, flag in enumerate(flags)])


def _real_numbers(given: Any) -> np.ndarray | None:
    """What was returned as an array; None if it holds anything but real numbers, or is ragged."""
    try:
        array = np.asarray(given)
    except (TypeError, ValueError, RuntimeError):  # of PyTorch: it is on a GPU, or has gradients
        return None
    return array if array.dtype.kind in NUMBERS else None
