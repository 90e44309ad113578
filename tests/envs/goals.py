"""Environments with goals, by Gymnasium-Robotics' convention."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

GOAL_PARTS = ("observation", "achieved_goal", "desired_goal")


class BitFlip(gym.Env):
    """Flip one of n bits a step until all are as desired (Andrychowicz et al. 2017, 3.1)."""

    def __init__(self, bits: int = 8, ends: bool = False) -> None:
        self.bits = bits
        self.ends = ends  # an episode terminates at its goal
        self.observation_space = spaces.Dict({part: spaces.Box(0, 1, (bits,), np.float32) for part in GOAL_PARTS})
        self.action_space = spaces.Discrete(bits)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.state, self.goal = self.np_random.integers(0, 2, (2, self.bits)).astype(np.float32)
        self.steps = 0
        return self._seen(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.state = self.state.copy()
        self.state[action] = 1 - self.state[action]
        self.steps += 1
        reward = float(self.compute_reward(self.state, self.goal, {}))
        reached = reward == 0.0
        done = self.ends and reached
        return self._seen(), reward, done, not done and self.steps == self.bits, {"is_success": reached}

    def compute_reward(self, achieved: np.ndarray, desired: np.ndarray, info: Any) -> np.ndarray:
        return -(achieved != desired).any(axis=-1).astype(np.float32)

    def compute_terminated(self, achieved: np.ndarray, desired: np.ndarray, info: Any) -> bool:
        return self.ends and bool((achieved == desired).all())

    def _seen(self) -> dict[str, np.ndarray]:
        return {"observation": self.state, "achieved_goal": self.state, "desired_goal": self.goal}
