"""The section with what `birl diagnose` finds: what is probably wrong, and what to try."""

from collections.abc import Iterator, Sequence

from birl.lab.diagnose import diagnose_runs
from birl.lab.diagnosis.baseline import with_baseline
from birl.lab.diagnosis.facts import facts_of
from birl.lab.diagnosis.findings import Diagnosis, Finding
from birl.lab.diagnosis.text import checked, details, in_seeds, nothing_found, sentence
from birl.lab.report.elements import (
    Content,
    Section,
    block,
    element,
    folded,
    join,
    named,
    paragraph,
    sentences,
    small,
)
from birl.run.history import SeedGroup

# What rules raise if a stranger's run has text for numbers, or numbers that overflow.
UNREADABLE = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


def findings_section(groups: Sequence[SeedGroup]) -> Section:
    """Of each group whether it has learned, and what is probably wrong with it."""
    parts: list[Content] = []
    for place, group in enumerate(groups):
        parts.append(element("h3", named(group.label, place)))
        try:
            diagnosis = with_baseline(diagnose_runs([facts_of(run) for run in group.runs]))
        except UNREADABLE as problem:
            parts.append(paragraph(f"It could not be diagnosed: {type(problem).__name__}: {problem}"))
            continue
        parts += diagnosis_parts(diagnosis)
    return Section("Diagnosis", join(parts))


def diagnosis_parts(diagnosis: Diagnosis) -> Iterator[Content]:
    """A diagnosis as HTML: what was learned, each finding, and, folded, what was checked."""
    ending = "" if diagnosis.findings else f" {sentence(nothing_found(diagnosis))}"
    yield element("p", sentences(sentence(diagnosis.verdict.sentence) + ending))
    if diagnosis.findings:
        yield element("ol", join(element("li", join(_finding(finding))) for finding in diagnosis.findings))
    if diagnosis.in_few:
        few = (element("li", join([f"{in_seeds(one)} ", *_finding(one)])) for one in diagnosis.in_few)
        yield element("ul", join(few))
    healthy = small(sentence(f"{checked(diagnosis)}: {', '.join(diagnosis.healthy) or 'nothing'}"))
    missing = [small(f"Not checked: {name}: {reason}.") for name, reason in diagnosis.unseen.items()]
    yield folded("What was checked", join([healthy, *missing]))


def _finding(finding: Finding) -> Iterator[Content]:
    yield element("b", finding.title)
    yield f" {details(finding)}"
    yield element("p", sentences(f"{sentence(finding.evidence.sentence)} {finding.why}"))
    yield element("p", sentences(f"Try: {finding.advice}"))
    if finding.command:
        yield block(finding.command)
