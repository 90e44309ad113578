"""A policy that acts at random: the score that every other one must exceed."""

import time
from collections.abc import Callable

import gymnasium as gym
import numpy as np

from birl.config import ConfigError, EnvConfig
from birl.envs.actions import random_actions
from birl.envs.make import spaces_of
from birl.run.evaluating import Evaluation, evaluate_policy, merged
from birl.types import PyTree

EPISODES = 5  # played together
LEAST_EPISODES = 20  # if there is the patience for so many
MOST_EPISODES = 200


class RandomPolicy:
    """Uniform random actions among those that masks allow, by the space's own generator."""

    def __init__(self, action_space: gym.Space, seed: int) -> None:
        self.action_space = action_space
        self.initial_memory: Callable[[int], PyTree] = lambda num_envs: ()
        action_space.seed(seed)

    def act_batch(
        self,
        observations: PyTree,
        memory: PyTree,
        resets: np.ndarray,
        action_masks: np.ndarray | None = None,
        key: np.ndarray | None = None,
    ) -> tuple[np.ndarray, PyTree]:
        """Random actions [B, ...]."""
        return random_actions(self.action_space, len(resets), action_masks), memory


def play_at_random(env: EnvConfig, seed: int, seconds: float, patience: float) -> tuple[Evaluation, float]:
    """Episodes of a random policy, and the environment's steps per second.

    Episodes are played for about this many seconds, longer if they are few. After `patience`
    seconds it ends; ConfigError if no episodes were played by then: nothing could be learned in the
    time that there is.
    """
    policy = RandomPolicy(spaces_of(env)[1], seed)
    begin = time.monotonic()

    def watch(ended: int, steps: int) -> None:
        if time.monotonic() - begin > patience:
            raise TimeoutError

    played: list[Evaluation] = []
    while EPISODES * len(played) < (MOST_EPISODES if time.monotonic() - begin < seconds else LEAST_EPISODES):
        try:
            played.append(evaluate_policy(policy, env, EPISODES, seed + len(played), watch=watch))
        except TimeoutError:
            if played:
                break
            wrong = f"{EPISODES} episodes with random actions took more than {patience:.0f} seconds"
            remedy = "give more minutes, or shorter episodes (--max-episode-steps)"
            raise ConfigError(f"{wrong}, and each trial must play as many; {remedy}") from None
    taken = time.monotonic() - begin
    found = merged(played)
    return found, float(found.lengths.sum()) / max(taken, 1e-6)
