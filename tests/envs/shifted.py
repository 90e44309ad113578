"""Environments whose choices do not start at 0.

They raise for an action outside their space, and reward the first choice with 1.
"""

from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium import spaces

SPACES = {
    "discrete": spaces.Discrete(3, start=5),
    "multi": spaces.MultiDiscrete([2, 3], start=[1, -10]),
}


class Shifted(gym.Env):
    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"], "render_fps": 30}

    def __init__(self, kind: str, render_mode: str | None = None) -> None:
        self.action_space = SPACES[kind]
        self.render_mode = render_mode

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), f"{action!r} is not in {self.action_space}"
        self.steps += 1
        return np.zeros(2, np.float32), float(np.all(action == self.action_space.start)), self.steps == 3, False, {}

    def render(self) -> np.ndarray:
        return np.zeros((32, 32, 3), np.uint8)


for _kind in SPACES:
    gym.register(f"Shifted-{_kind}-v0", entry_point=Shifted, kwargs={"kind": _kind})
