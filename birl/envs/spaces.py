"""Observation and action spaces: which are supported, shapes of actions and masks, spaces as JSON.

Inside Birl choices count from 0, and an action of a Dict or Tuple is one flat row (see actions.py).
With spaces as JSON a policy can be loaded without its environment.
"""

import math
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeGuard

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from birl.config import ConfigError, require
from birl.nets.allowance import COMPONENT, FREE, PART, require_allowed

MASK = "action_mask"  # key of an info or a Dict observation: which actions are allowed
SUCCESS = "is_success"  # key of an info at an episode's end, as in Stable-Baselines3 and Gymnasium-Robotics
GAME_OVER = "game_over"  # key of an info, if HAS_LIVES: a whole game ended, or a new one began
HAS_LIVES = "birl/has_lives"  # key of an environment's metadata: an episode may be one life of a game
NEAR = 4.0  # bounds from ±1 / NEAR to ±NEAR are near ±1: a Gaussian explores them as they are
SMALLEST_SIDE = 8  # of an image; anything smaller, such as a view of 7 x 7 symbols, is a vector
Path = tuple[str | int, ...]

ARRAY_SPACES = (spaces.Box, spaces.Discrete, spaces.MultiBinary, spaces.MultiDiscrete)
SUPPORTED = "Discrete, MultiDiscrete, MultiBinary, Box, or a Dict or Tuple of these"
REMEDIES = {
    "Text": "a wrapper can turn it into a Discrete among known texts, or a MultiDiscrete of characters, padded to a "
    "fixed length",
    "Sequence": "a wrapper can pad it to a fixed length: a Box, and a Discrete for the number of entries",
    "Graph": "a wrapper can pad it to a fixed number of nodes and edges: a Box each",
    "OneOf": "a wrapper can turn it into a Dict: a Discrete that says which space is used, and all spaces beside it",
}


def walk(space: gym.Space, role: str, path: Path = (), ignored: Collection[str] = ()) -> list[tuple[Path, gym.Space]]:
    """The leaves of a space, each with its path; role is "observation" or "action".

    Parts whose names are ignored are left out. Raises ConfigError with a remedy if one of the
    others is not supported.
    """
    if path and name_of(path) in ignored:
        return []
    if is_composite(space):
        keys = [key for key, _ in parts_of(space)] if isinstance(space, spaces.Dict) else []
        if role == "action" and not all(isinstance(key, str) for key in keys):
            wrong = f"action space {shown(space)} has keys that are not strings"
            raise ConfigError(f"{wrong}; use strings: the space is saved as JSON")
        return [found for key, part in parts_of(space) for found in walk(part, role, (*path, key), ignored)]
    if not isinstance(space, ARRAY_SPACES):
        general = f"a gymnasium.{role.capitalize()}Wrapper can turn it into one of these"
        remedy = REMEDIES.get(type(space).__name__, general)
        if role == "observation" and path:
            name = name_of(path)
            remedy += f". Or leave it out with ignore_observations ({name!r},) (--ignore-observations {name})"
        raise ConfigError(f"{role} space {shown(space)}{_place(path)} is not supported; use {SUPPORTED}: {remedy}")
    if role == "observation" and first_value(space) is not None:
        remedy = "subtract its start with gymnasium.wrappers.TransformObservation"
        raise ConfigError(f"observation space {shown(space)}{_place(path)} does not start at 0; {remedy}")
    return [(path, space)]


def name_of(path: Path) -> str:
    """The name of a part of an observation: camera/depth."""
    return "/".join(map(str, path))


def part_names(space: gym.Space, path: Path = ()) -> list[str]:
    """The names of all parts of a Dict or Tuple, also of those that have parts themselves."""
    inner = [name for key, part in parts_of(space) for name in part_names(part, (*path, key))]
    return [name_of(path), *inner] if path else inner


def parts_of(space: gym.Space) -> list[tuple[Any, gym.Space]]:
    """The parts of a Dict, sorted by key, or of a Tuple, by index; [] for any other space."""
    if isinstance(space, spaces.Dict):
        return sorted(space.spaces.items(), key=lambda item: str(item[0]))
    return list(enumerate(space.spaces)) if isinstance(space, spaces.Tuple) else []


def at_path(tree: Any, path: Path) -> Any:
    """The part of a nested observation or action at this path."""
    for key in path:
        tree = tree[key]
    return tree


def shown(space: gym.Space) -> str:
    """The space as text on one line."""
    text = " ".join(str(space).split())
    return f"Box of shape {space.shape}, {space.dtype}" if isinstance(space, spaces.Box) and len(text) > 60 else text


def is_image(space: gym.Space) -> TypeGuard[spaces.Box]:
    """True if a convolutional encoder can read it: three axes, height and width of at least 8."""
    if not isinstance(space, spaces.Box) or len(space.shape) != 3:
        return False
    height, width = space.shape[1:] if channels_come_first(space) else space.shape[:2]
    return min(height, width) >= SMALLEST_SIDE


def has_images(space: gym.Space) -> bool:
    """True if an observation, or a part of it, is an image."""
    return is_image(space) or any(has_images(part) for _, part in parts_of(space))


def holds_pixels(space: gym.Space) -> bool:
    """True for an image of bytes from 0 to 255, which encoders divide by 255.

    Bytes with other bounds may be symbols or counts.
    """
    return is_image(space) and space.dtype == np.uint8 and bool(np.all(space.low == 0) and np.all(space.high == 255))


def far_from_one(space: spaces.Box) -> np.ndarray:
    """Which numbers of a Box have finite bounds that are not near ±1.

    Near are those that hold 0, go no further than ±NEAR and are at least 2 / NEAR apart.
    """
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    bounded = (low < high) & (high - low < np.finfo(np.float32).max)  # not for infinite bounds
    return bounded & ~((low >= -NEAR) & (low <= 0) & (high >= 0) & (high <= NEAR) & (high - low >= 2 / NEAR))


def channels_come_first(space: spaces.Box) -> bool:
    """True if an image is [channels, height, width] rather than [height, width, channels]."""
    return space.shape[0] < space.shape[-1]


def learnable_actions(space: gym.Space) -> gym.Space:
    """The action space itself; raises ConfigError if no algorithm can learn its actions."""
    leaves = walk(space, "action")
    require(bool(leaves), f"action space {shown(space)} has no parts; use {SUPPORTED}")
    for path, leaf in leaves:
        integers = isinstance(leaf, spaces.Box) and not np.issubdtype(leaf.dtype, np.floating)
        wrong = f"action space {shown(leaf)}{_place(path)} is a Box of integers"
        require(not integers, f"{wrong}; use MultiDiscrete, or a Box of float32")
    return space


def first_value(space: gym.Space) -> np.ndarray | None:
    """The `start` of a Discrete or MultiDiscrete, added to a zero-based choice; None if 0."""
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete) and np.any(space.start):
        return np.asarray(space.start)
    return None


def is_composite(space: gym.Space) -> bool:
    """True for a Dict or Tuple, whose actions are flat rows inside Birl."""
    return isinstance(space, spaces.Dict | spaces.Tuple)


def leaves_of(space: gym.Space) -> list[gym.Space]:
    """The leaves of an action space in the order of their columns; of a plain space, itself."""
    return [leaf for _, leaf in walk(space, "action")]


def width_of(leaf: gym.Space) -> int:
    """The number of columns of one leaf in a flat row."""
    return int(np.prod(leaf.shape or ()))


def action_shape(space: gym.Space) -> tuple[int, ...]:
    """The shape of one action as `Envs.step` takes it."""
    return (sum(width_of(leaf) for leaf in leaves_of(space)),) if is_composite(space) else space.shape or ()


def action_dtype(space: gym.Space) -> np.dtype:
    """The dtype of actions as `Envs.step` takes them."""
    return np.dtype(np.float32) if is_composite(space) else np.dtype(space.dtype)


def mask_width(space: gym.Space) -> int | None:
    """The number of entries of an action mask, one for each choice; None if there are no choices.

    The masks of MultiDiscrete, and of the Discrete and MultiDiscrete leaves of a Dict or Tuple, lie
    side by side in the order of their columns.
    """
    if isinstance(space, spaces.Discrete):
        return int(space.n)
    if isinstance(space, spaces.MultiDiscrete):
        return int(space.nvec.sum())
    return sum(mask_width(leaf) or 0 for leaf in leaves_of(space)) or None if is_composite(space) else None


def action_reader(space: gym.Space, num_envs: int) -> Callable[[Any], np.ndarray]:
    """A function that copies actions into an array [B, ...] of the space's dtype.

    It raises ValueError for a wrong shape, for which EnvPool would abort the process.
    """
    expected = (num_envs, *action_shape(space))
    dtype = action_dtype(space)
    accepted = {dtype}  # dtypes known to be castable

    def read(actions: Any) -> np.ndarray:
        given = np.asarray(actions)
        if given.shape != expected:
            needed = f"{num_envs} environments with action space {space} need {expected}"
            raise ValueError(f"actions have shape {given.shape}; {needed}")
        if given.dtype not in accepted:
            if not np.can_cast(given.dtype, dtype, "same_kind"):
                raise ValueError(f"actions have dtype {given.dtype}; action space {space} needs {dtype}")
            accepted.add(given.dtype)
        return given.astype(dtype)

    return read


def derived_seeds(seed: int | Sequence[int], count: int) -> list[int]:
    """Distinct seeds below 2³¹ (the limit of EnvPool and ALE), unrelated to those of seed + 1."""
    words = np.random.SeedSequence(seed).generate_state(4 * count) >> 1
    return list(dict.fromkeys(words.tolist()))[:count]


def _place(path: Path) -> str:
    return f" at {name_of(path)}" if path else ""


def space_to_json(space: gym.Space) -> dict[str, Any]:
    """A space as plain JSON values; bounds that are equal everywhere are written once."""
    match space:
        case spaces.Box():
            bounds = {"low": _compact(space.low), "high": _compact(space.high)}
            return {"kind": "Box", "shape": list(space.shape), "dtype": str(space.dtype)} | bounds
        case spaces.Discrete():
            return {"kind": "Discrete", "n": int(space.n)} | _start(space)
        case spaces.MultiDiscrete():
            return {"kind": "MultiDiscrete", "nvec": space.nvec.tolist()} | _start(space)
        case spaces.MultiBinary():
            return {"kind": "MultiBinary", "shape": list(space.shape)}
        case spaces.Dict():
            return {"kind": "Dict", "spaces": {name: space_to_json(part) for name, part in space.items()}}
        case spaces.Tuple():
            return {"kind": "Tuple", "spaces": [space_to_json(part) for part in space.spaces]}
    raise TypeError(f"{space} has no JSON form")


def space_from_json(values: Any, most: int = FREE) -> gym.Space:
    """The space that `space_to_json` wrote; raises ValueError for anything else.

    It has at most this many numbers and choices, which are counted before anything is allocated.
    """
    try:
        require_allowed(_count(values), most)
        return _space(values)
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError) as problem:
        raise ValueError(f"{str(values)[:100]} is not a space: {problem}") from problem


def _space(values: Any) -> gym.Space:
    match values:
        case {"kind": "Box", "shape": list(shape), "dtype": str(name), "low": low, "high": high}:
            dtype = np.dtype(name)
            if dtype.kind not in "biuf":
                raise ValueError(f"its numbers cannot be of type {name}")
            low, high = (np.broadcast_to(np.asarray(_numbers(end), dtype), shape).copy() for end in (low, high))
            return spaces.Box(low, high, dtype=dtype.type)
        case {"kind": "Discrete", "n": int(n)}:
            return spaces.Discrete(n, start=values.get("start", 0))
        case {"kind": "MultiDiscrete", "nvec": list(counts)}:
            return spaces.MultiDiscrete(counts, start=values.get("start"))
        case {"kind": "MultiBinary", "shape": list(shape)}:
            return spaces.MultiBinary(shape[0] if len(shape) == 1 else shape)
        case {"kind": "Dict", "spaces": dict(parts)}:
            return spaces.Dict({name: _space(part) for name, part in parts.items()})
        case {"kind": "Tuple", "spaces": list(parts)}:
            return spaces.Tuple([_space(part) for part in parts])
    raise ValueError("its kind or its fields are unknown; a newer version of Birl may have written it")


def _count(values: Any) -> int:
    """The numbers and choices of a space, or more if it has many parts."""
    match values:
        case {"spaces": dict(parts)}:
            return sum(map(_count, parts.values()))
        case {"spaces": list(parts)}:
            return sum(map(_count, parts))
        case {"shape": list(shape)}:
            size = math.prod(shape)
        case {"n": int(size)}:
            pass
        case {"nvec": list(counts)}:
            size = int(np.sum(counts)) + COMPONENT * np.size(counts)
        case _:
            size = 0
    if size < 0:
        raise ValueError(f"its size of {size:,} is negative")
    return max(size, PART)


def _start(space: spaces.Discrete | spaces.MultiDiscrete) -> dict[str, Any]:
    """The entry "start", if it is not 0."""
    return {"start": space.start.tolist()} if np.any(space.start) else {}


def _compact(bound: np.ndarray) -> Any:
    """One number if all are equal, else the list of them."""
    same = bound.size > 0 and bool((bound == bound.flat[0]).all())
    return _strings(bound.flat[0].item()) if same else _strings(bound.tolist())


def _strings(value: Any) -> Any:
    """The value with infinities as strings: strict JSON has none."""
    if isinstance(value, list):
        return [_strings(part) for part in value]
    return str(value) if isinstance(value, float) and not np.isfinite(value) else value


def _numbers(value: Any) -> Any:
    """The value with those strings as numbers again."""
    if isinstance(value, list):
        return [_numbers(part) for part in value]
    return float(value) if isinstance(value, str) else value
