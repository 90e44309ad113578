"""Spaces as JSON, so that a policy can be loaded without its environment."""

import math
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from birl.nets.allowance import COMPONENT, FREE, PART, require_allowed


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
