"""The policies that a search has found: the best checkpoint of each trial, and the best of them."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from birl.errors import CheckpointError
from birl.lab.tuning.runs import run_dir_of, saved_steps
from birl.run import checkpoint
from birl.run.directory import CHECKPOINTS
from birl.run.evaluating import Evaluation, evaluate_policy
from birl.run.given import Given
from birl.run.loading import load_to_play
from birl.run.policy import Policy

CONTENDERS = 3  # policies that play against each other
TRIED = 20  # episodes with each
LEAST_EPISODES = 5

Play = Callable[[int, int], Evaluation]  # so many episodes with this seed
Clock = Callable[[], float]


class Found(NamedTuple):
    """The best checkpoint of a trial, by the trial's own evaluations."""

    trial: int
    run_dir: Path
    env_steps: int  # after which it was saved
    score: float


class Player(NamedTuple):
    """A policy that was found, and how it acts."""

    found: Found
    policy: Policy
    env: Any
    deterministic: bool

    def play(self, episodes: int, seed: int) -> Evaluation:
        """Whole episodes."""
        limit = self.policy.config.run.eval_max_steps
        return evaluate_policy(self.policy, self.env, episodes, seed, self.deterministic, limit)


def found_policies(directory: Path, result: dict[str, Any], seed: int) -> list[Found]:
    """The best checkpoint of each trial that has a score, highest first."""
    found = []
    for number, trial in enumerate(result["trials"]):
        scores = [score for score in trial["scores"] if score is not None]
        if not scores or trial["problem"] is not None:
            continue
        try:
            run_dir = run_dir_of(directory, trial["directory"], seed)
            best = checkpoint.read_best(run_dir / CHECKPOINTS)
        except CheckpointError:  # a link instead of a directory
            continue
        if best is None:
            found.append(Found(number, run_dir, saved_steps(run_dir), scores[-1]))
        else:
            found.append(Found(number, run_dir, int(best["checkpoint"]), best["return_mean"]))
    return sorted(found, key=lambda one: one.score, reverse=True)


def player_of(found: Found, trust: bool) -> Player:
    """The policy of a checkpoint, acting as in its evaluations."""
    policy, env = load_to_play(found.run_dir, Given(trust=trust))
    return Player(found, policy, env, policy.config.run.eval_deterministic)


def play_off(plays: Sequence[Play], seed: int, seconds: float, clock: Clock = time.monotonic) -> tuple[int, float]:
    """Which has the highest mean return, and the seconds of one of its episodes.

    All play the same episodes: a few, and as many more as fit into the time at that speed.
    """
    begin = clock()
    returns: list[np.ndarray] = []
    each: list[float] = []
    for play in plays:
        before = clock()
        returns.append(play(LEAST_EPISODES, seed).returns)
        each.append((clock() - before) / LEAST_EPISODES)
    more = episodes_that_fit(seconds - (clock() - begin), sum(each), TRIED - LEAST_EPISODES)
    if more > 0 and len(plays) > 1:
        returns = [np.append(own, play(more, seed + 1).returns) for own, play in zip(returns, plays, strict=True)]
    best = int(np.argmax([own.mean() for own in returns]))
    return best, each[best]


def episodes_that_fit(seconds: float, each: float, wanted: int, least: int = 0) -> int:
    """The episodes that can be played in this time; `wanted` at most, and `least` in any case."""
    if seconds == float("inf"):
        return wanted
    return min(wanted, max(least, int(seconds / max(each, 1e-9))))
