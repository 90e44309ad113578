"""Environments in two halves, so that one half can step while actions are found for the other."""

import warnings
from typing import Self

import numpy as np

from birl.envs import snapshot as snapshots
from birl.envs.spaces import derived_seeds
from birl.envs.vector import VectorAdapter
from birl.envs.workers import WorkerEnvs
from birl.types import PyTree, Step, World


class HalvedEnvs:
    """Two sets of environments as one. Who steps them all at once sees nothing of the halves; a Collector takes them in turns."""

    def __init__(self, first: WorkerEnvs | VectorAdapter, second: WorkerEnvs | VectorAdapter) -> None:
        self.halves = first, second
        self.num_envs = first.num_envs + second.num_envs
        self.observation_space, self.action_space, self.has_lives = first.observation_space, first.action_space, first.has_lives
        self.fresh = np.zeros(self.num_envs, bool)  # where the last restore had to begin a new episode
        self.restore_problem = ""  # why it had to

    def reset(self, seed: int) -> tuple[PyTree, np.ndarray | None]:
        """First observations and action masks."""
        starts = [half.reset(half_seed) for half, half_seed in zip(self.halves, derived_seeds(seed, 2), strict=True)]
        self.fresh, self.restore_problem = np.zeros(self.num_envs, bool), ""
        return self._joined(starts)

    def step(self, actions: PyTree) -> Step:
        self.send(actions)
        return self.receive()

    def send(self, actions: PyTree) -> None:
        count = self.halves[0].num_envs
        for half, part in zip(self.halves, (actions[:count], actions[count:]), strict=True):
            half.send(part)

    def receive(self) -> Step:
        steps = [half.receive() for half in self.halves]
        observations, masks = self._joined([(step.observations, step.action_masks) for step in steps])
        rewards, terminated, truncated, valid = (np.concatenate(arrays) for arrays in zip(*[step[1:5] for step in steps], strict=True))
        game_over = np.concatenate([step.game_over for step in steps]) if self.has_lives else None
        return Step(observations, rewards, terminated, truncated, valid, masks, game_over)

    def snapshot(self) -> World:
        worlds = [half.snapshot() for half in self.halves]
        arrays = {f"{number}/{name}": array for number, world in enumerate(worlds) for name, array in world.arrays.items()}
        values = {"tier": "halves", "halves": [world.values for world in worlds], "seed": worlds[0].values.get("seed", 0)}
        values["clock"] = worlds[0].values.get("clock", 0)
        reasons = dict.fromkeys(filter(None, [world.reason for world in worlds]))  # once, if both have the same
        return World(arrays, values, all(world.exact for world in worlds), " ".join(reasons))

    def restore(self, world: World) -> tuple[PyTree, np.ndarray | None]:
        """Observations and masks as at the snapshot; `fresh` marks environments that could not get there and began anew."""
        if all(values.get("tier") == "fresh" for values in world.values.get("halves", [])):  # neither half can go back, or there is none
            seed, reason = snapshots.fresh_start(world)
            start = self.reset(seed)
            self.fresh, self.restore_problem = snapshots.describe([reason] * self.num_envs)
            warnings.warn(self.restore_problem, stacklevel=2)
            return start
        starts = []
        for number, (half, values) in enumerate(zip(self.halves, world.values["halves"], strict=True)):
            starts.append(half.restore(World(world.arrays_under(f"{number}/"), values, world.exact, world.reason)))
        self.fresh = np.concatenate([half.fresh for half in self.halves])
        self.restore_problem = " ".join(filter(None, [half.restore_problem for half in self.halves]))
        return self._joined(starts)

    def close(self) -> None:
        for half in self.halves:
            half.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _joined(self, parts: list[tuple[PyTree, np.ndarray | None]]) -> tuple[PyTree, np.ndarray | None]:
        first, second = (observations for observations, _ in parts)
        if isinstance(first, dict):
            observations: PyTree = {name: np.concatenate([array, second[name]]) for name, array in first.items()}
        else:
            observations = np.concatenate([first, second])
        return observations, joined_masks([masks for _, masks in parts], [half.num_envs for half in self.halves])


def joined_masks(masks: list[np.ndarray | None], counts: list[int]) -> np.ndarray | None:
    """Masks of all environments; where some give none, theirs forbid nothing."""
    width = next((mask.shape[1] for mask in masks if mask is not None), None)
    if width is None:
        return None
    return np.concatenate([np.ones((count, width), bool) if mask is None else mask for mask, count in zip(masks, counts, strict=True)])
