"""Whether a policy is better than acting at random, and by how much."""

from typing import Any, NamedTuple

import numpy as np

from birl.maths.statistics import bootstrap_interval, percentile_interval
from birl.run.console import number
from birl.run.evaluating import Evaluation


class Verdict(NamedTuple):
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
        """Whether the whole interval of the difference lies above 0."""
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


def judge(policy: Evaluation, at_random: Evaluation) -> Verdict:
    """What the episodes of both policies say."""
    own, other = policy.returns, at_random.returns
    return Verdict(
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


def difference_interval(first: np.ndarray, second: np.ndarray, repetitions: int = 4000) -> tuple[float, float]:
    """The 95 % bootstrap interval of mean(first) - mean(second), each resampled on its own."""
    rng = np.random.default_rng(0)
    means = [rng.choice(each, (repetitions, len(each))).mean(axis=1) for each in (first, second)]
    return percentile_interval(means[0] - means[1])


def _shown(score: float, interval: tuple[float, float]) -> str:
    return f"{number(score)} ({number(interval[0])} to {number(interval[1])})"
