"""What `birl diagnose` finds, as data."""

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from birl.run.files import strict_json

Learned = Literal["improved", "improved and fell", "not moved", "fell", "too short"]
Proof = Literal["fork", "new runs", "evaluation", "none"]  # how a suggestion can be tried


@dataclass(frozen=True)
class Change:
    """A setting to try: its value becomes `value`, or so many times as large and at most `most`."""

    setting: str
    value: Any
    how: Literal["set", "times", "at least", "at most"] = "set"
    most: float = math.inf
    unless: str = ""  # not for algorithms that have this setting
    multiple_of: str = ""  # the new value is a multiple of this setting, if the algorithm has it


@dataclass(frozen=True)
class Rule:
    """A fault, how it shows, and what to try."""

    name: str
    title: str  # what is wrong, as a sentence
    sees: str  # which metrics, settings or files show it
    limits: dict[str, float]  # by name; the rule's evidence compares with these
    why: str  # why it is bad
    advice: str  # what to try, in words
    changes: tuple[Change, ...] = ()  # the same as settings; those that the algorithm lacks are left out
    draw: tuple[str, ...] = ()  # metrics whose curves show it
    causes: tuple[str, ...] = ()  # rules that may fire only because this one does
    proof: Proof = "fork"
    only_speed: bool = False  # the run learns as it should, but takes too long


@dataclass(frozen=True)
class Evidence:
    """The numbers that show a fault."""

    sentence: str
    numbers: dict[str, float]
    confidence: float  # from 0 to 1
    lines: dict[str, float] = dataclasses.field(default_factory=dict)  # by metric: the limit to draw


@dataclass(frozen=True)
class Unseen:
    """A rule that could not be checked, and why."""

    reason: str


Outcome = Evidence | Unseen | None  # None: checked, and nothing is wrong


@dataclass(frozen=True)
class Finding:
    """A rule that fired."""

    rule: str
    title: str
    evidence: Evidence
    why: str
    advice: str
    changes: dict[str, Any]  # settings to try, by flat name, with their new values
    command: str  # that tries them; "": no setting would help
    run_dir: Path  # whose numbers these are: of several seeds the one in which it is clearest
    lasting: str | None = None  # a finding that follows from it and that a fork would inherit
    follows_from: str | None = None  # the rule that probably caused it
    seeds: tuple[int, int] = (1, 1)  # that show it, of all that were looked at


@dataclass(frozen=True)
class Verdict:
    """Whether the run has learned: the return at its beginning, at its best and now."""

    learned: Learned
    sentence: str
    first: float | None = None
    best: float | None = None
    last: float | None = None
    clear: float | None = None  # differences of returns below this may be chance


@dataclass(frozen=True)
class Baseline:
    """The mean return of random actions, with its 95 % interval."""

    mean: float
    low: float
    high: float
    episodes: int


@dataclass(frozen=True)
class Diagnosis:
    """What is probably wrong with a run, or with the seeds of a group; the cause comes first."""

    run_dir: Path
    label: str  # algorithm and environment
    env_steps: int
    total_steps: int
    verdict: Verdict
    findings: list[Finding]  # of several seeds, what at least half of them show
    healthy: list[str]  # rules that were checked and did not fire
    unseen: dict[str, str]  # rules that could not be checked: why
    in_few: list[Finding] = dataclasses.field(default_factory=list)  # what fewer than half of the seeds show
    seeds: int = 1
    runs: list[Path] = dataclasses.field(default_factory=list)  # the run directory of each seed
    baseline: Baseline | None = None  # what random actions return, if nothing was learned and no cause was found
    no_baseline: str = ""  # why that is not known

    @property
    def learned_nothing(self) -> bool:
        """Whether there were enough episodes to say that the return is no better than it was."""
        return self.verdict.learned not in ("improved", "too short")

    def to_json(self) -> dict[str, Any]:
        """All of it as strict JSON."""
        found: dict[str, Any] = strict_json(dataclasses.asdict(self))
        return found
