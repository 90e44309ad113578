"""A policy's actions and masks as environments take and give them, and random actions.

Inside Birl a Dict or Tuple action is one row of float32 numbers: its parts are flattened and lie
side by side, those of a Dict sorted by key. Choices and bits are integers from 0, exact below 2²⁴.
Rows become trees only where an environment takes them.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from birl.envs.outputs import ErrorSource
from birl.envs.spaces import (
    MASK,
    action_shape,
    at_path,
    first_value,
    is_composite,
    leaves_of,
    mask_width,
    parts_of,
    shown,
    walk,
    width_of,
)
from birl.types import Envs, PyTree


def action_tree(space: gym.Space, rows: np.ndarray) -> PyTree:
    """The tree of a Dict or Tuple with arrays [L, ...] as leaves, from flat rows [L, K].

    Choices get their `start` added, and numbers of a Box are clipped to its bounds.
    """
    ends = np.cumsum([width_of(leaf) for leaf in leaves_of(space)])[:-1]
    return _tree(space, iter(np.split(rows.reshape(-1, *action_shape(space)), ends, axis=1)))


def own_actions(space: gym.Space, rows: np.ndarray) -> list[Any]:
    """One action for each flat row [L, K], as the environment's `step` takes it; copies."""
    tree = action_tree(space, rows)
    return [_pick(tree, space, index) for index in range(len(rows))]


def flat_action(space: gym.Space, action: Any) -> np.ndarray:
    """[K] one action of a Dict or Tuple as a flat row: the inverse of `own_actions`."""
    starts = [(path, first_value(leaf)) for path, leaf in walk(space, "action")]
    parts = [
        np.ravel(at_path(action, path)) if start is None else np.ravel(at_path(action, path) - start)
        for path, start in starts
    ]
    return np.concatenate(parts).astype(np.float32)


def flat_mask(mask: Any, space: gym.Space) -> np.ndarray:
    """[A] bools: an action mask as one flat array.

    It may be given as a tree like the action's, where None or a missing part allows everything.
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
        needed = f"action space {shown(space)} has {width} choices that can be masked"
        raise ValueError(f"{MASK} has {flat.size} entries; {needed}")
    return flat.astype(bool)


def read_mask(mask: Any, space: gym.Space, source: ErrorSource) -> np.ndarray:
    """[A] bools: the action mask that an environment gave; EnvError if it does not fit."""
    try:
        return flat_mask(mask, space)
    except (TypeError, ValueError) as problem:
        raise source.error(f"gave a wrong mask: {problem}") from problem


def mask_of(masks: Any, index: int) -> Any:
    """The mask of one environment, from the masks of a vector environment.

    The entry "_KEY" says which environments gave KEY.
    """
    if masks is None:
        return None
    if isinstance(masks, tuple):
        return tuple(mask_of(part, index) for part in masks)
    if not isinstance(masks, Mapping):
        return masks[index]
    keys = [key for key in masks if not (key.startswith("_") and key[1:] in masks)]
    return {key: mask_of(masks[key], index) for key in keys if f"_{key}" not in masks or masks[f"_{key}"][index]}


def action_clipper(space: spaces.Space) -> Callable[[np.ndarray], np.ndarray]:
    """A function from a policy's actions [B, ...] to what `Envs.step` takes.

    Actions of a Box are clipped to its bounds; those that a rollout keeps are not. Actions of a
    Dict or Tuple stay flat: `action_tree` clips them.
    """
    if isinstance(space, spaces.Box):
        shape, low, high = space.shape, space.low, space.high
        return lambda actions: np.minimum(np.maximum(actions.reshape(-1, *shape), low), high)
    shape = action_shape(space)
    return lambda actions: actions.reshape(-1, *shape)


def sample_actions(envs: Envs, masks: np.ndarray | None) -> np.ndarray:
    """[B, ...] random allowed actions, as `Envs.step` takes them."""
    return random_actions(envs.action_space, envs.num_envs, masks)


def random_actions(space: gym.Space, count: int, masks: np.ndarray | None) -> np.ndarray:
    """[B, ...] random allowed actions of this space, as `Envs.step` takes them."""
    rows = [None] * count if masks is None else [_sample_mask(space, mask) for mask in masks]
    actions = [space.sample(mask=mask) for mask in rows]
    if is_composite(space):
        return np.array([flat_action(space, action) for action in actions])
    start = first_value(space)
    return np.array(actions) if start is None else np.array(actions) - start


def sample_action(env: gym.Env, observation: Any, info: dict[str, Any]) -> Any:
    """A random allowed action, as the environment's own `step` takes it."""
    env.action_space.seed(0)
    in_observation = observation.get(MASK) if isinstance(observation, dict) else None
    mask = info.get(MASK, in_observation)
    if mask is None:
        return env.action_space.sample()
    return env.action_space.sample(mask=_sample_mask(env.action_space, flat_mask(mask, env.action_space)))


def _sample_mask(space: gym.Space, mask: np.ndarray) -> Any:
    """A flat mask in the form that `space.sample` takes."""
    if is_composite(space):
        ends = np.cumsum([mask_width(part) or 0 for _, part in parts_of(space)])[:-1]
        masks = {
            key: _sample_mask(part, cut) for (key, part), cut in zip(parts_of(space), np.split(mask, ends), strict=True)
        }
        return masks if isinstance(space, spaces.Dict) else tuple(masks.values())
    if mask_width(space) is None:
        return None
    bits = mask.astype(np.int8)
    return tuple(np.split(bits, np.cumsum(space.nvec)[:-1])) if isinstance(space, spaces.MultiDiscrete) else bits


def _tree(space: gym.Space, columns: Iterator[np.ndarray]) -> PyTree:
    """The part of the tree for this space, from the next columns."""
    if isinstance(space, spaces.Dict):
        return {key: _tree(part, columns) for key, part in parts_of(space)}
    if isinstance(space, spaces.Tuple):
        return tuple(_tree(part, columns) for part in space.spaces)
    array = next(columns).reshape(-1, *(space.shape or ())).astype(space.dtype)
    if isinstance(space, spaces.Box):
        return np.clip(array, space.low, space.high)  # after astype: a bound rounded to float32 may lie outside
    offset = first_value(space)
    return array if offset is None else array + offset


def _pick(tree: PyTree, space: gym.Space, index: int) -> Any:
    """The action in row `index` of a tree of arrays."""
    if isinstance(space, spaces.Dict):
        return {key: _pick(tree[key], part, index) for key, part in parts_of(space)}
    if isinstance(space, spaces.Tuple):
        return tuple(_pick(branch, part, index) for branch, part in zip(tree, space.spaces, strict=True))
    return int(tree[index]) if isinstance(space, spaces.Discrete) else tree[index, ...]
