"""An environment with a Dict action space that checks its actions strictly.

Importing this registers it, in workers too.
"""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

ACTIONS = spaces.Dict(
    {
        "move": spaces.Discrete(3, start=1),
        "force": spaces.Box(np.array([-1.0, 0.7]), np.array([2.0, 0.9]), dtype=np.float64),
        "switches": spaces.Tuple((spaces.MultiBinary(2), spaces.MultiDiscrete([2, 3], start=[0, 5]))),
    }
)
STATE = spaces.Box(-np.inf, np.inf, (3,), np.float32)


class Hybrid(gym.Env):
    """A random walk that every part of an action changes.

    One move and one choice of the last switch are forbidden. Masks come in the info, as a tree like
    the actions with parts missing, or in the observation, or not at all.
    """

    action_space = ACTIONS
    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012

    def __init__(self, masks: str = "info", render_mode: str | None = None) -> None:
        self.masks, self.render_mode = masks, render_mode
        parts: dict[str, spaces.Space] = {"state": STATE, "picture": spaces.Box(0, 255, (8, 8, 1), np.uint8)}
        if masks == "observation":
            parts["action_mask"] = spaces.Dict({"move": spaces.MultiBinary(3)})
        self.observation_space = spaces.Dict(parts)
        self.state = np.zeros(3)
        self.steps, self.forbidden = 0, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.state = self.np_random.normal(size=3)
        self.steps = 0
        return self._show()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        bits, (first, second) = action["switches"]
        if self.masks != "none":
            assert action["move"] - 1 != self.forbidden, "a forbidden move"
        if self.masks == "info" and self.steps % 2 == 0:
            assert second - 5 != self.forbidden, "a forbidden switch"
        self.steps += 1
        self.state = 0.9 * self.state + 0.1 * self.np_random.normal(size=3)
        self.state += 0.1 * np.array(
            [action["force"][0] + bits[0], action["force"][1] - bits[1], action["move"] - first - second + 4]
        )
        observation, info = self._show()
        reward = float(-np.abs(self.state).sum())
        terminated = bool(self.np_random.random() < 0.02)
        return observation, reward, terminated, self.steps == 60, info

    def render(self) -> Any:
        return np.full((16, 16, 3), self.steps, np.uint8)

    def _show(self) -> tuple[Any, dict[str, Any]]:
        self.forbidden = int(self.np_random.integers(3))
        observation = {"state": self.state.astype(np.float32), "picture": np.full((8, 8, 1), self.steps, np.uint8)}
        allowed = (np.arange(3) != self.forbidden).astype(np.int8)
        if self.masks == "observation":
            return observation | {"action_mask": {"move": allowed}}, {}
        if self.masks == "none":
            return observation, {}
        mask: dict[str, Any] = {"move": allowed}
        if self.steps % 2 == 0:
            mask["switches"] = (None, (np.ones(2, np.int8), allowed))
        return observation, {"action_mask": mask}


gym.register("Hybrid-v0", Hybrid, disable_env_checker=True, order_enforce=False)
