"""Arrays in memory that several processes share."""

import mmap
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

from birl.envs.observations import Arrays, ObservationLayout
from birl.envs.spaces import action_dtype, action_shape, mask_width

ALIGNMENT = 64  # bytes: a cache line

Shapes = list[tuple[tuple[int, ...], Any]]  # the shape and dtype of each array


@dataclass(frozen=True)
class EnvArrays:
    """The arrays through which environments and their workers exchange steps."""

    actions: np.ndarray  # [B, ...]
    rewards: np.ndarray  # [B]
    # [6, B] terminated, truncated, valid, game over, success said, success. One array is copied
    # faster than six.
    flags: np.ndarray
    masks: np.ndarray  # [B, A]; [B, 0] if actions cannot be masked
    observations: Arrays  # [B, ...]

    def part(self, share: slice) -> "EnvArrays":
        """Views of the arrays, for some of the environments."""
        observations = {name: array[share] for name, array in self.observations.items()}
        return EnvArrays(
            self.actions[share], self.rewards[share], self.flags[:, share], self.masks[share], observations
        )


def map_env_arrays(memory: int, layout: ObservationLayout, action_space: gym.Space, num_envs: int) -> EnvArrays:
    """The arrays of B environments in this memory."""
    B = num_envs
    shapes: Shapes = [((B, *action_shape(action_space)), action_dtype(action_space))]
    shapes += [((B,), np.float32), ((6, B), bool), ((B, mask_width(action_space) or 0), bool)]
    shapes += [((B, *(leaf.shape or ())), leaf.dtype) for leaf in layout.leaves.values()]
    actions, rewards, flags, masks, *observations = map_arrays(memory, shapes)
    return EnvArrays(actions, rewards, flags, masks, dict(zip(layout.leaves, observations, strict=True)))


def map_arrays(memory: int, shapes: Sequence[tuple[tuple[int, ...], Any]]) -> list[np.ndarray]:
    """Arrays of these shapes and dtypes in this memory, for each process that maps it."""
    sizes = [int(np.prod(shape)) * np.dtype(dtype).itemsize for shape, dtype in shapes]
    ends = np.cumsum([-(-size // ALIGNMENT) * ALIGNMENT for size in sizes]).tolist()
    offsets = [0, *ends[:-1]]
    os.ftruncate(memory, ends[-1])
    mapped = mmap.mmap(memory, ends[-1])
    return [np.ndarray(shape, dtype, mapped, offset) for (shape, dtype), offset in zip(shapes, offsets, strict=True)]


def unnamed_memory() -> int:
    """The file descriptor of new memory. It has no name, so nothing is left when the run ends."""
    if sys.platform == "linux":
        return os.memfd_create("birl")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
