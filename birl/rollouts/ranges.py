"""The lowest and highest rewards and observations of a run so far, for its metrics."""

import math

import numpy as np

from birl.types import Metrics, Rollout, Snapshot

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
