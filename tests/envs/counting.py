"""Environments that count, so that every transition is known in advance."""

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from birl.envs.serial import SerialEnvs
from birl.envs.vector import VectorAdapter

MODES = [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED]


class Counting(gym.Env):
    """Observes (name, steps, sum of actions) of its episode.

    It terminates once the sum reaches `goal`, and is truncated after `limit` steps. The reward is
    10 * steps + action, with the step itself counted. Nothing depends on how often it was reset.
    """

    observation_space = spaces.Box(0, np.inf, (3,), np.float64)
    action_space = spaces.Discrete(3)

    def __init__(self, name: int = 0, goal: int = 5, limit: int = 4) -> None:
        self.name, self.goal, self.limit = name, goal, limit
        self.steps = self.total = 0
        self.needs_reset = True

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = self.total = 0
        self.needs_reset = False
        return self.observe(), self.mask()

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        assert not self.needs_reset, "stepped after the end without a reset"
        assert action in (0, 1, 2)
        self.steps += 1
        self.total += int(action)
        terminated = self.total >= self.goal
        truncated = self.steps >= self.limit
        self.needs_reset = terminated or truncated
        return self.observe(), 10 * self.steps + int(action), terminated, truncated, self.mask()

    def observe(self) -> np.ndarray:
        return np.array([self.name, self.steps, self.total], np.float64)

    def mask(self) -> dict[str, Any]:
        return {}


class MaskedCounting(Counting):
    """Forbids action steps % 3, and every action once the goal is reached."""

    def mask(self) -> dict[str, Any]:
        return {"action_mask": (np.arange(3) != self.steps % 3) & (self.total < self.goal)}


class MethodCounting(Counting):
    """Has the masks of MaskedCounting as a method, which fails once the goal is reached."""

    def action_masks(self) -> np.ndarray:
        assert self.total < self.goal, "asked after the end"
        return np.arange(3) != self.steps % 3


class OverCounting(MaskedCounting):
    """Also forbids every action once the episode is over, terminated or truncated."""

    def mask(self) -> dict[str, Any]:
        return {"action_mask": super().mask()["action_mask"] & (not self.needs_reset)}


class DictCounting(Counting):
    """Counts in a nested Dict observation, which also holds the mask."""

    observation_space = spaces.Dict(
        {
            "count": spaces.Dict({"steps": spaces.Discrete(100), "total": spaces.Box(0, np.inf, (1,), np.float64)}),
            "pair": spaces.Tuple((spaces.Box(0, 255, (2, 2, 1), np.uint8), spaces.MultiBinary(2))),
            "action_mask": spaces.MultiBinary(3),
        }
    )

    def observe(self) -> Any:
        pair = (np.full((2, 2, 1), self.steps, np.uint8), np.array([self.steps % 2, 1], np.int8))
        count = {"steps": self.steps, "total": np.array([self.total], np.float64)}
        return {"count": count, "pair": pair, "action_mask": (np.arange(3) != self.steps % 3).astype(np.int8)}


def counting_functions(shapes: list[tuple[int, int]], kind: type[Counting] = Counting) -> list[Callable[[], gym.Env]]:
    """One environment for each (goal, limit)."""
    return [partial(kind, index, goal, limit) for index, (goal, limit) in enumerate(shapes)]


def every_way(shapes: list[tuple[int, int]], kind: type[Counting] = Counting) -> dict[str, SerialEnvs | VectorAdapter]:
    """Equal environments in SerialEnvs, and in a VectorAdapter for each autoreset mode."""
    functions = counting_functions(shapes, kind)
    adapted = {mode.name: VectorAdapter(SyncVectorEnv(functions, autoreset_mode=mode)) for mode in MODES}
    return {"serial": SerialEnvs(functions)} | adapted
