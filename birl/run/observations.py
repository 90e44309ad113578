"""Observations that a user passes to a policy: one of them or a batch.

The observation space says which of the two it is. Anything else is refused with a clear message.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from birl.envs.spaces import MASK, shown
from birl.types import PyTree


def read_observations(space: gym.Space, observation: PyTree, ignored: Sequence[str] = ()) -> tuple[PyTree, int | None]:
    """Arrays [B, ...] of the space's types, and B, which is None for a single observation.

    ValueError says what is wrong. A Dict may be nested, as in the environment, or flat, with the
    names of the space. It may have the parts that are ignored, or not.
    """
    if not isinstance(space, spaces.Dict):
        array, single = _read(space, observation, "observation")
        return array, None if single else len(array)
    _require_known_parts(space, observation, ignored)
    parts = {
        name: _read(part, _part_of(observation, name, space), f"observation {name!r}") for name, part in space.items()
    }
    sizes = {name: None if single else len(array) for name, (array, single) in parts.items()}
    if len(set(sizes.values())) > 1:
        counts = ", ".join(
            f"{name!r} {'one' if size is None else f'a batch of {size}'}" for name, size in sizes.items()
        )
        raise ValueError(
            f"the parts of the observation do not agree: {counts}; give one of each, or batches of one size"
        )
    return {name: array for name, (array, _) in parts.items()}, next(iter(sizes.values()))


def _read(space: gym.Space, given: Any, name: str) -> tuple[np.ndarray, bool]:
    """The values as an array [B, ...] of the space's type, and whether this is one observation."""
    shape = space.shape or ()
    try:
        array = np.asarray(given)
    except ValueError as problem:
        raise ValueError(f"{name} is not an array: {problem}; {shown(space)} needs {_shapes(shape)}") from problem
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{name} {_text(given)} holds no numbers; {shown(space)} needs {_shapes(shape)}")
    if array.ndim - len(shape) not in (0, 1) or array.shape[array.ndim - len(shape) :] != shape:
        raise ValueError(f"{name} has shape {array.shape}; {shown(space)} needs {_shapes(shape)}")
    single = array.ndim == len(shape)
    if not single and len(array) == 0:
        raise ValueError(f"{name} has shape {array.shape}, an empty batch; give at least one observation")
    _check_values(space, array, name)
    return (array[None] if single else array).astype(space.dtype, copy=False), single


def _check_values(space: gym.Space, array: np.ndarray, name: str) -> None:
    """Raise ValueError for values outside the space, which a network would silently accept."""
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        place = tuple(np.argwhere(~np.isfinite(array))[0].tolist())
        raise ValueError(
            f"{name} is {array[place]} at {list(place)}; a policy needs finite numbers"
            if place
            else f"{name} is {array}"
        )
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        return
    low, high = _range(space)
    wrong = (array < low) | (array > high) | (array != np.trunc(array))
    if np.any(wrong):
        limits = f"whole numbers from {np.min(low)} to {np.max(high)}"
        raise ValueError(f"{name} holds {array[wrong].flat[0]}; {shown(space)} needs {limits}")


def _range(space: gym.Space) -> tuple[Any, Any]:
    """The smallest and the largest value that an array of this space can hold."""
    match space:
        case spaces.Discrete():
            return 0, int(space.n) - 1
        case spaces.MultiDiscrete():
            return 0, space.nvec - 1
        case spaces.Box() if space.dtype != bool:
            return np.iinfo(space.dtype).min, np.iinfo(space.dtype).max
    return 0, 1


def _part_of(observation: Any, name: str, space: spaces.Dict) -> Any:
    if isinstance(observation, Mapping) and name in observation:
        return observation[name]
    part = observation
    for key in name.split("/"):
        try:
            part = part[int(key)] if isinstance(part, tuple | list) else part[key]
        except (LookupError, TypeError, ValueError):
            raise ValueError(
                f"the observation has no part {name!r}; it needs {', '.join(map(repr, space.spaces))}"
            ) from None
    return part


def _require_known_parts(space: spaces.Dict, observation: Any, ignored: Sequence[str]) -> None:
    names = {*space.spaces, *ignored}
    known = {name.split("/")[0] for name in names} | names | {MASK}
    if isinstance(observation, Mapping) and (unknown := [key for key in observation if str(key) not in known]):
        raise ValueError(f"the observation has a part {unknown[0]!r}; it needs {', '.join(map(repr, space.spaces))}")


def _shapes(shape: tuple[int, ...]) -> str:
    one = str(shape) if shape else "a number"
    return f"{one}, or ({', '.join(map(str, ('B', *shape)))}{',' if not shape else ''}) for a batch"


def _text(given: Any) -> str:
    text = repr(given)
    return text if len(text) < 60 else f"{text[:60]}..."
