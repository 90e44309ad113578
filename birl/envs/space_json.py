"""Spaces as JSON, so that a policy can be loaded without its environment."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


def space_to_json(space: gym.Space) -> dict[str, Any]:
    """A space as plain values; bounds that are the same everywhere are written once."""
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


def space_from_json(values: dict[str, Any]) -> gym.Space:
    """The inverse of `space_to_json`."""
    match values["kind"]:
        case "Box":
            shape, dtype = tuple(values["shape"]), np.dtype(values["dtype"])
            low, high = (np.broadcast_to(np.asarray(_numbers(values[end]), dtype), shape) for end in ("low", "high"))
            return spaces.Box(low.copy(), high.copy(), dtype=dtype.type)
        case "Discrete":
            return spaces.Discrete(values["n"], start=values.get("start", 0))
        case "MultiDiscrete":
            return spaces.MultiDiscrete(values["nvec"], start=values.get("start"))
        case "MultiBinary":
            shape = values["shape"]
            return spaces.MultiBinary(shape[0] if len(shape) == 1 else shape)
        case "Dict":
            return spaces.Dict({name: space_from_json(part) for name, part in values["spaces"].items()})
        case "Tuple":
            return spaces.Tuple([space_from_json(part) for part in values["spaces"]])
    raise ValueError(f"space kind {values['kind']!r} is unknown: the file was written by a newer version of Birl")


def _start(space: spaces.Discrete | spaces.MultiDiscrete) -> dict[str, Any]:
    """Where it starts to count, if not at 0."""
    return {"start": space.start.tolist()} if np.any(space.start) else {}


def _compact(bound: np.ndarray) -> Any:
    same = bound.size > 0 and bool((bound == bound.flat[0]).all())
    return _strings(bound.flat[0].item()) if same else _strings(bound.tolist())


def _strings(value: Any) -> Any:
    # Strict JSON has no infinity.
    if isinstance(value, list):
        return [_strings(part) for part in value]
    return str(value) if isinstance(value, float) and not np.isfinite(value) else value


def _numbers(value: Any) -> Any:
    if isinstance(value, list):
        return [_numbers(part) for part in value]
    return float(value) if isinstance(value, str) else value
