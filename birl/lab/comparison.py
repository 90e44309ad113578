"""What `birl compare` finds, as data."""

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

from birl.run.files import strict_json

Interval = tuple[float, float]  # of 95 %


@dataclass(frozen=True)
class Spread:
    """A number of each seed, and its statistics over the seeds."""

    values: dict[str, float]  # by the seed's run directory
    iqm: float | None  # None: no seed has a value
    interval: Interval | None  # of the IQM, by the bootstrap; None: fewer than two seeds
    mean: float | None
    std: float | None
    worst: dict[str, Any] | None  # "directory", "return_mean"


@dataclass(frozen=True)
class Reached:
    """When the seeds of a group reached the target; a seed that did not counts as never."""

    seeds: int  # how many of them reached it
    env_steps: float | None  # the median over all seeds; None: half of them did not reach it
    wall_seconds: float | None
    cpu_seconds: float | None


@dataclass(frozen=True)
class GroupResult:
    """One column: the seeds of one group."""

    label: str
    settings: dict[str, Any]
    directories: list[str]  # of all its runs
    failed: dict[str, str]  # directory: why it failed; these count nowhere else
    score: Spread
    area: Spread  # mean training return over the steps that all runs have
    reached: Reached | None  # None: there is no target
    env_steps: float | None  # of training, the median over seeds


@dataclass(frozen=True)
class PairResult:
    """Two groups side by side."""

    first: str  # labels
    second: str
    seeds: tuple[int, int]  # that have a score
    probability: float | None  # that a seed of the first beats one of the second; ties count half
    probability_interval: Interval | None  # Newcombe's
    probability_bootstrap: Interval | None  # as in Agarwal et al. 2021; too narrow with few seeds
    iqm_difference: float | None  # first - second
    difference_interval: Interval | None  # by the bootstrap
    p_value: float | None  # of the Mann-Whitney test, two-sided; None: one group has fewer than two seeds
    adjusted_p_value: float | None  # for all pairs of the comparison, by Holm's method
    verdict: Literal["first", "second", "undecided"]  # which is better
    seeds_needed: int | None  # of each group, to tell them apart; None: they are, or it cannot be said
    sentence: str  # the verdict, in words
    differing: dict[str, tuple[Any, Any]]  # the settings that differ, with both values


@dataclass(frozen=True)
class Comparison:
    """Groups of seeds in one environment, side by side."""

    env_id: str
    score: str  # what the score of a seed is, in words
    scored_policy: str  # which policy was scored, over how many episodes; "" with training returns
    at: int | None  # environment steps at which the runs are compared; None: each at its end
    target: float | None  # the training return whose first time is asked for
    target_reason: str
    step_range: Interval | None  # of the area; None: no steps that all runs have
    groups: list[GroupResult]
    pairs: list[PairResult]  # each group with the first, or all pairs
    notices: list[str]  # what a reader must know to trust the numbers
    level: float = 0.95  # of all intervals

    def correction(self) -> str:
        """For how many pairs the p-values are adjusted, in words; "" for one."""
        counted = sum(pair.p_value is not None for pair in self.pairs)
        if counted < 2:
            return ""
        which = "each group with every other" if self.has_every_pair else "each group with the first"
        return f"p is adjusted by Holm's method for {counted} pairs, {which}"

    @property
    def has_every_pair(self) -> bool:
        """Whether there are more pairs than those with the first group."""
        return len(self.pairs) > len(self.groups) - 1

    def to_json(self) -> dict[str, Any]:
        """All of it as strict JSON: tuples are lists, and what is not finite is null."""
        found: dict[str, Any] = strict_json(dataclasses.asdict(self))
        return found
