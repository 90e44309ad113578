"""Statistics of the episodes in rollouts, and how long acting, stepping and learning took.

Where an episode is one life of a game, whole games are counted.
"""

import math
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from birl.types import NOT_SAID, Array, Metrics, Rollout, Snapshot

MOST_ROWS = 1024  # of a rollout that are looked at; reducing all of a long one takes milliseconds
FIRST_ROLLOUTS = 16  # whose observations are all looked at; of later short ones, one in 16
UNKNOWN: Metrics = dict.fromkeys(("observation/largest", "observation/widest", "observation/constant_share"), math.nan)


class Ranges:
    """Running ranges: of the rewards, and of each number of an observation.

    All rewards count, and a sample of the observations, so that it takes no time. Only
    floating-point parts count: pixels, categories and bits have known ranges.
    """

    def __init__(self) -> None:
        self.rewards = math.inf, -math.inf
        self.low: list[np.ndarray] = []  # one array for each part of an observation
        self.high: list[np.ndarray] = []
        self.rollouts = 0
        self._observation_metrics = UNKNOWN

    def add(self, rollout: Rollout) -> None:
        """Add the rewards of the valid steps, and a sample of the observations."""
        rewards = rollout.rewards[rollout.valid]
        if rewards.size:
            low, high = self.rewards
            self.rewards = min(low, float(rewards.min())), max(high, float(rewards.max()))
        rows = rollout.rewards.size
        if self.rollouts < FIRST_ROLLOUTS or rows >= MOST_ROWS or self.rollouts % 16 == 0:
            stride = max(1, rows // MOST_ROWS)
            parts = rollout.observations.values() if isinstance(rollout.observations, dict) else [rollout.observations]
            floats = [part for part in parts if isinstance(part, np.ndarray) and part.dtype.kind == "f"]
            self.add_observations([part[::stride].reshape(-1, *part.shape[2:]) for part in floats])
        self.rollouts += 1

    def add_observations(self, parts: list[np.ndarray]) -> None:
        """Add the parts [N, ...] of N observations."""
        floats = [part for part in parts if part.dtype.kind == "f" and part.size]
        low, high = [part.min(axis=0) for part in floats], [part.max(axis=0) for part in floats]
        if [part.shape for part in self.low] == [part.shape for part in low]:
            low = [np.minimum(*pair) for pair in zip(self.low, low, strict=True)]
            high = [np.maximum(*pair) for pair in zip(self.high, high, strict=True)]
        self.low, self.high = low, high
        self._observation_metrics = self._summarized()

    def metrics(self) -> Metrics:
        """The ranges as few numbers; NaN where they are not known."""
        low, high = self.rewards
        known = low <= high
        rewards = {"reward/min": low if known else math.nan, "reward/max": high if known else math.nan}
        return rewards | self._observation_metrics

    def _summarized(self) -> Metrics:
        if not self.low:
            return UNKNOWN
        pairs = list(zip(self.low, self.high, strict=True))
        constant = sum(int(np.count_nonzero(low == high)) for low, high in pairs)
        return {
            "observation/largest": max(float(max(high.max(), -low.min())) for low, high in pairs),
            "observation/widest": max(float((high - low).max()) for low, high in pairs),
            "observation/constant_share": constant / sum(low.size for low, _ in pairs),
        }

    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays of a Snapshot."""
        pairs = enumerate(zip(self.low, self.high, strict=True))
        ranges = {f"ranges/observations/{i}": np.stack([low, high]) for i, (low, high) in pairs}
        return ranges | {"ranges/rewards": np.array(self.rewards), "ranges/rollouts": np.array(self.rollouts)}

    def restore(self, snapshot: Snapshot) -> None:
        """Go on from a snapshot; older ones have no ranges."""
        if "ranges/rollouts" not in snapshot.arrays:
            return
        self.rollouts = int(snapshot.arrays["ranges/rollouts"])
        low, high = snapshot.arrays["ranges/rewards"]
        self.rewards = float(low), float(high)
        saved = snapshot.arrays_under("ranges/observations/")
        pairs = [saved[name] for name in sorted(saved, key=int)]
        self.low, self.high = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        self._observation_metrics = self._summarized()


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
