"""A policy that acts at random, and by how much another one is better."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from birl.config import ConfigError, EnvConfig
from birl.envs.actions import random_actions
from birl.envs.make import spaces_of
from birl.maths.statistics import bootstrap_interval, percentile_interval
from birl.run.console import number
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


class AgainstRandom(NamedTuple):
    """Mean returns of a policy and of a random one on fresh episodes, with 95 % intervals."""

    score: float
    interval: tuple[float, float]
    episodes: int
    random_score: float
    random_interval: tuple[float, float]
    random_episodes: int
    difference: tuple[float, float]  # 95 % interval of score - random_score

    @property
    def better(self) -> bool:
        """True if the whole interval of the difference lies above 0."""
        return self.difference[0] > 0

    def text(self) -> str:
        """Both scores on one line."""
        own = f"return {_shown(self.score, self.interval)} over {self.episodes} fresh episodes"
        return f"{own}; at random {_shown(self.random_score, self.random_interval)} over {self.random_episodes}"

    def as_json(self) -> dict[str, Any]:
        """The verdict as JSON values."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in self._asdict().items()} | {
            "better": self.better
        }


def against_random(policy: Evaluation, at_random: Evaluation) -> AgainstRandom:
    """Compare the episodes of both policies."""
    own, other = policy.returns, at_random.returns
    return AgainstRandom(
        float(own.mean()),
        mean_interval(own),
        len(own),
        float(other.mean()),
        mean_interval(other),
        len(other),
        difference_interval(own, other),
    )


def mean_interval(returns: np.ndarray) -> tuple[float, float]:
    """The 95 % bootstrap interval of the mean."""
    return bootstrap_interval(returns[:, None], lambda scores: float(np.mean(scores)))


def difference_interval(first: np.ndarray, second: np.ndarray) -> tuple[float, float]:
    """The 95 % bootstrap interval of mean(first) - mean(second), each resampled on its own."""
    rng = np.random.default_rng(0)
    means = [rng.choice(each, (4000, len(each))).mean(axis=1) for each in (first, second)]
    return percentile_interval(means[0] - means[1])


def _shown(score: float, interval: tuple[float, float]) -> str:
    return f"{number(score)} ({number(interval[0])} to {number(interval[1])})"
