"""Read what environments return: observations as arrays, rewards as numbers, flags as bools.

An error names the environment by number and class, and the user's file.
"""

import inspect
import sysconfig
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from birl.config import require
from birl.envs.spaces import MASK, at_path, mask_width, name_of, part_names, shown, walk
from birl.envs.spaces import Path as TreePath
from birl.errors import EnvError, cut
from birl.types import PyTree

NUMBERS = "biuf"  # kinds of dtypes that hold real numbers
Arrays = dict[str, np.ndarray]  # the arrays of an observation by name; an observation that is one array has the name ""
LIBRARIES = "gymnasium", "birl"  # their wrappers are not to blame
BIRL = Path(__file__).parents[1]
INSTALLED = [Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
RULES = {
    "reset": "take reset(self, *, seed=None, options=None) and return (observation, info), with info a dict",
    "step": "return observation, reward (a number), terminated, truncated, info",
}
OF_A_CALL = "unpack", "argument"  # in what Python says of a wrong signature or answer


@dataclass(frozen=True)
class ErrorSource:
    """The environment that returned an observation, a reward or a flag, by number and class."""

    name: str  # "environment 3"
    env: gym.Env | gym.vector.VectorEnv

    def single(self, index: int) -> Self:
        """One of a vector environment's environments."""
        return replace(self, name=f"environment {index}")

    def error(self, wrong: str) -> EnvError:
        """The error that it did something wrong; names its class and file."""
        return EnvError(f"{self.name} {wrong} ({place_of(self.env)})")

    def breaks_rules(self, function: str, wrong: str) -> EnvError:
        """The error that `reset` or `step` cannot be called, or returned something else."""
        return self.error(f"breaks the rules of {function}: {wrong}; {RULES[function]}")

    def raised(self, function: str, error: BaseException) -> Exception:
        """The exception for an error in `reset` or `step`; it names the user's line."""
        if _is_of_call(error):
            return self.breaks_rules(function, str(error))
        reason = f"{type(error).__name__}: {error}"
        return RuntimeError(f"{self.name} raised in {function}: {reason} ({raised_at(error)})")


@dataclass(frozen=True)
class ObservationLayout:
    """The arrays of an observation: names, spaces, and paths in what an environment returns."""

    space: gym.Space  # what networks see: nested Dicts and Tuples as one flat Dict, without the action mask
    leaves: dict[str, gym.Space]
    paths: dict[str, TreePath]
    mask_path: TreePath | None = None

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
    """The returned value as an array; None if it is ragged or holds anything but real numbers."""
    try:
        array = np.asarray(given)
    except (TypeError, ValueError, RuntimeError):  # of PyTorch: it is on a GPU, or has gradients
        return None
    return array if array.dtype.kind in NUMBERS else None


def place_of(env: gym.Env | gym.vector.VectorEnv) -> str:
    """The classes of an environment that are the user's, and their files: "MyEnv in my_env.py"."""
    kinds: list[type] = [type(env)]
    while isinstance(env, gym.Wrapper | gym.vector.VectorWrapper):
        env = env.env
        kinds.append(type(env))
    own = [kind for kind in kinds if kind.__module__.partition(".")[0] not in LIBRARIES]
    return ", ".join(f"{kind.__name__} in {_file_of(kind)}" for kind in own or kinds[-1:])


def raised_at(error: BaseException) -> str:
    """The user's last line on the way to an error: "my_env.py, line 12"."""
    lines = [(Path(frame.filename), frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    foreign = [(path, line) for path, line in lines if not path.is_relative_to(BIRL)]
    own = [(path, line) for path, line in foreign if not any(map(path.is_relative_to, INSTALLED))]
    path, line = (own or foreign or lines)[-1]
    return f"{path}, line {line}"


def _is_of_call(error: BaseException) -> bool:
    """True if Birl or a wrapper of Gymnasium failed to call a function or unpack its answer."""
    if not isinstance(error, TypeError | ValueError) or not any(words in str(error) for words in OF_A_CALL):
        return False
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return str(frame.f_globals.get("__name__")).partition(".")[0] in LIBRARIES


def _file_of(kind: type) -> str:
    try:
        return inspect.getsourcefile(kind) or kind.__module__
    except (OSError, TypeError):  # typed into an interpreter, or in C
        return kind.__module__
