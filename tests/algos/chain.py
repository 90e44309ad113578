"""A chain of states whose action values are known."""

import gymnasium as gym
import numpy as np
from gymnasium import spaces

ID = "tests.algos.chain:Chain-v0"
DISCOUNT = 0.9
OBSERVATIONS = np.eye(4, dtype=np.float32)


class Chain(gym.Env):
    """Four states in a row, observed one-hot; action 1 steps right, action 0 left.

    The reward beyond the right end is 1. An episode is truncated after 15 steps.
    """

    observation_space = spaces.Box(0, 1, (4,), np.float32)
    action_space = spaces.Discrete(2)
    place, time = 0, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.time = 0, 0
        return OBSERVATIONS[0].copy(), {}

    def step(self, action):
        self.time += 1
        self.place = max(0, self.place - 1) if action == 0 else self.place + 1
        arrived = self.place == 4
        return OBSERVATIONS[min(self.place, 3)].copy(), float(arrived), arrived, self.time >= 15, {}


def chain_values(epsilon: float) -> np.ndarray:
    """[4, 2] Q of the policy that steps right except in a share ε of random steps: Q = r + γ P Q.

    With ε = 0 these are the optimal values.
    """
    probabilities = np.array([epsilon / 2, 1 - epsilon / 2])
    rewards, moves = np.zeros(8), np.zeros((8, 8))
    for state in range(4):
        moves[2 * state, 2 * max(0, state - 1) :][:2] = probabilities
        if state < 3:
            moves[2 * state + 1, 2 * (state + 1) :][:2] = probabilities
    rewards[7] = 1.0
    return np.linalg.solve(np.eye(8) - DISCOUNT * moves, rewards).reshape(4, 2)


gym.register("Chain-v0", entry_point=Chain)
