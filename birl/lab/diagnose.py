"""What is probably wrong with a run: every rule is checked, and the cause comes first."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from birl.lab.diagnosis import input_evidence, learning_evidence
from birl.lab.diagnosis.baseline import with_baseline
from birl.lab.diagnosis.facts import Facts, facts_of
from birl.lab.diagnosis.findings import Diagnosis, Evidence, Finding, Outcome, Rule, Unseen
from birl.lab.diagnosis.rules import RULES
from birl.lab.diagnosis.suggestions import changed_settings, command_for
from birl.lab.diagnosis.verdict import joint_verdict
from birl.run.history import RunHistory, SeedGroup, by_settings, read_histories

CHECKS: dict[str, Callable[[Facts, Mapping[str, float]], Outcome]] = {
    name: vars(input_evidence).get(name.replace("-", "_")) or vars(learning_evidence)[name.replace("-", "_")]
    for name in RULES
}


def diagnose(run: str | Path, trust: bool = False) -> list[Diagnosis]:
    """What is probably wrong with a run, or with each group of seeds below a directory.

    If nothing was learned and no cause is found, episodes are played with random actions; `trust`
    is as in `evaluate`.
    """
    return diagnose_groups(by_settings(read_histories(Path(run))), Path(run), trust)


def diagnose_groups(groups: Sequence[SeedGroup], directory: Path, trust: bool = False) -> list[Diagnosis]:
    """The diagnosis of each group of seeds below this directory."""
    found = [diagnose_runs([facts_of(run) for run in group.runs], directory) for group in groups]
    return [with_baseline(one, play=True, trust=trust) for one in found]


def diagnose_runs(seeds: Sequence[Facts], run_dir: Path | None = None) -> Diagnosis:
    """The diagnosis of runs that differ only in their seed.

    A fault counts if at least half of the seeds show it; one that fewer show is kept apart. Its
    numbers are those of the seed in which it is clearest. A rule counts as checked if it was in all
    seeds.
    """
    each = [diagnose_facts(facts) for facts in seeds]
    if len(each) == 1:
        return each[0]
    fired: dict[str, Evidence] = {}
    where: dict[str, RunHistory] = {}
    counts = {name: sum(name == finding.rule for one in each for finding in one.findings) for name in RULES}
    for facts, one in zip(seeds, each, strict=True):
        for finding in one.findings:
            name = finding.rule
            if name not in fired or finding.evidence.confidence > fired[name].confidence:
                fired[name], where[name] = finding.evidence, facts.run
    for name, evidence in fired.items():
        seed = f"seed {where[name].seed}" + (", in which it is clearest" if counts[name] > 1 else "")
        fired[name] = replace(evidence, sentence=f"{seed}: {evidence.sentence}")
    often = {name: evidence for name, evidence in fired.items() if 2 * counts[name] >= len(each)}
    seldom = {name: evidence for name, evidence in fired.items() if name not in often}
    findings, in_few = (
        [replace(one, seeds=(counts[one.rule], len(each))) for one in ordered(some, where)] for some in (often, seldom)
    )
    unseen = {name: found for name in RULES if (found := _unseen_in([one.unseen.get(name) for one in each]))}
    return replace(
        each[0],
        run_dir=run_dir or each[0].run_dir,
        env_steps=min(one.env_steps for one in each),
        verdict=joint_verdict([one.verdict for one in each]),
        findings=findings,
        healthy=[name for name in RULES if name not in fired and name not in unseen],
        unseen=unseen,
        in_few=in_few,
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
        findings=ordered(fired, dict.fromkeys(fired, run)),
        healthy=[name for name, outcome in outcomes.items() if outcome is None],
        unseen={name: outcome.reason for name, outcome in outcomes.items() if isinstance(outcome, Unseen)},
        runs=[run.run_dir],
    )


def _unseen_in(reasons: Sequence[str | None]) -> str | None:
    """Why a rule could not be checked in some of the seeds; None if it was in all."""
    given = [reason for reason in reasons if reason is not None]
    if not given or len(given) == len(reasons):
        return given[0] if given else None
    return f"in {len(given)} of {len(reasons)} seeds: {given[0]}"


def ordered(fired: Mapping[str, Evidence], runs: Mapping[str, RunHistory]) -> list[Finding]:
    """The findings, causes first: what follows from another one comes below it.

    `runs` has the run of each.
    """
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
    return [_finding(RULES[name], fired[name], runs[name], causes) for name in [*roots, *rest]]


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
        run_dir=run.run_dir,
        lasting=inherited,
        follows_from=causes.get(rule.name),
    )
