"""Environments that fail at a given step."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from birl.envs.probes import NOTHING, SIGNS, Outcome, Reset


class Faulty(gym.Env):
    """Fails at step `at`, counted over all episodes of three steps."""

    observation_space, action_space = SIGNS, spaces.Discrete(2)

    def __init__(self, fault: str, at: int = 3) -> None:
        self.fault = fault
        self.at = at
        self.total = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        super().reset(seed=seed)
        return NOTHING.copy(), {}

    def step(self, action: int) -> Outcome:
        self.total += 1
        now = self.total == self.at
        if now and self.fault == "raise":
            raise ValueError("the simulator diverged")
        observation = np.full(1, np.nan if now and self.fault == "nan observation" else 0, np.float32)
        reward = np.inf if now and self.fault == "infinite reward" else 1.0
        return observation, reward, self.total % 3 == 0, False, {}


def nan_observation(at: int = 3) -> gym.Env:
    return Faulty("nan observation", at)


def infinite_reward(at: int = 3) -> gym.Env:
    return Faulty("infinite reward", at)


def raising(at: int = 3) -> gym.Env:
    return Faulty("raise", at)
