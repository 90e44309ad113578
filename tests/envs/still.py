"""An environment that always shows the same, so that equal noise gives equal actions."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

VECTOR = np.array([0.3, -1.0, 0.7], np.float32)
IMAGE = np.arange(36 * 36 * 3).astype(np.uint8).reshape(36, 36, 3)


class Still(gym.Env):
    """Rewards are higher for actions near 0.5; `kind` is what it shows: vector, image or dict."""

    action_space = spaces.Box(np.array([-2, 0], np.float32), np.array([3, 1], np.float32))

    def __init__(self, kind: str = "vector", infinite: bool = False) -> None:
        parts = {"image": spaces.Box(0, 255, IMAGE.shape, np.uint8), "vector": spaces.Box(-9, 9, (3,), np.float32)}
        shown = {"image": IMAGE, "vector": VECTOR}
        self.observation_space = spaces.Dict(parts) if kind == "dict" else parts[kind]
        self.shown = shown if kind == "dict" else shown[kind]
        if infinite:
            self.action_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self.shown, {}

    def step(self, action: np.ndarray) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), f"{action!r} is not in {self.action_space}"
        self.steps += 1
        return self.shown, -float(np.sum((action - 0.5) ** 2)), self.steps == 5, False, {}


if "Still-v0" not in gym.registry:
    gym.register("Still-v0", entry_point=Still)
