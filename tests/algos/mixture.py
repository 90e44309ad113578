"""Two steps whose distribution of returns is known."""

import gymnasium as gym
import numpy as np
from gymnasium import spaces

ID = "tests.algos.mixture:Mixture-v0"
DISCOUNT = 0.5
OBSERVATIONS = np.eye(2, dtype=np.float32)
REWARDS = np.array([-12.0, -4.0, 4.0, 12.0])  # of action 1 in the second state, equally often
WORSE = 2.0  # by so much all of them are lower after action 0


class Mixture(gym.Env):
    """Two states, observed one-hot: a reward of 1, then one of four, then the end.

    In the first state the action has no effect: the best return from there is 1 + γ r.
    """

    observation_space = spaces.Box(0, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self) -> None:
        self.place = 0
        self.counts = [0, 0]  # so that each reward is given equally often for each action

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = 0
        return OBSERVATIONS[0].copy(), {}

    def step(self, action):
        self.place += 1
        if self.place == 1:
            return OBSERVATIONS[1].copy(), 1.0, False, False, {}
        self.counts[action] += 1
        reward = REWARDS[self.counts[action] % len(REWARDS)] - WORSE * (action == 0)
        return OBSERVATIONS[1].copy(), float(reward), True, False, {}


def return_values() -> np.ndarray:
    """[2, 2, 4] the equally likely returns of each state and action, if the best one follows."""
    last = np.stack([REWARDS - WORSE, REWARDS])
    return np.stack([np.broadcast_to(1 + DISCOUNT * REWARDS, (2, 4)), last])


gym.register("Mixture-v0", entry_point=Mixture)
