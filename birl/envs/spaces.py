"""What Birl sees of an environment's spaces: observations flat and at most 32 bits wide, actions
counted from 0, masks apart.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from birl.config import ConfigError, require
from birl.errors import EnvError
from birl.types import PyTree

MASK = "action_mask"  # the key in an info, or in a Dict observation, that says which actions are allowed
GAME_OVER = "game_over"  # the key in an info that says, where HAS_LIVES, whether the whole game ended, or was begun
HAS_LIVES = "birl/has_lives"  # the key in an environment's metadata that says: an episode may be one life of a game
SMALLEST_SIDE = 8  # of an image; what is smaller, such as a view of 7 x 7 symbols, is a vector
Arrays = dict[str, np.ndarray]
Path = tuple[str | int, ...]

ARRAY_SPACES = (spaces.Box, spaces.Discrete, spaces.MultiBinary, spaces.MultiDiscrete)
SUPPORTED = "Discrete, MultiDiscrete, MultiBinary, Box, or a Dict or Tuple of these"
REMEDIES = {
    "Text": "a wrapper can make it a Discrete among known texts, or a MultiDiscrete of characters, filled up to a fixed length",
    "Sequence": "a wrapper can fill it up to a fixed length: a Box, and a Discrete that says how much of it counts",
    "Graph": "a wrapper can fill it up to a fixed number of nodes and edges: a Box each",
    "OneOf": "a wrapper can make it a Dict: a Discrete that says which one it is, and every alternative beside it",
}


@dataclass(frozen=True)
class Layout:
    """Where the arrays of an observation lie in what the environment returns. A plain observation
    is one array named "".
    """

    space: gym.Space  # what networks see: without an action mask, nested Dict and Tuple made one flat Dict
    leaves: dict[str, gym.Space]
    paths: dict[str, Path]
    mask_path: Path | None = None

    def empty(self, num_envs: int) -> Arrays:
        """Uninitialised [B, ...] arrays, new at each call: jax may alias host memory, so it is
        never written twice.
        """
        return {name: np.empty((num_envs, *leaf.shape), leaf.dtype) for name, leaf in self.leaves.items()}  # type: ignore[misc]

    def write(self, arrays: Arrays, index: int, observation: Any, number: int = 0) -> None:
        """Copy the observation of environment `number` into row `index`."""
        for name in self.paths:
            arrays[name][index] = self._part(observation, name, (), f"environment {number}")

    def batch(self, observations: Any, num_envs: int) -> Arrays:
        """A vector environment's observations as arrays of our own."""
        owner = "the vector environment"
        return {
            name: np.array(self._part(observations, name, (num_envs,), owner), self.leaves[name].dtype)
            for name in self.paths
        }

    def _part(self, observation: Any, name: str, batch: tuple[int, ...], owner: str) -> Any:
        """One array of an observation; EnvError unless it has its space's shape: NumPy would
        broadcast a smaller one without a word.
        """
        try:
            part = at_path(observation, self.paths[name])
        except (KeyError, IndexError, TypeError) as problem:
            raise EnvError(f"{owner} returned an observation without {name}; its space has it") from problem
        shape, expected = np.shape(part), (*batch, *(self.leaves[name].shape or ()))
        if shape != expected:
            raise EnvError(
                f"{owner} returned an observation{f' {name}' * bool(name)} of shape {shape}; its space says {expected}"
            )
        return part

    def tree(self, arrays: Arrays) -> PyTree:
        """An array for a plain observation, else a dict of arrays."""
        return arrays.get("", arrays)


def read_flag(given: Any, name: str, number: int) -> bool:
    """What environment `number` returned as terminated or truncated; EnvError unless it means true
    or false, as None and NaN do not.
    """
    if isinstance(given, bool | np.bool_):
        return bool(given)
    if np.shape(given) == () and np.asarray(given).dtype.kind in "biuf" and given in (0, 1):
        return bool(given)
    raise EnvError(f"environment {number} returned {given!r} as {name}; return True or False")


def read_flags(given: Any, name: str, num_envs: int) -> np.ndarray:
    """[B] the same of a vector environment."""
    flags = np.asarray(given)
    if flags.shape != (num_envs,):
        raise EnvError(
            f"the vector environment returned {name} of shape {flags.shape}; return ({num_envs},), a bool for each environment"
        )
    if flags.dtype == bool:
        return flags
    return np.array([read_flag(flag, name, index) for index, flag in enumerate(flags)])


def layout_of(space: gym.Space, action_space: gym.Space) -> Layout:
    """How to read observations of this space; a Dict's top-level "action_mask" is taken out where
    actions can be masked.
    """
    masked = isinstance(space, spaces.Dict) and MASK in space.spaces and mask_width(action_space) is not None
    found = [(path, leaf) for path, leaf in walk(space, "observation") if not (masked and path[0] == MASK)]
    paths = {"/".join(map(str, path)): path for path, _ in found}
    leaves = {"/".join(map(str, path)): narrowed(leaf) for path, leaf in found}
    require(
        len(paths) == len(found),
        f"observation space {shown(space)} has two parts of one name; use keys without a slash",
    )
    if "" in leaves:
        return Layout(leaves[""], leaves, paths)
    return Layout(spaces.Dict(leaves), leaves, paths, (MASK,) if masked else None)


def narrowed(space: gym.Space) -> gym.Space:
    """The space with numbers of 64 bits made float32, the networks' precision: JAX would cut whole
    ones to 32 bits without a word.
    """
    if isinstance(space, spaces.Box) and space.dtype in (np.float64, np.int64, np.uint64):
        with np.errstate(over="ignore"):  # a bound beyond float32 becomes infinite, which is what it means
            return spaces.Box(space.low.astype(np.float32), space.high.astype(np.float32), dtype=np.float32)
    return space


def is_image(space: gym.Space) -> bool:
    """Whether convolutions may see it: three axes, at least 8 high and wide."""
    if not isinstance(space, spaces.Box) or len(space.shape) != 3:
        return False
    height, width = space.shape[1:] if channels_come_first(space) else space.shape[:2]
    return min(height, width) >= SMALLEST_SIDE


def holds_pixels(space: gym.Space) -> bool:
    """Whether its bytes are an image's brightness, which the encoder divides by 255. Other whole
    numbers may be symbols or counts.
    """
    return is_image(space) and space.dtype == np.uint8 and bool(np.all(space.low == 0) and np.all(space.high == 255))  # type: ignore[attr-defined]


def channels_come_first(space: spaces.Box) -> bool:
    return space.shape[0] < space.shape[-1]


def learnable_actions(space: gym.Space) -> gym.Space:
    """The environment's own action space; ConfigError if it cannot be learned. Inside Birl choices
    count from 0, wherever it starts.
    """
    leaves = walk(space, "action")
    require(bool(leaves), f"action space {shown(space)} has no parts; use {SUPPORTED}")
    for path, leaf in leaves:
        whole = isinstance(leaf, spaces.Box) and not np.issubdtype(leaf.dtype, np.floating)
        require(
            not whole,
            f"action space {shown(leaf)}{_place(path)} has whole numbers; use MultiDiscrete, or a Box of float32",
        )
    return space


def first_value(space: gym.Space) -> np.ndarray | None:
    """Where the space starts to count, to be added to a zero-based action; None: at 0."""
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete) and np.any(space.start):
        return np.asarray(space.start)
    return None


def is_composite(space: gym.Space) -> bool:
    """Whether actions of this space are a tree, and flat rows inside Birl."""
    return isinstance(space, spaces.Dict | spaces.Tuple)


def leaves_of(space: gym.Space) -> list[gym.Space]:
    """The parts of an action space in the order of their columns; a space that is no tree is its
    own part.
    """
    return [leaf for _, leaf in walk(space, "action")]


def action_shape(space: gym.Space) -> tuple[int, ...]:
    """The shape of one action as `Envs.step` takes it."""
    return (sum(width_of(leaf) for leaf in leaves_of(space)),) if is_composite(space) else space.shape or ()


def action_dtype(space: gym.Space) -> np.dtype:
    """The type of actions as `Envs.step` takes them."""
    return np.dtype(np.float32) if is_composite(space) else np.dtype(space.dtype)


def mask_width(space: gym.Space) -> int | None:
    """The number of entries of an action mask, one for each choice: n, or for MultiDiscrete all
    parts side by side.

    For a Dict or Tuple all its Discrete and MultiDiscrete parts side by side, in the order of the
    columns. None: cannot be masked.
    """
    if isinstance(space, spaces.Discrete):
        return int(space.n)
    if isinstance(space, spaces.MultiDiscrete):
        return int(space.nvec.sum())
    return sum(mask_width(leaf) or 0 for leaf in leaves_of(space)) or None if is_composite(space) else None


def action_reader(space: gym.Space, num_envs: int) -> Callable[[Any], np.ndarray]:
    """How to read actions: as a copy, [B, ...] in the space's type. A wrong length makes EnvPool
    abort the process: raise before that.
    """
    expected, dtype = (num_envs, *action_shape(space)), action_dtype(space)
    fitting = {dtype}  # as seen so far

    def read(actions: Any) -> np.ndarray:
        given = np.asarray(actions)
        if given.shape != expected:
            raise ValueError(
                f"actions have shape {given.shape}; {num_envs} environments with action space {space} need {expected}"
            )
        if given.dtype not in fitting:
            if not np.can_cast(given.dtype, dtype, "same_kind"):
                raise ValueError(f"actions have type {given.dtype}; action space {space} needs {dtype}")
            fitting.add(given.dtype)
        return given.astype(dtype)

    return read


def derived_seeds(seed: int | Sequence[int], count: int) -> list[int]:
    """Distinct seeds below 2³¹ (EnvPool's and ALE's limit), unrelated to those of seed + 1; 0 is a
    seed like any other.
    """
    words = np.random.SeedSequence(seed).generate_state(4 * count) >> 1
    return list(dict.fromkeys(words.tolist()))[:count]


def walk(space: gym.Space, role: str, path: Path = ()) -> list[tuple[Path, gym.Space]]:
    """The arrays of a space and where they lie in it; ConfigError, naming space and remedy, if
    there is one that cannot be learned.
    """
    if is_composite(space):
        if (
            role == "action"
            and isinstance(space, spaces.Dict)
            and not all(isinstance(key, str) for key in space.spaces)
        ):
            raise ConfigError(
                f"action space {shown(space)} has keys that are no strings; use strings, for it is written as JSON"
            )
        return [found for key, part in parts_of(space) for found in walk(part, role, (*path, key))]
    if not isinstance(space, ARRAY_SPACES):
        remedy = REMEDIES.get(
            type(space).__name__, f"a gymnasium.{role.capitalize()}Wrapper can turn it into one of these"
        )
        raise ConfigError(f"{role} space {shown(space)}{_place(path)} is not supported; use {SUPPORTED}: {remedy}")
    if role == "observation" and first_value(space) is not None:
        remedy = "subtract its start by gymnasium.wrappers.TransformObservation"
        raise ConfigError(f"observation space {shown(space)}{_place(path)} is not counted from 0; {remedy}")
    return [(path, space)]


def shown(space: gym.Space) -> str:
    """The space in one line."""
    text = " ".join(str(space).split())
    return f"Box of shape {space.shape}, {space.dtype}" if isinstance(space, spaces.Box) and len(text) > 60 else text


def parts_of(space: gym.Space) -> list[tuple[Any, gym.Space]]:
    """The parts of a Dict in the order of their keys, of a Tuple by their numbers."""
    if isinstance(space, spaces.Dict):
        return sorted(space.spaces.items(), key=lambda item: str(item[0]))
    return list(enumerate(space.spaces)) if isinstance(space, spaces.Tuple) else []


def _place(path: Path) -> str:
    return f" at {'/'.join(map(str, path))}" if path else ""


def width_of(leaf: gym.Space) -> int:
    """The columns of one part."""
    return int(np.prod(leaf.shape or ()))


def at_path(tree: Any, path: Path) -> Any:
    for key in path:
        tree = tree[key]
    return tree
