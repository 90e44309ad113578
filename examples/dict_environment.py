"""An environment with Dict observations, and an agent for it, without choosing an algorithm.

python examples/dict_environment.py
"""

import argparse
from typing import ClassVar

import gymnasium as gym
import numpy as np

import birl


class Dock(gym.Env):
    """Steer a boat into the one of four docks whose light is on, before its battery is empty."""

    metadata: ClassVar = {"render_modes": ["rgb_array"], "render_fps": 15}
    observation_space = gym.spaces.Dict(
        {
            "boat": gym.spaces.Box(-2.0, 2.0, (4,), np.float32),  # position and velocity
            "light": gym.spaces.Discrete(4),  # which dock
            "battery": gym.spaces.Box(0.0, 1.0, (1,), np.float32),
        }
    )
    action_space = gym.spaces.Discrete(5)  # drift, or thrust to the east, west, north or south
    THRUST = 0.02 * np.array([(0, 0), (1, 0), (-1, 0), (0, 1), (0, -1)])
    DOCKS = np.array([(0.9, 0.9), (-0.9, 0.9), (-0.9, -0.9), (0.9, -0.9)])

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.position = self.np_random.uniform(-0.3, 0.3, 2)
        self.velocity = np.zeros(2)
        self.light = int(self.np_random.integers(4))
        self.battery = 1.0
        return self._observe(), {}

    def step(self, action):
        self.velocity = 0.95 * self.velocity + self.THRUST[action]
        self.position = np.clip(self.position + self.velocity, -1.5, 1.5)
        self.battery -= 0.02 if action else 0.005
        distance = np.linalg.norm(self.position - self.DOCKS[self.light])
        docked = bool(distance < 0.2)
        reward = 1.0 if docked else -0.01 * float(distance)
        info = {"is_success": docked}
        return self._observe(), reward, docked or self.battery <= 0, False, info

    def render(self):
        picture = np.full((150, 150, 3), 40, np.uint8)
        for number, place in enumerate(self.DOCKS):
            self._draw(picture, place, (255, 220, 0) if number == self.light else (90, 90, 90), 8)
        self._draw(picture, self.position, (80, 180, 255), 4)
        return picture

    def _draw(self, picture, place, colour, size):
        column, row = (75 + 50 * np.array([1, -1]) * place).astype(int)
        picture[max(0, row - size) : row + size, max(0, column - size) : column + size] = colour

    def _observe(self):
        boat = np.concatenate([self.position, self.velocity]).astype(np.float32)
        return {"boat": boat, "light": self.light, "battery": np.array([max(0.0, self.battery)], np.float32)}


# The search runs in other processes, which import this module by the name in front of the colon.
if "Dock-v0" not in gym.registry:
    gym.register("Dock-v0", entry_point=Dock, max_episode_steps=200)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--steps", type=int, help="of each of three trials, instead of the time")
    given = parser.parse_args()
    effort = {"minutes": given.minutes} if given.steps is None else {"trials": 3, "total_steps": given.steps}
    solution = birl.solve("dict_environment:Dock-v0", **effort)
    print(f"{solution['algorithm']}: return {solution['score']:.2f}, at random {solution['random_score']:.2f}")


if __name__ == "__main__":
    main()
