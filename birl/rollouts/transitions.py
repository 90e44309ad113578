"""Transitions that a user gives: arrays by name, each checked against the environment's spaces."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import gymnasium as gym
import jax
import numpy as np
from gymnasium import spaces

from birl.config import ConfigError, require
from birl.envs.spaces import MASK, first_value, mask_width, shown
from birl.rollouts.replay import Replay, RingShape
from birl.types import PyTree, Rollout

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


STEP, SUCCESSOR = 1, 2  # kinds of rows; 0: nothing is there


class Now(NamedTuple):
    """Where the environments are: what the next rollout begins with."""

    observations: PyTree  # [B, ...]
    action_masks: np.ndarray | None  # [B, A]


class Layout(NamedTuple):
    """What each row [R, B] holds."""

    transitions: np.ndarray  # the index of a transition
    kinds: np.ndarray
    frames: np.ndarray  # a row of an older frame: its number, from 1; else 0
    begins: np.ndarray  # no frame before this row belongs to the same observations


def insert(replay: Replay, transitions: TransitionArrays, now: Now | None = None) -> int:
    """Append transitions to a replay; how many of them fit, the newest.

    `now` is where the environments are, if the replay holds steps of theirs already.
    """
    shape = replay.shape
    follows = follows_last(transitions)
    leads = _leads(transitions, shape.frame_stack)
    last_valid = replay.last_valid(replay.on_host())
    head = 1 if now is not None and last_valid.any() else 0
    tail = shape.frame_stack - 1 if now is not None else 0
    first = _first_that_fits(follows, leads, shape, shape.ring_size - head - tail)
    if first == len(follows):
        return 0
    layout = _lay_out(follows, leads, first, shape, head, tail)
    steps = _fill(layout, transitions, replay)
    if now is not None:
        _bridge(steps, layout.begins, now, last_valid, shape.frame_stack, head, tail)
    for start in range(0, len(layout.kinds), shape.length):
        span = slice(start, start + shape.length)
        replay.append(jax.tree.map(lambda column, span=span: column[span], steps), (), layout.begins[span])
    replay.arrays = replay.arrays._replace(follows=replay.arrays.follows | (tail > 0))
    return len(follows) - first


def follows_last(transitions: TransitionArrays) -> np.ndarray:
    """[N] whether each transition begins where the one before it ended, in the same episode."""
    follows = np.zeros(len(transitions.rewards), bool)
    follows[1:] = ~(transitions.terminated | transitions.truncated)[:-1]
    pairs = [(transitions.next_observations, transitions.observations)]
    if transitions.action_masks is not None:
        pairs.append((transitions.next_action_masks, transitions.action_masks))
    for ends, begins in zip(*[jax.tree.leaves(side) for side in zip(*pairs, strict=True)], strict=True):
        for start in range(1, len(follows), CHUNK):
            end = min(start + CHUNK, len(follows))
            same = ends[start - 1 : end - 1] == begins[start:end]
            follows[start:end] &= same.reshape(end - start, -1).all(axis=1)
    return follows


def _leads(transitions: TransitionArrays, frame_stack: int) -> np.ndarray:
    """[N] rows of older frames that a segment beginning at this transition needs."""
    repeated = np.ones(len(transitions.rewards), bool)
    if frame_stack > 1:
        for stacks in jax.tree.leaves(transitions.observations):
            for start in range(0, len(repeated), CHUNK):
                same = stacks[start : start + CHUNK, :-1] == stacks[start : start + CHUNK, 1:]
                repeated[start : start + CHUNK] &= same.reshape(len(same), -1).all(axis=1)
    return np.where(repeated, 0, frame_stack - 1)


def _first_that_fits(follows: np.ndarray, leads: np.ndarray, shape: RingShape, height: int) -> int:
    """The first transition such that it and all later ones fit in columns of this height."""
    extra = np.where(follows, 0, 1 + leads)  # rows of a segment that are no steps
    rows = np.cumsum((1 + extra)[::-1])[::-1]  # from each transition to the end
    needed = rows + np.where(follows, 1 + leads, 0)  # a segment that begins in its middle
    # Each column may end with a cut or a gap of that many rows, but for a single column.
    room = height * shape.num_envs - (shape.frame_stack * shape.num_envs if shape.num_envs > 1 else 0)
    return int(np.argmax(needed <= room)) if (needed <= room).any() else len(follows)


def _lay_out(follows: np.ndarray, leads: np.ndarray, first: int, ring: RingShape, head: int, tail: int) -> Layout:
    """The rows for the transitions from `first`, with room for the head and the tail."""
    starts = [first, *(first + 1 + np.flatnonzero(~follows[first + 1 :])).tolist(), len(follows)]
    total = sum(end - start + 1 + int(leads[start]) for start, end in pairwise(starts))
    height = -(-total // ring.num_envs) + (ring.frame_stack if ring.num_envs > 1 else 0)
    rows = -(-(head + height + tail) // ring.length) * ring.length
    shape = rows, ring.num_envs
    layout = Layout(
        np.zeros(shape, np.int64), np.zeros(shape, np.int8), np.zeros(shape, np.int64), np.ones(shape, bool)
    )
    row, column = head, 0
    for start, end in pairwise(starts):
        while start < end:
            lead = int(leads[start])
            room = rows - tail - row - lead - 1
            if room < 1:
                row, column = head, column + 1
                continue
            count = min(end - start, room)
            span = slice(row, row + lead + count + 1)
            _put_segment(layout, (span, column), start, lead, count)
            row, start = row + lead + count + 1, start + count
    return layout


def _put_segment(layout: Layout, place: tuple[slice, int], start: int, lead: int, count: int) -> None:
    steps = np.arange(start, start + count)
    layout.transitions[place] = np.concatenate([np.full(lead, start), steps, steps[-1:]])
    layout.kinds[place] = [0] * lead + [STEP] * count + [SUCCESSOR]
    layout.frames[place] = np.concatenate([np.arange(1, lead + 1), np.zeros(count + 1, int)])
    layout.begins[place] = np.arange(lead + count + 1) == 0


def _fill(layout: Layout, transitions: TransitionArrays, replay: Replay) -> Rollout:
    """Columns [R, B, ...] like the replay's, with the transitions in them."""
    rows = len(layout.kinds)
    steps = jax.tree.map(lambda column: np.zeros((rows, *column.shape[1:]), column.dtype), replay.arrays.columns)
    here, after, older = layout.kinds == STEP, layout.kinds == SUCCESSOR, layout.frames > 0
    stacked = replay.shape.frame_stack > 1

    def put(column: np.ndarray, seen: np.ndarray, following: np.ndarray, newest: bool) -> None:
        column[here] = seen[layout.transitions[here], -1] if newest else seen[layout.transitions[here]]
        column[after] = following[layout.transitions[after], -1] if newest else following[layout.transitions[after]]
        if newest:
            column[older] = seen[layout.transitions[older], layout.frames[older] - 1]

    for column, seen, following in zip(
        *[jax.tree.leaves(x) for x in (steps.observations, transitions.observations, transitions.next_observations)],
        strict=True,
    ):
        put(column, seen, following, stacked)
    if steps.action_masks is not None:
        steps.action_masks[...] = True
        put(steps.action_masks, transitions.action_masks, transitions.next_action_masks, False)  # type: ignore[arg-type]
    for column, array in (
        (steps.actions, transitions.actions),
        (steps.rewards, transitions.rewards),
        (steps.terminated, transitions.terminated),
        (steps.truncated, transitions.truncated),
    ):
        column[here] = array[layout.transitions[here]]
    steps.valid[here] = True
    return steps


def _bridge(
    steps: Rollout, begins: np.ndarray, now: Now, last_valid: np.ndarray, frame_stack: int, head: int, tail: int
) -> None:
    """Write where the environments are: after their last step, and before the next one.

    The head is the successor of the last row. The tail are the older frames of the next row.
    """
    for column, seen in zip(jax.tree.leaves(steps.observations), jax.tree.leaves(now.observations), strict=True):
        if head:
            column[0] = seen if frame_stack == 1 else seen[:, -1]
        if tail:
            column[-tail:] = np.moveaxis(seen[:, :-1], 0, 1)
    if head:
        begins[0] = ~last_valid
        if steps.action_masks is not None:
            steps.action_masks[0] = now.action_masks
    if tail:
        begins[-tail:] = (np.arange(tail) == 0)[:, None]
