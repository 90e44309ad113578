"""The types of settings, each with the limits of its values: a Fraction lies in [0, 1]."""

import dataclasses
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

from birl.maths.schedules import Schedule
from birl.search import Choices, LogRange
from birl.settings import Help

MOST_UNITS = 2**31  # in a layer; and the limit of every number that counts something


class Limit(NamedTuple):
    """A range of a setting's values; it is a part of the setting's type."""

    holds: Callable[[Any], bool]  # of a value; of the lowest and the highest of a schedule or a tuple
    text: str  # "must be at least 1"
    value: str = "{lowest}"  # in the message
    names_remedy: bool = False  # the message ends with what is usual, or with None if that is possible


AT_LEAST_ONE = Limit(lambda value: value >= 1, "must be at least 1")
BELOW_MOST = Limit(lambda value: value < MOST_UNITS, f"must be below {MOST_UNITS:,}", "{lowest:,}")
FROM_0_TO_1 = Limit(lambda value: 0 <= value <= 1, "must lie in [0, 1]")
BELOW_1 = Limit(lambda value: 0 <= value < 1, "must lie in [0, 1); 0.99 is usual")
PROBABLE = Limit(FROM_0_TO_1.holds, "must lie in [0, 1]: it is a probability", "from {lowest} to {highest}")
BELOW_100 = Limit(lambda value: value < 100, "must be below 100; 4 is usual")
POSITIVE = Limit(lambda value: value > 0, "must be positive", names_remedy=True)
NOT_NEGATIVE = Limit(lambda value: value >= 0, "must not be negative")
UNITS = Limit(lambda value: 0 < value < MOST_UNITS, f"must be at least 1, and below {MOST_UNITS:,}")
EACH_UNITS = UNITS._replace(text=f"must each be at least 1, and below {MOST_UNITS:,}", value="{value}")
TRANSITIONS = Limit(
    lambda value: value.endswith(".npz") or (value.startswith("minari:") and len(value) > len("minari:")),
    "must name an .npz file, or a Minari dataset as minari:DATASET-ID",
    "{value!r}",
)

# The types of settings, with the range of their values.
PositiveInt = Annotated[int, AT_LEAST_ONE, BELOW_MOST]
Natural = Annotated[int, NOT_NEGATIVE]
PositiveFloat = Annotated[float, POSITIVE]
NotNegative = Annotated[float, NOT_NEGATIVE]
Fraction = Annotated[float, FROM_0_TO_1]
PositiveFraction = Annotated[float, FROM_0_TO_1, POSITIVE]
Decay = Annotated[float, BELOW_1]
Rate = Annotated[float | Schedule, NOT_NEGATIVE]
PositiveRate = Annotated[float | Schedule, POSITIVE]
Probability = Annotated[float | Schedule, PROBABLE]
Units = Annotated[int, UNITS]
Sizes = Annotated[tuple[int, ...], EACH_UNITS]
Prefill = Annotated[str, TRANSITIONS]

# Settings that many algorithms have, with what there is to say and to search.
Discount = Annotated[
    float, FROM_0_TO_1, Help("γ: weight of a reward one step later"), Choices((0.9, 0.95, 0.98, 0.99, 0.995, 0.999))
]
TraceDecay = Annotated[
    float, FROM_0_TO_1, Help("λ of generalized advantage estimation"), Choices((0.8, 0.9, 0.95, 0.98, 1.0))
]
EntropyWeight = Annotated[float | Schedule, Help("weight of the entropy bonus"), LogRange(1e-5, 0.1)]
GRAD_NORMS = Choices((0.3, 0.5, 1.0, 2.0))


def lowest(value: Any) -> float:
    """The smallest value of a setting over the run; it is a number or a Schedule."""
    return min(value.values) if dataclasses.is_dataclass(value) else value  # type: ignore[union-attr]


def highest(value: Any) -> float:
    """The largest value of a setting over the run; it is a number or a Schedule."""
    return max(value.values) if dataclasses.is_dataclass(value) else value  # type: ignore[union-attr]
