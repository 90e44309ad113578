"""Dict and Tuple actions, and their masks, as flat arrays and back.

Inside Birl such an action is one row of float32 numbers: its parts side by side, each flattened,
those of a Dict in the order of their keys. Choices and bits are whole numbers from 0, exact below
2²⁴. Only the border to the environment knows the tree.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from birl.envs.spaces import (
    MASK,
    action_shape,
    at_path,
    first_value,
    leaves_of,
    mask_width,
    parts_of,
    shown,
    walk,
    width_of,
)
from birl.types import PyTree


def action_tree(space: gym.Space, rows: np.ndarray) -> PyTree:
    """[L, K] flat rows as a Dict or Tuple has them, [L, ...] arrays at the leaves: offsets added, a
    Box's numbers clipped.
    """
    ends = np.cumsum([width_of(leaf) for leaf in leaves_of(space)])[:-1]
    return _grow(space, iter(np.split(rows.reshape(-1, *action_shape(space)), ends, axis=1)))


def own_actions(space: gym.Space, rows: np.ndarray) -> list[Any]:
    """The same as one action for each row: what the environment's own `step` takes, in memory of
    its own.
    """
    tree = action_tree(space, rows)
    return [_pick(tree, space, index) for index in range(len(rows))]


def flat_action(space: gym.Space, action: Any) -> np.ndarray:
    """[K] one action of a Dict or Tuple space as a flat row: the inverse of `own_actions`."""
    starts = [(path, first_value(leaf)) for path, leaf in walk(space, "action")]
    parts = [
        np.ravel(at_path(action, path)) if start is None else np.ravel(at_path(action, path) - start)
        for path, start in starts
    ]
    return np.concatenate(parts).astype(np.float32)


def flat_mask(mask: Any, space: gym.Space) -> np.ndarray:
    """A mask as one array of booleans. It may be given as a Dict's or Tuple's own tree, where None
    or nothing allows everything.

    Gymnasium's MultiDiscrete masks are tuples with one array for each part.
    """
    width = mask_width(space) or 0
    if mask is None:
        return np.ones(width, bool)
    if isinstance(space, spaces.Dict) and isinstance(mask, Mapping):
        unknown = sorted(set(mask) - set(space.spaces))
        if unknown:
            raise ValueError(f"{MASK} has a part {unknown[0]!r}; action space {shown(space)} has none of that name")
        return np.concatenate([flat_mask(mask.get(key), part) for key, part in parts_of(space)])
    if isinstance(space, spaces.Tuple) and isinstance(mask, tuple):
        if len(mask) != len(space.spaces):
            raise ValueError(f"{MASK} has {len(mask)} parts; action space {shown(space)} has {len(space.spaces)}")
        return np.concatenate([flat_mask(part_mask, part) for part_mask, part in zip(mask, space.spaces, strict=True)])
    flat = np.concatenate([np.ravel(part) for part in mask]) if isinstance(mask, tuple) else np.ravel(mask)
    if flat.size != width:
        raise ValueError(
            f"{MASK} has {flat.size} entries; action space {shown(space)} has {width} choices that can be masked"
        )
    return flat.astype(bool)


def mask_of(masks: Any, index: int) -> Any:
    """One environment's mask out of a vector environment's tree of them; "_KEY" says which
    environments gave KEY.
    """
    if masks is None:
        return None
    if isinstance(masks, tuple):
        return tuple(mask_of(part, index) for part in masks)
    if not isinstance(masks, Mapping):
        return masks[index]
    keys = [key for key in masks if not (key.startswith("_") and key[1:] in masks)]
    return {key: mask_of(masks[key], index) for key in keys if f"_{key}" not in masks or masks[f"_{key}"][index]}


def _grow(space: gym.Space, columns: Iterator[np.ndarray]) -> PyTree:
    if isinstance(space, spaces.Dict):
        return {key: _grow(part, columns) for key, part in parts_of(space)}
    if isinstance(space, spaces.Tuple):
        return tuple(_grow(part, columns) for part in space.spaces)
    array = next(columns).reshape(-1, *(space.shape or ())).astype(space.dtype)
    if isinstance(space, spaces.Box):
        return np.clip(
            array, space.low, space.high
        )  # in the space's own precision: a bound rounded to float32 may lie outside
    offset = first_value(space)
    return array if offset is None else array + offset


def _pick(tree: PyTree, space: gym.Space, index: int) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: _pick(tree[key], part, index) for key, part in parts_of(space)}
    if isinstance(space, spaces.Tuple):
        return tuple(_pick(branch, part, index) for branch, part in zip(tree, space.spaces, strict=True))
    return int(tree[index]) if isinstance(space, spaces.Discrete) else tree[index, ...]
