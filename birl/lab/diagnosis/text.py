"""A diagnosis in words."""

import math
import textwrap

from birl.errors import printable
from birl.lab.diagnosis.findings import Diagnosis, Finding
from birl.lab.diagnosis.rules import RULES
from birl.run.console import number

WIDTH = 100


def diagnosis_text(diagnosis: Diagnosis) -> str:
    """The whole diagnosis: what was learned, what is wrong, what was checked."""
    least = "at least " if diagnosis.seeds > 1 else ""
    share = f" of {diagnosis.total_steps:,}" if diagnosis.total_steps else ""
    seeds = f", {diagnosis.seeds} seeds" if diagnosis.seeds > 1 else ""
    lines = [f"{diagnosis.label}, {least}{diagnosis.env_steps:,}{share} steps{seeds}: {diagnosis.verdict.sentence}", ""]
    for place, finding in enumerate(diagnosis.findings, start=1):
        lines += [*finding_lines(f"{place}.", finding), ""]
    if not diagnosis.findings:
        lines += [*_wrapped(nothing_found(diagnosis), ""), ""]
    for finding in diagnosis.in_few:
        lines += [*finding_lines(in_seeds(finding), finding), ""]
    lines += _wrapped(f"{checked(diagnosis)}: {', '.join(diagnosis.healthy) or 'nothing'}", "  ")
    lines += [
        line for name, reason in diagnosis.unseen.items() for line in _wrapped(f"not checked: {name}: {reason}", "  ")
    ]
    return "\n".join(map(printable, lines))


def nothing_found(diagnosis: Diagnosis) -> str:
    """What is said where there is no finding."""
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
    """What is said of the rules that did not fire."""
    return "ruled out" if diagnosis.learned_nothing and not diagnosis.findings else "checked, and nothing wrong"


def in_seeds(finding: Finding) -> str:
    """How many seeds show what few do, before its title."""
    return f"in {finding.seeds[0]} of {finding.seeds[1]} seeds:"


def finding_lines(mark: str, finding: Finding) -> list[str]:
    """One finding: title, numbers, why it is bad, what to try."""
    return [
        f"{mark} {finding.title} {details(finding)}",
        *_wrapped(f"{sentence(finding.evidence.sentence)} {finding.why}", "   "),
        *_wrapped(f"try: {finding.advice}", "   "),
        *([f"   {finding.command}"] if finding.command else []),
    ]


def details(finding: Finding) -> str:
    """What stands behind a finding's title: its rule, how many seeds show it, why it is there."""
    count, seeds = finding.seeds
    of = f" ({count} of {seeds} seeds)" if 1 < seeds <= 2 * count else ""
    after = f", which may follow from {finding.follows_from}" if finding.follows_from else ""
    speed = ", which costs only time" if RULES[finding.rule].only_speed else ""
    return f"[{finding.rule}]{of}{after}{speed}"


def sentence(text: str) -> str:
    """The text with a capital letter and a full stop."""
    return f"{text[:1].upper()}{text[1:]}."


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(
        text, WIDTH, initial_indent=indent if indent == "   " else "", subsequent_indent=indent, break_long_words=False,
        break_on_hyphens=False,
    )  # fmt: skip
