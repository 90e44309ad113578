"""The latest observations and action masks of a vector environment."""

from typing import Any

import gymnasium as gym
import numpy as np

from birl.envs.error_source import ErrorSource
from birl.envs.observations import Arrays, ObservationLayout
from birl.envs.spaces import MASK, mask_width
from birl.envs.trees import mask_of, read_mask
from birl.types import PyTree


class VectorObservations:
    """Observations and masks as copies, which the environment cannot write into later."""

    def __init__(self, layout: ObservationLayout, action_space: gym.Space, num_envs: int, source: ErrorSource) -> None:
        self.layout = layout
        self.source = source
        self.arrays: Arrays = {}
        self.masks: np.ndarray | None = None
        self._action_space = action_space
        self._mask_width = mask_width(action_space)
        self._num_envs = num_envs

    def first(self, observations: Any, infos: dict[str, Any]) -> None:
        """Take what a reset of all environments returned; decides whether there are masks."""
        self.arrays = self.layout.batch(observations, self._num_envs, self.source)
        self.masks = None
        if self._mask_width is not None and (self.layout.mask_path is not None or MASK in infos):
            masks = np.ones((self._num_envs, self._mask_width), bool)
            self.masks = self._read_masks(masks, observations, infos)

    def after_step(self, observations: Any, infos: dict[str, Any]) -> None:
        """Take what a step returned. An environment without a mask allows every action."""
        self.arrays = self.layout.batch(observations, self._num_envs, self.source)
        masks = None if self.masks is None else np.ones_like(self.masks)
        self.masks = self._read_masks(masks, observations, infos)

    def after_reset(self, arrays: Arrays, observations: Any, infos: dict[str, Any]) -> None:
        """Take what a reset of some environments returned; the masks of the others stay."""
        self.arrays = arrays
        self.masks = self._read_masks(None if self.masks is None else self.masks.copy(), observations, infos)

    def show_last(self, index: int, observation: Any, infos: dict[str, Any]) -> None:
        """Replace one environment's observation and mask by the last ones of its episode."""
        self.layout.write(self.arrays, index, observation, self.source.single(index))
        if self.masks is not None:
            self.masks[index] = self._last_mask(index, observation, infos)

    def allow_all_after(self, terminated: np.ndarray, truncated: np.ndarray) -> None:
        """Allow every action where an episode terminated, or was truncated and allowed nothing."""
        if self.masks is not None:
            self.masks[terminated | (truncated & ~self.masks.any(axis=1))] = True

    def saved(self) -> dict[str, np.ndarray]:
        """Copies of the observations and masks, under their names in a snapshot."""
        arrays = {f"observations/{name}": array.copy() for name, array in self.arrays.items()}
        return arrays if self.masks is None else arrays | {"masks": self.masks.copy()}

    def load(self, saved: dict[str, np.ndarray]) -> None:
        """Take the observations and masks of a snapshot."""
        self.arrays = {name: saved[f"observations/{name}"].copy() for name in self.layout.paths}
        self.masks = saved["masks"].copy() if "masks" in saved else None

    def tree(self) -> PyTree:
        """The observations as networks see them."""
        return self.layout.tree(self.arrays)

    def _last_mask(self, index: int, observation: Any, infos: dict[str, Any]) -> np.ndarray | bool:
        """The mask given with an episode's last observation; True, which allows all, if none is."""
        if self.layout.mask_path is not None:
            return self._read_mask(observation[MASK], index)
        if MASK not in infos or not infos.get(f"_{MASK}", np.ones(self._num_envs, bool))[index]:
            return True
        return self._read_mask(mask_of(infos[MASK], index), index)

    def _read_masks(self, masks: np.ndarray | None, observations: Any, infos: dict[str, Any]) -> np.ndarray | None:
        """The masks, with the rows replaced that the environments gave now."""
        if self._mask_width is None:
            return None
        if self.layout.mask_path is not None:
            given = observations[MASK]
            return np.array([self._read_mask(mask_of(given, index), index) for index in range(self._num_envs)])
        if MASK not in infos:
            return masks
        if masks is None:
            raise self.source.error("gave an action_mask in step but none in reset; give it in both")
        for index in np.flatnonzero(infos.get(f"_{MASK}", np.ones(self._num_envs, bool))).tolist():
            masks[index] = self._read_mask(mask_of(infos[MASK], index), index)
        return masks

    def _read_mask(self, mask: Any, index: int) -> np.ndarray:
        return read_mask(mask, self._action_space, self.source.single(index))
