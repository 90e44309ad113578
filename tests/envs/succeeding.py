"""Environments that say at the end of an episode whether it succeeded."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

LENGTH = 3


class Succeeding(gym.Env):
    """Episodes of three steps that succeed if the last action is 1.

    Until then it says the opposite. With `says` False it says nothing.
    """

    observation_space = spaces.Box(0.0, 10.0, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, says: bool = True, render_mode: str | None = None) -> None:
        self.says = says
        self.steps = 0
        self.episodes = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.steps = 0
        self.episodes += 1
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.steps += 1
        ended = self.steps == LENGTH
        truncated = ended and self.episodes % 2 == 0
        info = {"is_success": np.float32(action == 1) if ended else action == 0} if self.says else {}
        return np.full(1, self.steps, np.float32), 1.0, ended and not truncated, truncated, info


gym.register("Succeeding-v0", entry_point=Succeeding)
