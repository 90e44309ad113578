"""An environment that breaks in long episodes: for searches in which some trials fail."""

from typing import Any

import gymnasium as gym
import numpy as np


class Brittle(gym.Env):
    """Gives a reward for action 1, never ends an episode, and breaks after 60 steps of one."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, **options: Any) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(**options)
        self._steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        if self._steps > 60:
            raise RuntimeError("it broke")
        return np.zeros(2, np.float32), float(action), False, False, {}


gym.register("Brittle-v0", entry_point=Brittle)
