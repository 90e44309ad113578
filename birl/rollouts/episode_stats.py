"""What is counted while rollouts are collected: episodes, their returns and lengths, and where the
time went.

Where an episode is one life of a game, whole games are counted.
"""

import math
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from birl.types import Array, Metrics, Rollout, Snapshot

RECENT_EPISODES = 20  # `episode/return` is the mean over this many finished episodes
NEITHER = math.nan, math.nan


class EpisodeStats:
    """Of B environments: returns and lengths of their unfinished episodes, and of the last finished
    ones.
    """

    def __init__(self, num_envs: int) -> None:
        self.returns = np.zeros(num_envs)  # of the unfinished episodes
        self.lengths = np.zeros(num_envs, np.int64)
        self.recent: deque[tuple[float, int]] = deque(maxlen=RECENT_EPISODES)
        self.episodes = 0
        self.seconds = {"environment": 0.0, "policy": 0.0, "learning": 0.0}

    def count(self, rollout: Rollout) -> None:
        """Go on by the steps of this rollout."""
        returns = self.returns + np.cumsum(rollout.rewards, axis=0, dtype=np.float64)
        lengths = self.lengths + np.cumsum(rollout.valid, axis=0)
        offsets = np.zeros((2, len(self.returns)))  # what belongs to episodes finished before, in this rollout
        ended, begun = rollout.terminated | rollout.truncated, ~rollout.valid
        if rollout.game_over is not None:
            ended, begun = ended & rollout.game_over, begun & rollout.game_over
        for t, i in zip(
            *np.nonzero(ended | begun), strict=True
        ):  # a reset without an end: the episode was lost, see envs/workers
            if ended[t, i]:
                self.recent.append((float(returns[t, i] - offsets[0, i]), int(lengths[t, i] - offsets[1, i])))
                self.episodes += 1
            offsets[:, i] = returns[t, i], lengths[t, i]
        self.returns, self.lengths = returns[-1] - offsets[0], (lengths[-1] - offsets[1]).astype(np.int64)

    def drop_unfinished(self, rows: Array | slice) -> None:
        """Forget the unfinished episodes of these environments: they begin new ones."""
        self.returns[rows], self.lengths[rows] = 0.0, 0

    def metrics(self) -> Metrics:
        """Mean return and length of the last finished episodes, NaN before the first; seconds spent
        so far.
        """
        # Without NumPy, whose mean takes longer for so few: this is asked for after each update.
        mean_return, mean_length = (
            (sum(column) / len(self.recent) for column in zip(*self.recent, strict=True)) if self.recent else NEITHER
        )
        episodes = {"episode/return": mean_return, "episode/length": mean_length, "episode/count": self.episodes}
        return episodes | {f"time/{name}_seconds": seconds for name, seconds in self.seconds.items()}

    def arrays(self) -> dict[str, np.ndarray]:
        """A World's arrays of this."""
        return {"collector/returns": self.returns.copy(), "collector/lengths": self.lengths.copy()}

    def values(self) -> dict[str, object]:
        """A World's values of this."""
        return {"recent": list(self.recent), "episodes": self.episodes, "seconds": dict(self.seconds)}

    def restore(self, snapshot: Snapshot) -> None:
        """Go on where this world was taken."""
        self.returns, self.lengths = (
            snapshot.array_like(f"collector/{name}", array)
            for name, array in (("returns", self.returns), ("lengths", self.lengths))
        )
        self.recent.extend((float(total), int(length)) for total, length in snapshot.values["recent"])
        self.episodes = int(snapshot.values["episodes"])
        self.seconds = {name: float(snapshot.values["seconds"][name]) for name in self.seconds}

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Add what runs inside to `time/NAME_seconds`."""
        before = time.perf_counter()
        yield
        self.seconds[name] += time.perf_counter() - before
