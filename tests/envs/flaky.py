"""A CartPole that raises in its step 20,000. Importing this registers it, in workers too."""

from typing import Any

import gymnasium as gym
from gymnasium.envs.classic_control.cartpole import CartPoleEnv


class FlakyCartPole(CartPoleEnv):
    steps = 0

    def step(self, action: int) -> Any:
        self.steps += 1
        if self.steps == 20_000:
            raise RuntimeError("the cart is stuck")
        return super().step(action)


gym.register("FlakyCartPole-v0", FlakyCartPole, max_episode_steps=500)
