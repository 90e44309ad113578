"""Small environments that each have one fault."""

import time

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import TransformObservation, TransformReward


def huge_cartpole() -> gym.Env:
    """CartPole with observations a million times too large."""
    env = gym.make("CartPole-v1")
    space = spaces.Box(-np.inf, np.inf, (4,), np.float32)
    return TransformObservation(env, lambda observation: np.float32(1e6) * observation, space)


def rich_cartpole() -> gym.Env:
    """CartPole with rewards of a million."""
    return TransformReward(gym.make("CartPole-v1"), lambda reward: 1e6 * float(reward))


def blind_cartpole() -> gym.Env:
    """CartPole that always shows the same observation."""
    env = gym.make("CartPole-v1")
    return TransformObservation(env, lambda observation: np.ones(4, np.float32), env.observation_space)


class _Walk(gym.Env):
    """A random walk that the agent pushes; what a step gives is for others to say."""

    observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.position = np.zeros(2, np.float32)
        return self.position, {}

    def push(self, action: int) -> None:
        noise = self.np_random.normal(0.0, 0.1, 2)
        self.position = np.clip(self.position + noise + 0.05 * (2 * action - 1), -1.0, 1.0).astype(np.float32)


class Unrewarded(_Walk):
    """Rewards are all 0; episodes end at random."""

    def step(self, action):
        self.push(int(action))
        return self.position, 0.0, bool(self.np_random.random() < 0.05), False, {}


class Endless(_Walk):
    """Every step gives about 1, more on the right, and nothing ends an episode but a time limit."""

    def step(self, action):
        self.push(int(action))
        return self.position, 1.0 + 0.5 * float(self.position[0]), False, False, {}


class Slow(_Walk):
    """A step takes ten milliseconds."""

    def step(self, action):
        time.sleep(0.01)
        self.push(int(action))
        return self.position, float(self.position[0]), bool(self.np_random.random() < 0.05), False, {}


class Guess(gym.Env):
    """Whoever takes another action than before is paid; the observation is the time.

    Without memory only a random policy is right at times.
    """

    observation_space = spaces.Box(0.0, 1.0, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps, self.last = 0, int(self.np_random.integers(2))
        return self._seen(), {}

    def step(self, action):
        reward = 1.0 if int(action) != self.last else 0.0
        self.last = int(action)
        self.steps += 1
        return self._seen(), reward, self.steps >= 20, False, {}

    def _seen(self):
        return np.array([self.steps / 20, 1 - self.steps / 20], np.float32)


def endless() -> gym.Env:
    return gym.wrappers.TimeLimit(Endless(), 50)


def unrewarded() -> gym.Env:
    return Unrewarded()


def slow() -> gym.Env:
    return Slow()


def guess() -> gym.Env:
    return Guess()
