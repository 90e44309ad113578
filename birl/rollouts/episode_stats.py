"""Statistics of the episodes in rollouts, and how long acting, stepping and learning took.

Where an episode is one life of a game, whole games are counted.
"""

import math
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from birl.rollouts.ranges import UNKNOWN, Ranges
from birl.types import NOT_SAID, Array, Metrics, Rollout, Snapshot

RECENT_EPISODES = 20  # `episode/return` is the mean over this many finished episodes
OPTIONAL = ("episode/success", "episode/truncated_share", "reward/min", "reward/max", *UNKNOWN)  # not known by all


class EpisodeStats:
    """Returns and lengths of the unfinished and the last finished episodes of B environments."""

    def __init__(self, num_envs: int) -> None:
        self.returns = np.zeros(num_envs)  # of the unfinished episodes
        self.lengths = np.zeros(num_envs, np.int64)
        self.recent: deque[tuple[float, int]] = deque(maxlen=RECENT_EPISODES)  # return, length
        self.recent_successes: deque[bool] = deque(maxlen=RECENT_EPISODES)  # of those episodes that say
        self.recent_truncated: deque[bool] = deque(maxlen=RECENT_EPISODES)  # cut, for example by a time limit
        self.ranges = Ranges()
        self.episodes = 0
        self.seconds = {"environment": 0.0, "policy": 0.0, "learning": 0.0}

    def count(self, rollout: Rollout) -> None:
        """Add the steps of a rollout."""
        self.ranges.add(rollout)
        returns = self.returns + np.cumsum(rollout.rewards, axis=0, dtype=np.float64)
        lengths = self.lengths + np.cumsum(rollout.valid, axis=0)
        before = np.zeros((2, len(self.returns)))  # return and length of episodes that ended in this rollout
        ended, begun = rollout.terminated | rollout.truncated, ~rollout.valid
        if rollout.game_over is not None:
            ended, begun = ended & rollout.game_over, begun & rollout.game_over
        # A reset without an end: the worker was replaced and its episode is lost.
        for t, i in zip(*np.nonzero(ended | begun), strict=True):
            if ended[t, i]:
                self.recent.append((float(returns[t, i] - before[0, i]), int(lengths[t, i] - before[1, i])))
                self.recent_truncated.append(not rollout.terminated[t, i])
                self.episodes += 1
                if rollout.successes is not None and rollout.successes[t, i] != NOT_SAID:
                    self.recent_successes.append(bool(rollout.successes[t, i]))
            before[:, i] = returns[t, i], lengths[t, i]
        self.returns = returns[-1] - before[0]
        self.lengths = (lengths[-1] - before[1]).astype(np.int64)

    def drop_unfinished(self, rows: Array | slice) -> None:
        """Drop the unfinished episodes of these environments: they begin new ones."""
        self.returns[rows], self.lengths[rows] = 0.0, 0

    def metrics(self) -> Metrics:
        """Means over recent episodes, NaN before the first; seconds so far."""
        mean_return = mean_length = math.nan
        if self.recent:  # without NumPy, whose mean takes longer for so few numbers
            mean_return, mean_length = (sum(column) / len(self.recent) for column in zip(*self.recent, strict=True))
        successes = self.recent_successes
        success = sum(successes) / len(successes) if successes else math.nan
        episodes = {"episode/return": mean_return, "episode/length": mean_length, "episode/count": self.episodes}
        cut = self.recent_truncated
        episodes["episode/truncated_share"] = sum(cut) / len(cut) if cut else math.nan
        times = {f"time/{name}_seconds": seconds for name, seconds in self.seconds.items()}
        return episodes | self.ranges.metrics() | times | {"episode/success": success}

    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays of a Snapshot."""
        arrays = {"collector/returns": self.returns.copy(), "collector/lengths": self.lengths.copy()}
        return arrays | self.ranges.arrays()

    def values(self) -> dict[str, object]:
        """The values of a Snapshot."""
        values = {"recent": list(self.recent), "episodes": self.episodes, "seconds": dict(self.seconds)}
        values |= {"truncated": list(self.recent_truncated)}
        return values | ({"successes": list(self.recent_successes)} if self.recent_successes else {})

    def restore(self, snapshot: Snapshot) -> None:
        """Go on from a snapshot."""
        self.returns = snapshot.array_like("collector/returns", self.returns)
        self.lengths = snapshot.array_like("collector/lengths", self.lengths)
        self.recent.extend((float(total), int(length)) for total, length in snapshot.values["recent"])
        self.recent_successes.extend(map(bool, snapshot.values.get("successes", [])))
        self.recent_truncated.extend(map(bool, snapshot.values.get("truncated", [])))
        self.ranges.restore(snapshot)
        self.episodes = int(snapshot.values["episodes"])
        self.seconds = {name: float(snapshot.values["seconds"][name]) for name in self.seconds}

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Add the time of the block to `time/NAME_seconds`."""
        before = time.perf_counter()
        yield
        self.seconds[name] += time.perf_counter() - before


def without_unknown(metrics: Metrics) -> Metrics:
    """The metrics without those that are optional and not known, such as `episode/success`."""
    unknown = {name for name in OPTIONAL if math.isnan(metrics.get(name, 0.0))}
    return {name: value for name, value in metrics.items() if name not in unknown} if unknown else metrics
