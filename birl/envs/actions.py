"""A policy's actions as environments take them."""

from collections.abc import Callable

import numpy as np
from gymnasium import spaces

from birl.envs.spaces import action_shape


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
