"""What is probably wrong with a run: every rule is checked, and the cause comes first."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from birl.experiments.diagnosis import input_evidence, learning_evidence
from birl.experiments.diagnosis.facts import Facts, facts_of
from birl.experiments.diagnosis.findings import Diagnosis, Evidence, Finding, Outcome, Rule, Unseen, Verdict
from birl.experiments.diagnosis.rules import RULES
from birl.experiments.diagnosis.suggestions import changed_settings, command_for
from birl.run.history import RunHistory, SeedGroup, by_settings, read_histories

CHECKS: dict[str, Callable[[Facts, Mapping[str, float]], Outcome]] = {
    name: vars(input_evidence).get(name.replace("-", "_")) or vars(learning_evidence)[name.replace("-", "_")]
    for name in RULES
}


def diagnose(run: str | Path) -> list[Diagnosis]:
    """What is probably wrong with a run, or with each group of seeds below a directory."""
    return diagnose_groups(by_settings(read_histories(Path(run))), Path(run))


def diagnose_groups(groups: Sequence[SeedGroup], directory: Path) -> list[Diagnosis]:
    """The diagnosis of each group of seeds below this directory."""
    return [diagnose_runs([facts_of(run) for run in group.runs], directory) for group in groups]


def diagnose_runs(seeds: Sequence[Facts], run_dir: Path | None = None) -> Diagnosis:
    """The diagnosis of runs that differ only in their seed.

    A fault counts if at least half of the seeds show it; its numbers are those of the seed in which
    it is clearest.
    """
    each = [diagnose_facts(facts) for facts in seeds]
    if len(each) == 1:
        return each[0]
    shown = {name: [one for one in each if any(f.rule == name for f in one.findings)] for name in RULES}
    fired: dict[str, Evidence] = {}
    for name, having in shown.items():
        if 2 * len(having) >= len(each):
            of_rule = [f.evidence for one in having for f in one.findings if f.rule == name]
            fired[name] = max(of_rule, key=lambda evidence: evidence.confidence)
    findings = ordered(fired, seeds[0].run)
    counted = [replace(finding, seeds=(len(shown[finding.rule]), len(each))) for finding in findings]
    unseen = {name: reason for name, reason in each[0].unseen.items() if all(name in one.unseen for one in each)}
    return replace(
        each[0],
        run_dir=run_dir or each[0].run_dir,
        verdict=_joint_verdict([one.verdict for one in each]),
        findings=counted,
        healthy=[name for name in RULES if name not in fired and name not in unseen],
        unseen=unseen,
        seeds=len(each),
        runs=[facts.run.run_dir for facts in seeds],
    )


def diagnose_facts(facts: Facts) -> Diagnosis:
    """The diagnosis of one run."""
    outcomes = {name: CHECKS[name](facts, rule.limits) for name, rule in RULES.items()}
    fired = {name: outcome for name, outcome in outcomes.items() if isinstance(outcome, Evidence)}
    run = facts.run
    return Diagnosis(
        run_dir=run.run_dir,
        label=f"{run.settings['algorithm']} {run.settings['env.id']}",
        env_steps=facts.env_steps,
        total_steps=int(facts.number("run.total_steps", 0)),
        verdict=facts.verdict,
        findings=ordered(fired, run),
        healthy=[name for name, outcome in outcomes.items() if outcome is None],
        unseen={name: outcome.reason for name, outcome in outcomes.items() if isinstance(outcome, Unseen)},
        runs=[run.run_dir],
    )


def ordered(fired: Mapping[str, Evidence], run: RunHistory) -> list[Finding]:
    """The findings, causes first: what follows from another one comes below it."""
    causes: dict[str, str] = {}
    for name in fired:
        above = [
            other
            for other in fired
            if name in RULES[other].causes and name not in _roots(other, causes) and _stronger(other, name, fired)
        ]
        if above:
            causes[name] = max(above, key=lambda other: fired[other].confidence)
    roots = [name for name in RULES if name in fired and name not in causes]
    roots.sort(key=lambda name: (RULES[name].only_speed, -round(fired[name].confidence, 1)))
    rest = [name for name in RULES if name in causes]
    return [_finding(RULES[name], fired[name], run, causes) for name in [*roots, *rest]]


def _roots(name: str, causes: Mapping[str, str]) -> set[str]:
    """The rules that this one was found to follow from, itself included."""
    found = {name}
    while name in causes and causes[name] not in found:
        name = causes[name]
        found.add(name)
    return found


def _stronger(cause: str, symptom: str, fired: Mapping[str, Evidence]) -> bool:
    """Whether the cause may stand above the symptom; of two that cause each other, the surer."""
    mutual = cause in RULES[symptom].causes
    order = list(RULES)
    if not mutual:
        return True
    difference = fired[cause].confidence - fired[symptom].confidence
    return difference > 0 or (difference == 0 and order.index(cause) < order.index(symptom))


def _finding(rule: Rule, evidence: Evidence, run: RunHistory, causes: Mapping[str, str]) -> Finding:
    changes = changed_settings(rule, run.settings)
    lasting = (name for name, cause in causes.items() if cause == rule.name and RULES[name].proof == "new runs")
    inherited = next(lasting, None)
    forks = rule.proof == "fork" and inherited is None
    return Finding(
        rule=rule.name,
        title=rule.title,
        evidence=evidence,
        why=rule.why,
        advice=rule.advice,
        changes=changes,
        command=command_for(rule, changes, run.run_dir, forks),
        lasting=inherited,
        follows_from=causes.get(rule.name),
    )


def _joint_verdict(verdicts: Sequence[Verdict]) -> Verdict:
    """The verdict that most seeds have; its sentence says how many."""
    names = [verdict.learned for verdict in verdicts]
    common = max(names, key=names.count)
    one = next(verdict for verdict in verdicts if verdict.learned == common)
    sentence = f"{names.count(common)} of {len(names)} seeds: {one.sentence}"
    return replace(one, sentence=sentence)
