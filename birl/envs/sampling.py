"""Random actions that action masks allow."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from birl.envs.spaces import MASK, first_value, is_composite, mask_width, parts_of
from birl.envs.trees import flat_action, flat_mask
from birl.types import Envs


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
