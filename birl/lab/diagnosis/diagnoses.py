"""A diagnosis as data, and in words."""

import dataclasses
import math
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from birl.errors import printable
from birl.lab.diagnosis.rules import RULES
from birl.run.console import number
from birl.run.files import strict_json

Learned = Literal["improved", "improved and fell", "not moved", "fell", "too short"]
WIDTH = 100


@dataclass(frozen=True)
class Evidence:
    """The numbers that show a fault."""

    sentence: str
    numbers: dict[str, float]
    confidence: float  # from 0 to 1
    lines: dict[str, float] = dataclasses.field(default_factory=dict)  # by metric: the limit to draw


class Unseen(Exception):  # noqa: N818  it is no error
    """The reason why a rule cannot be checked."""


@dataclass(frozen=True)
class Fault:
    """A rule that fired."""

    rule: str
    title: str
    evidence: Evidence
    why: str
    advice: str
    changes: dict[str, Any]  # settings to try, by flat name, with their new values
    command: str  # that tries them; "": no setting would help
    run_dir: Path  # whose numbers these are: of several seeds the one in which it is clearest
    lasting: str | None = None  # a fault that follows from it and that a fork would inherit
    follows_from: str | None = None  # the rule that probably caused it
    seeds: tuple[int, int] = (1, 1)  # that show it, of all that were looked at


@dataclass(frozen=True)
class Verdict:
    """The answer whether a run has learned: its return at the beginning, at its best and now."""

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
    """The faults of a run, or of the seeds of a group; the cause comes first."""

    run_dir: Path
    label: str  # algorithm and environment
    env_steps: int
    total_steps: int
    verdict: Verdict
    findings: list[Fault]  # of several seeds, what at least half of them show
    healthy: list[str]  # rules that were checked and did not fire
    unseen: dict[str, str]  # rules that could not be checked: why
    in_few: list[Fault] = dataclasses.field(default_factory=list)  # what fewer than half of the seeds show
    seeds: int = 1
    runs: list[Path] = dataclasses.field(default_factory=list)  # the run directory of each seed
    baseline: Baseline | None = None  # what random actions return, if nothing was learned and no cause was found
    no_baseline: str = ""  # why that is not known

    @property
    def learned_nothing(self) -> bool:
        """True if there were enough episodes to say that the return is no better than it was."""
        return self.verdict.learned not in ("improved", "too short")

    def to_json(self) -> dict[str, Any]:
        """All of it as strict JSON."""
        found: dict[str, Any] = strict_json(dataclasses.asdict(self))
        return found


def diagnosis_text(diagnosis: Diagnosis) -> str:
    """The whole diagnosis: what was learned, what is wrong, what was checked."""
    least = "at least " if diagnosis.seeds > 1 else ""
    share = f" of {diagnosis.total_steps:,}" if diagnosis.total_steps else ""
    seeds = f", {diagnosis.seeds} seeds" if diagnosis.seeds > 1 else ""
    lines = [f"{diagnosis.label}, {least}{diagnosis.env_steps:,}{share} steps{seeds}: {diagnosis.verdict.sentence}", ""]
    for place, fault in enumerate(diagnosis.findings, start=1):
        lines += [*_fault_lines(f"{place}.", fault), ""]
    if not diagnosis.findings:
        lines += [*_wrapped(nothing_found(diagnosis), ""), ""]
    for fault in diagnosis.in_few:
        lines += [*_fault_lines(in_seeds(fault), fault), ""]
    lines += _wrapped(f"{checked(diagnosis)}: {', '.join(diagnosis.healthy) or 'nothing'}", "  ")
    lines += [
        line for name, reason in diagnosis.unseen.items() for line in _wrapped(f"not checked: {name}: {reason}", "  ")
    ]
    return "\n".join(map(printable, lines))


def nothing_found(diagnosis: Diagnosis) -> str:
    """The text for a diagnosis without a fault."""
    found = "no fault is in half of the seeds or more" if diagnosis.in_few else "nothing wrong was found"
    if not diagnosis.learned_nothing:
        return found
    found = "no known cause was found" + (" in half of the seeds or more" if diagnosis.in_few else "")
    one, last = diagnosis.baseline, diagnosis.verdict.last
    if one is None or last is None:
        reason = f": {diagnosis.no_baseline}" if diagnosis.no_baseline else ""
        return f"{found}; not compared with random actions{reason}"
    width = math.hypot((one.high - one.low) / 2, diagnosis.verdict.clear or 0.0)
    better = "better" if last > one.mean + width else "worse" if last < one.mean - width else "no better"
    at_random = f"{number(one.mean)} ({number(one.low)} to {number(one.high)}, {one.episodes} episodes)"
    return f"{found}; random actions return {at_random}, and with {number(last)} this is {better}"


def checked(diagnosis: Diagnosis) -> str:
    """The text for rules that did not fire."""
    return "ruled out" if diagnosis.learned_nothing and not diagnosis.findings else "checked, and nothing wrong"


def in_seeds(fault: Fault) -> str:
    """The number of seeds that show a fault of few, before its title."""
    return f"in {fault.seeds[0]} of {fault.seeds[1]} seeds:"


def _fault_lines(mark: str, fault: Fault) -> list[str]:
    """One fault: title, numbers, why it is bad, what to try."""
    return [
        f"{mark} {fault.title} {details(fault)}",
        *_wrapped(f"{sentence(fault.evidence.sentence)} {fault.why}", "   "),
        *_wrapped(f"try: {fault.advice}", "   "),
        *([f"   {fault.command}"] if fault.command else []),
    ]


def details(fault: Fault) -> str:
    """Details after a fault's title: its rule, the number of seeds that show it, its cause."""
    count, seeds = fault.seeds
    of = f" ({count} of {seeds} seeds)" if 1 < seeds <= 2 * count else ""
    after = f", which may follow from {fault.follows_from}" if fault.follows_from else ""
    speed = ", which costs only time" if RULES[fault.rule].only_speed else ""
    return f"[{fault.rule}]{of}{after}{speed}"


def sentence(text: str) -> str:
    """The text with a capital letter and a full stop."""
    return f"{text[:1].upper()}{text[1:]}."


def _wrapped(text: str, indent: str) -> list[str]:
    wrapper = textwrap.TextWrapper(WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    wrapper.initial_indent = indent if indent == "   " else ""
    return wrapper.wrap(text)
