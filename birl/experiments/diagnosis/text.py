"""A diagnosis in words."""

import textwrap

from birl.experiments.diagnosis.findings import Diagnosis, Finding
from birl.experiments.diagnosis.rules import RULES
from birl.run.display import printable

WIDTH = 100


def diagnosis_text(diagnosis: Diagnosis) -> str:
    """The whole diagnosis: what was learned, what is wrong, what was checked."""
    least = "at least " if diagnosis.seeds > 1 else ""
    share = f" of {diagnosis.total_steps:,}" if diagnosis.total_steps else ""
    seeds = f", {diagnosis.seeds} seeds" if diagnosis.seeds > 1 else ""
    lines = [f"{diagnosis.label}, {least}{diagnosis.env_steps:,}{share} steps{seeds}: {diagnosis.verdict.sentence}", ""]
    for number, finding in enumerate(diagnosis.findings, start=1):
        lines += [*finding_lines(f"{number}.", finding), ""]
    if not diagnosis.findings:
        lines += [nothing_found(diagnosis), ""]
    for finding in diagnosis.in_few:
        lines += [*finding_lines(in_seeds(finding), finding), ""]
    lines += _wrapped(f"checked, and nothing wrong: {', '.join(diagnosis.healthy) or 'nothing'}", "  ")
    lines += [
        line for name, reason in diagnosis.unseen.items() for line in _wrapped(f"not checked: {name}: {reason}", "  ")
    ]
    return "\n".join(map(printable, lines))


def nothing_found(diagnosis: Diagnosis) -> str:
    """What is said where there is no finding."""
    return "no fault is in half of the seeds or more" if diagnosis.in_few else "nothing wrong was found"


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
