"""Transitions that a user gives: arrays by name, each checked against the environment's spaces."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from birl.config import ConfigError, require
from birl.envs.spaces import MASK, first_value, mask_width, shown
from birl.types import PyTree

Value = TypeVar("Value")
Arrays = dict[str, np.ndarray]  # by name; the parts of a Dict observation are observations/PART
MASKS = {"action_masks", "next_action_masks"}  # both or none
MASK_PARTS = {f"observations/{MASK}": "action_masks", f"next_observations/{MASK}": "next_action_masks"}
CHUNK = 4096  # rows that are looked at together, to keep temporary arrays small


class TransitionArrays(NamedTuple):
    """N transitions in the order in which they happened, as a replay keeps them."""

    observations: PyTree  # [N, ...]
    actions: np.ndarray  # [N] or [N, K]; choices count from 0
    rewards: np.ndarray  # [N]
    next_observations: PyTree  # [N, ...]
    terminated: np.ndarray  # [N]
    truncated: np.ndarray  # [N]; false where terminated
    action_masks: np.ndarray | None = None  # [N, A]; None: the environment gives none
    next_action_masks: np.ndarray | None = None  # [N, A]


class Expected(NamedTuple):
    """What an array must be."""

    shape: tuple[int, ...]  # of one transition
    kinds: str  # the kinds of NumPy types that fit
    why: str  # the space or the rule that asks for it


@dataclass(frozen=True)
class TransitionFormat:
    """The names, shapes and types that the transitions of one environment have."""

    observation_space: gym.Space
    action_space: gym.Space
    masked: bool = False  # the environment gives action masks
    frame_stack: int = 1  # frames in an observation, of which the replay keeps the newest

    def expected(self) -> dict[str, Expected]:
        """All arrays by name."""
        found: dict[str, Expected] = {}
        for name, leaf in self._leaves().items():
            why = f"observation space {shown(leaf)}"
            expected = Expected(leaf.shape or (), "fiub" if np.dtype(leaf.dtype).kind == "f" else "iub", why)
            found |= {_name(prefix, name): expected for prefix in ("observations", "next_observations")}
        space = self.action_space
        kinds = "fiu" if isinstance(space, spaces.Box) else "iu"
        found["actions"] = Expected(space.shape or (), kinds, f"action space {shown(space)}")
        found["rewards"] = Expected((), "fiub", "a number for each transition")
        found |= dict.fromkeys(("terminated", "truncated"), Expected((), "biuf", "True or False for each transition"))
        if self.masked:
            why = f"{mask_width(space)} choices of action space {shown(space)}"
            masks = Expected((mask_width(space) or 0,), "biu", why)
            found |= {"action_masks": masks, "next_action_masks": masks}
        return found

    def require_shapes(self, given: Mapping[str, tuple[tuple[int, ...], np.dtype]], source: str) -> int:
        """The number of transitions; ConfigError unless these shapes and types fit."""
        expected = self.expected()
        names = ", ".join(expected)
        if unknown := sorted(set(given) - set(expected)):
            masks = "; this environment gives no action masks" if "mask" in unknown[0] else ""
            raise ConfigError(f"{source} has an array {unknown[0]!r}{masks}; use {names}")
        optional = {"truncated"} if MASKS & set(given) else {"truncated", *MASKS}
        if missing := [name for name in expected if name not in given and name not in optional]:
            raise ConfigError(f"{source} has no array {missing[0]!r}; it needs {names} (truncated may be left out)")
        rewards = given["rewards"][0]
        count = rewards[0] if rewards else 0
        for name, (shape, dtype) in given.items():
            needed = expected[name]
            wrong = f"{source}: {name} has shape {shape}; {needed.why} needs {(count, *needed.shape)}"
            require(shape == (count, *needed.shape), f"{wrong}, as rewards has {count} rows")
            kinds = "numbers" if "f" in needed.kinds else "whole numbers"
            require(dtype.kind in needed.kinds, f"{source}: {name} is {dtype}; {needed.why} needs {kinds}")
        return count

    def read(self, arrays: Arrays, source: str) -> TransitionArrays:
        """The transitions in these arrays; ConfigError with the array and the row that is wrong."""
        count = self.require_shapes({name: (array.shape, array.dtype) for name, array in arrays.items()}, source)
        seen = self._observations("observations", arrays, source)
        following = self._observations("next_observations", arrays, source)
        terminated = _flags(arrays["terminated"], f"{source}: terminated")
        truncated = _flags(arrays.get("truncated", np.zeros(count, bool)), f"{source}: truncated")
        transitions = TransitionArrays(
            seen.get("", seen),
            self._actions(arrays["actions"], f"{source}: actions"),
            _numbers(arrays["rewards"], f"{source}: rewards"),
            following.get("", following),
            terminated,
            truncated & ~terminated,  # if both are set, terminated wins
        )
        if self.frame_stack > 1:
            for name in seen:
                place = f"{source}: {_name('next_observations', name)}"
                _require_stacks(seen[name], following[name], self.frame_stack, place)
        return transitions if not self.masked else self._with_masks(transitions, arrays, source)

    def own_actions(self, actions: np.ndarray) -> np.ndarray:
        """Actions of a rollout as the environment takes them."""
        start = first_value(self.action_space)
        shaped = actions.reshape(-1, *(self.action_space.shape or ()))
        return shaped if start is None else shaped + start

    def bytes_of(self, count: int) -> int:
        """The size in memory of this many transitions."""
        seen = sum(np.dtype(leaf.dtype).itemsize * int(np.prod(leaf.shape or ())) for leaf in self._leaves().values())
        return count * (2 * seen + 8 * int(np.prod(self.action_space.shape or ())) + 8)

    def _leaves(self) -> dict[str, gym.Space]:
        """The arrays of an observation by name; the name of one array alone is ""."""
        space = self.observation_space
        return dict(space.spaces) if isinstance(space, spaces.Dict) else {"": space}

    def _observations(self, prefix: str, arrays: Arrays, source: str) -> Arrays:
        names = {name: _name(prefix, name) for name in self._leaves()}
        return {
            name: _read_observations(leaf, arrays[names[name]], f"{source}: {names[name]}")
            for name, leaf in self._leaves().items()
        }

    def _actions(self, array: np.ndarray, name: str) -> np.ndarray:
        """Actions as a rollout keeps them: choices from 0, and a Box as flat rows."""
        space = self.action_space
        if isinstance(space, spaces.Box):
            actions = _numbers(array, name)
            _require_range(actions, space.low.astype(np.float32), space.high.astype(np.float32), name, shown(space))
            return actions.reshape(len(actions), -1)
        if not isinstance(space, spaces.Discrete):
            raise ConfigError(
                f"{name}: transitions with action space {shown(space)} cannot be added; use Discrete or Box"
            )
        _require_range(array, space.start, space.start + space.n - 1, name, shown(space))
        start = first_value(space)
        return (array if start is None else array - start).astype(np.int32)

    def _with_masks(self, transitions: TransitionArrays, arrays: Arrays, source: str) -> TransitionArrays:
        """The transitions with their masks; without any, every action is allowed."""
        shape = len(transitions.rewards), mask_width(self.action_space) or 0
        everything = np.ones(shape, bool)
        masks, next_masks = (
            _flags(arrays.get(name, everything), f"{source}: {name}") for name in ("action_masks", "next_action_masks")
        )
        next_masks[transitions.terminated] = True  # nothing follows
        for name, allowed in (("action_masks", masks), ("next_action_masks", next_masks)):
            if not (any_allowed := allowed.any(axis=1)).all():
                raise ConfigError(
                    f"{source}: {name}[{int(np.argmin(any_allowed))}] allows no action; allow at least one"
                )
        return transitions._replace(action_masks=masks, next_action_masks=next_masks)


def masks_apart(arrays: dict[str, Value]) -> dict[str, Value]:
    """The arrays with a mask that is part of a Dict observation under the name that masks have."""
    return {MASK_PARTS.get(name, name): array for name, array in arrays.items()}


def named_arrays(name: str, tree: Any) -> Arrays:
    """The arrays of a nested observation by name, such as observations/camera."""
    if isinstance(tree, Mapping):
        return {
            key: array for part, branch in tree.items() for key, array in named_arrays(f"{name}/{part}", branch).items()
        }
    if isinstance(tree, tuple):
        return named_arrays(name, dict(enumerate(tree)))
    return {name: np.asarray(tree)}


def _name(prefix: str, name: str) -> str:
    return f"{prefix}/{name}" if name else prefix


def _read_observations(space: gym.Space, array: np.ndarray, name: str) -> np.ndarray:
    """The observations of one leaf as its type; ConfigError if a value does not fit."""
    dtype = np.dtype(space.dtype)
    if dtype.kind == "f":
        return _numbers(array, name, dtype)
    if isinstance(space, spaces.Discrete):
        _require_range(array, 0, space.n - 1, name, shown(space))
    elif isinstance(space, spaces.MultiDiscrete):
        _require_range(array, 0, space.nvec - 1, name, shown(space))
    elif isinstance(space, spaces.MultiBinary):
        _require_range(array, 0, 1, name, shown(space))
    elif array.dtype != dtype and dtype.kind != "b":
        _require_range(array, np.iinfo(dtype).min, np.iinfo(dtype).max, name, shown(space))
    return array.astype(dtype)


def _numbers(array: np.ndarray, name: str, dtype: Any = np.float32) -> np.ndarray:
    """The array as finite numbers of this type."""
    with np.errstate(over="ignore"):  # what is beyond float32 becomes infinite, and is refused
        numbers = array.astype(dtype)
    for first in range(0, len(numbers), CHUNK):
        bad = ~np.isfinite(numbers[first : first + CHUNK])
        if bad.any():
            place = _first_place(bad, first)
            raise ConfigError(f"{name}{list(place)} is {array[place]}; it must be a finite {np.dtype(dtype)}")
    return numbers


def _flags(array: np.ndarray, name: str) -> np.ndarray:
    if array.dtype.kind != "b":
        bad = (array != 0) & (array != 1)
        if bad.any():
            place = _first_place(bad)
            raise ConfigError(f"{name}{list(place)} is {array[place]}; use True or False")
    return array.astype(bool)


def _require_range(array: np.ndarray, low: Any, high: Any, name: str, space: str) -> None:
    """Raise ConfigError unless all values lie from low to high."""
    for first in range(0, len(array), CHUNK):
        rows = array[first : first + CHUNK]
        bad = (rows < low) | (rows > high)
        if bad.any():
            place = _first_place(bad, first)
            least, most = (np.broadcast_to(bound, array.shape[1:])[place[1:]] for bound in (low, high))
            raise ConfigError(f"{name}{list(place)} is {array[place]}; {space} needs {least} to {most}")


def _require_stacks(observations: np.ndarray, following: np.ndarray, frame_stack: int, name: str) -> None:
    """Raise ConfigError unless each next observation is the observation with one frame more."""
    frames = observations.shape[1] if observations.ndim > 1 else 0
    wrong = f"frame_stack {frame_stack} does not fit observations of shape {observations.shape[1:]}"
    require(frames == frame_stack, f"{wrong}; use 1")
    for first in range(0, len(observations), CHUNK):
        span = slice(first, first + CHUNK)
        bad = following[span, :-1] != observations[span, 1:]
        if bad.any():
            row = _first_place(bad, first)[0]
            wrong = f"{name}[{row}] is not its observation with one frame more, newest last"
            raise ConfigError(f"{wrong}, as frame_stack {frame_stack} needs; use frame_stack 1")


def _first_place(bad: np.ndarray, first: int = 0) -> tuple[int, ...]:
    """Where the first true entry is; rows are counted from `first`."""
    row, *rest = np.argwhere(bad)[0].tolist()
    return (first + row, *rest)
