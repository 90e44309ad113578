"""Search spaces as data: which values of a setting are worth trying.

They are annotations of the settings; `birl tune` and `birl solve` draw from them. The ranges are
near those of rl-zoo3 and of the papers, without the ends that rarely work.
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

EITHER = Choices((False, True))


def draw(space: SearchSpace, rng: np.random.Generator) -> dict[str, Any]:
    """A random point of the space: a value for each setting."""
    return {name: dimension.draw(rng) for name, dimension in space.items()}
