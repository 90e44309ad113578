"""What pools report about their actor-learners: metrics, episodes, why a resume is not exact."""

import numpy as np

from birl.asynchronous.actor_learner import Work
from birl.asynchronous.parameters import SharedParameters
from birl.rollouts.episode_stats import without_unknown
from birl.types import Metrics

# Metrics to add up, and those of which the least or most is taken; of the others it is the mean.
SUMMED = {"episode/count", "replay/steps", "replay/bytes"}
LEAST = {"reward/min", "observation/constant_share"}
MOST = {"reward/max", "observation/largest", "observation/widest"}


def combine_metrics(rows: np.ndarray, names: tuple[str, ...]) -> Metrics:
    """One set of metrics from those of n actor-learners [n, MOST_METRICS]; NaNs are left out."""
    combined: Metrics = {}
    for column, name in enumerate(names):
        numbers = rows[:, column][~np.isnan(rows[:, column])]
        if name in SUMMED:
            combined[name] = int(numbers.sum())
            continue
        take = np.min if name in LEAST else np.max if name in MOST else np.mean
        combined[name] = float(take(numbers)) if len(numbers) else float("nan")
    return without_unknown(combined)


def take_episode_count(shared: SharedParameters, names: tuple[str, ...], number: int) -> int:
    """The number of episodes that an actor-learner has finished. Its count is set to 0."""
    if "episode/count" not in names:
        return 0
    column = names.index("episode/count")
    count = int(np.nan_to_num(shared.metrics[number, column]))
    shared.metrics[number, column] = 0
    return count


def inexact_reason(where: str, work: Work) -> str:
    """Why a run of actor-learners that run freely cannot be resumed exactly."""
    replays = "" if work.replay is None else " and with empty replays"
    return f"actor-learners in {where} run freely: they continue from the saved parameters, in new episodes{replays}"
