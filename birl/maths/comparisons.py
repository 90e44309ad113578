"""Two groups of scores: which is better, how sure that is, and how many scores would tell."""

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np

from birl.maths.statistics import percentile_interval

MOST_EXACT = 100  # scores of both groups together; beyond it the p-value is that of the normal approximation


def probability_of_improvement(first: np.ndarray, second: np.ndarray) -> float:
    """P(X > Y) + P(X = Y) / 2 for a score X of the first group and Y of the second.

    It is the Mann-Whitney statistic U / (n m) (Agarwal et al. 2021).
    """
    return float(np.mean(_wins(first, second)))


def improvement_interval(probability: float, first: int, second: int, level: float = 0.95) -> tuple[float, float]:
    """Score interval of the probability of improvement of groups of these sizes.

    Newcombe 2006, part 2, method 5: all θ with (θ - U/nm)² ≤ z² V(θ). Unlike a bootstrap interval
    it has a width if one group wins every time, and it holds its level with five scores a group.
    """
    z = NormalDist().inv_cdf((1.0 + level) / 2.0)
    middle = (first + second) / 2.0 - 1.0

    def contains(theta: float) -> bool:
        spread = 1.0 + middle * (1.0 - theta) / (2.0 - theta) + middle * theta / (1.0 + theta)
        return (theta - probability) ** 2 <= z**2 * theta * (1.0 - theta) * spread / (first * second)

    ends = []
    for outside in (0.0, 1.0):
        inside = probability
        for _ in range(60):  # halvings: more than a float64 has digits
            halfway = (inside + outside) / 2.0
            inside, outside = (halfway, outside) if contains(halfway) else (inside, halfway)
        ends.append(inside)
    return ends[0], ends[1]


def bootstrap_improvement(
    first: np.ndarray, second: np.ndarray, level: float = 0.95, repetitions: int = 2000, seed: int = 0
) -> tuple[float, float]:
    """Percentile bootstrap interval of the probability of improvement (Agarwal et al. 2021)."""
    generator = np.random.default_rng(seed)
    wins = _wins(first, second)
    # How often each score is drawn says all about a resample.
    counts = [generator.multinomial(size, np.full(size, 1.0 / size), repetitions) for size in wins.shape]
    estimates = np.sum(counts[0] @ wins * counts[1], axis=1) / wins.size
    return percentile_interval(estimates, level)


def bootstrap_difference(
    first: np.ndarray, second: np.ndarray, level: float = 0.95, repetitions: int = 2000, seed: int = 0
) -> tuple[float, float]:
    """Percentile bootstrap interval of IQM(first) - IQM(second); groups are resampled apart."""
    generator = np.random.default_rng(seed)
    resampled = [generator.choice(scores, (repetitions, len(scores))) for scores in (first, second)]
    estimates = _iqm_of_rows(resampled[0]) - _iqm_of_rows(resampled[1])
    return percentile_interval(estimates, level)


def mann_whitney_p_value(first: np.ndarray, second: np.ndarray) -> float:
    """Two-sided p-value of the Mann-Whitney test: that so unequal groups come of one distribution.

    The share of all ways to deal the scores into two groups of these sizes in which U is as far
    from its mean (Mann and Whitney 1947); exact with ties, too. Of more than MOST_EXACT scores it
    is the normal approximation with the correction for ties (Lehmann 1975).
    """
    n, m = len(first), len(second)
    doubled = _doubled_ranks(np.concatenate([first, second]))  # whole numbers, also of ties
    total = n + m
    distance = abs(int(doubled[:n].sum()) - n * (total + 1))
    if total > MOST_EXACT:
        variance = n * m / (total * (total - 1.0)) * float(np.sum((doubled - (total + 1)) ** 2))
        return 2.0 * NormalDist().cdf(-distance / math.sqrt(variance)) if variance > 0 else 1.0
    # ways[k, s]: in how many ways k of the scores so far have ranks that sum to s
    ways = np.zeros((n + 1, int(doubled.sum()) + 1))
    ways[0, 0] = 1.0
    for rank in doubled:
        ways[1:, rank:] += ways[:-1, : ways.shape[1] - rank]  # NumPy copies what overlaps
    sums = np.arange(ways.shape[1])
    return float(ways[n, abs(sums - n * (total + 1)) >= distance].sum() / ways[n].sum())


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values adjusted for all of them being looked at (Holm 1979), in the same order.

    With what is below α, the chance of one or more false claims is at most α.
    """
    adjusted = [0.0] * len(p_values)
    highest = 0.0
    for place, index in enumerate(np.argsort(p_values, kind="stable")):
        highest = max(highest, min(1.0, (len(p_values) - place) * p_values[index]))
        adjusted[index] = highest
    return adjusted


def scores_needed(probability: float, power: float = 0.8, significance: float = 0.05) -> int | None:
    """How many scores each group needs to be told apart with this power; None: no number is enough.

    Noether 1987, for the two-sided Mann-Whitney test, groups of equal size and a probability
    of improvement as given: 2n = (z_{1-α/2} + z_{1-β})² / (3 (p - ½)²). At least `fewest_scores`.
    """
    if probability == 0.5:
        return None
    normal = NormalDist()
    quantiles = normal.inv_cdf(1.0 - significance / 2.0) + normal.inv_cdf(power)
    needed = math.ceil(quantiles**2 / (6.0 * (probability - 0.5) ** 2))
    return max(needed, fewest_scores(significance))


def fewest_scores(significance: float = 0.05) -> int:
    """The smallest equal groups that the Mann-Whitney test can tell apart: 2 / C(2n, n) ≤ α."""
    size = 1
    while 2.0 / math.comb(2 * size, size) > significance:
        size += 1
    return size


def _iqm_of_rows(scores: np.ndarray) -> np.ndarray:
    """[repetitions]: the interquartile mean of each row, as `statistics.iqm`, of many at once."""
    cut = scores.shape[1] // 4
    return np.mean(np.sort(scores, axis=1)[:, cut : scores.shape[1] - cut], axis=1)


def _wins(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """[n, m]: 1 where the score of the first group is higher, ½ where both are equal, else 0."""
    return (first[:, None] > second) + 0.5 * (first[:, None] == second)  # also of infinite scores


def _doubled_ranks(scores: np.ndarray) -> np.ndarray:
    """Twice the rank of each score, from 2; equal scores share the mean of their ranks."""
    ordered = np.sort(scores)
    return np.searchsorted(ordered, scores, "left") + np.searchsorted(ordered, scores, "right") + 1
