"""Search spaces as data: which values of a setting are worth trying.

Each algorithm's file has a table SEARCH beside its Config; `birl tune` and `birl solve` draw from
it. The ranges are near those of rl-zoo3 and of the papers, without the ends that rarely work.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from birl.errors import require


def _require_ends(low: float, high: float) -> None:
    finite = math.isfinite(low) and math.isfinite(high)
    require(finite and low < high, f"the range {low:g}:{high:g} is empty; write LOW:HIGH")


@dataclass(frozen=True)
class Range:
    """Numbers from low to high, all equally likely; whole numbers if both ends are."""

    low: float
    high: float

    def __post_init__(self) -> None:
        _require_ends(self.low, self.high)

    @property
    def whole(self) -> bool:
        return isinstance(self.low, int) and isinstance(self.high, int)

    def draw(self, rng: np.random.Generator) -> float:
        """A random number of the range."""
        return (
            round(rng.integers(int(self.low), int(self.high) + 1)) if self.whole else rng.uniform(self.low, self.high)
        )

    def text(self) -> str:
        """The range as `--search` takes it."""
        return f"{self.low:g}:{self.high:g}"


@dataclass(frozen=True)
class LogRange:
    """Numbers from low to high, whose logarithms are equally likely; whole if both ends are."""

    low: float
    high: float

    def __post_init__(self) -> None:
        _require_ends(self.low, self.high)
        require(self.low > 0, f"the range {self.low:g}:{self.high:g} has no logarithms; use LOW above 0")

    @property
    def whole(self) -> bool:
        return isinstance(self.low, int) and isinstance(self.high, int)

    def draw(self, rng: np.random.Generator) -> float:
        """A random number of the range."""
        value = math.exp(rng.uniform(math.log(self.low), math.log(self.high)))
        return min(max(round(value) if self.whole else value, self.low), self.high)

    def text(self) -> str:
        """The range as `--search` takes it."""
        return f"{self.low:g}:{self.high:g}"


@dataclass(frozen=True)
class Choices:
    """These values, all equally likely: numbers, names, tuples, schedules, True and False, None."""

    values: tuple[Any, ...]

    def __post_init__(self) -> None:
        require(len(self.values) > 0, "a choice has no values; name at least one")

    def draw(self, rng: np.random.Generator) -> Any:
        """One of the values, at random."""
        return self.values[int(rng.integers(len(self.values)))]

    def text(self) -> str:
        """The values as people read them."""
        return ", ".join(f"{value:g}" if isinstance(value, float) else str(value) for value in self.values)


Dimension = Range | LogRange | Choices
SearchSpace = dict[str, Dimension]  # by the flat name of the setting

# What several algorithms have in common: their tables take these and add their own.
EITHER = Choices((False, True))
DISCOUNTS = Choices((0.9, 0.95, 0.98, 0.99, 0.995, 0.999))
LAMBDAS = Choices((0.8, 0.9, 0.95, 0.98, 1.0))
ENTROPY_WEIGHTS = LogRange(1e-5, 0.1)

SMALL_NETWORKS: SearchSpace = {
    "hidden_sizes": Choices(((64, 64), (128, 128), (256, 256))),
    "activation": Choices(("tanh", "relu")),
    "core_size": Choices((64, 128, 256)),
    "normalize_observations": EITHER,
    "normalize_rewards": EITHER,
}
ACTOR_CRITIC: SearchSpace = SMALL_NETWORKS | {
    "discount": DISCOUNTS,
    "entropy_weight": ENTROPY_WEIGHTS,
    "max_grad_norm": Choices((0.3, 0.5, 1.0, 2.0)),
    "log_std": Range(-2.0, 0.5),
}
REPLAY: SearchSpace = {
    "discount": DISCOUNTS,
    "batch_size": Choices((32, 64, 128, 256, 512)),
    "learning_starts": Choices((100, 1000, 5000)),
    "n_step": Choices((1, 3, 5)),
    "normalize_observations": EITHER,
}
Q_REPLAY: SearchSpace = REPLAY | {
    "learning_rate": LogRange(5e-5, 5e-3),
    "update_ratio": Choices((0.125, 0.25, 0.5, 1.0)),
    "replay_size": Choices((10_000, 50_000, 100_000)),
    "target_every": Choices((50, 100, 250, 1000)),
    "hidden_sizes": Choices(((64, 64), (128, 128), (256, 256))),
    "core_size": Choices((64, 128, 256)),
}
CONTINUOUS_REPLAY: SearchSpace = REPLAY | {
    "actor_learning_rate": LogRange(5e-5, 3e-3),
    "critic_learning_rate": LogRange(1e-4, 3e-3),
    "update_ratio": Choices((0.25, 0.5, 1.0)),
    "target_rate": Choices((0.002, 0.005, 0.01, 0.02, 0.05)),
    "hidden_sizes": Choices(((64, 64), (256, 256), (400, 300))),
    "layer_norm": EITHER,
}


def draw(space: SearchSpace, rng: np.random.Generator) -> dict[str, Any]:
    """A random point of the space: a value for each setting."""
    return {name: dimension.draw(rng) for name, dimension in space.items()}
