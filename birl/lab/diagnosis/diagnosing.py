"""Diagnosis of a run: every rule is checked, and the cause comes first."""

import math
import os
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from birl.errors import CheckpointError, ConfigError
from birl.lab.diagnosis import evidence as rule_evidence
from birl.lab.diagnosis.diagnoses import Baseline, Diagnosis, Evidence, Fault, Unseen
from birl.lab.diagnosis.facts import Facts, facts_of, joint_verdict
from birl.lab.diagnosis.rules import RULES, Change, Rule
from birl.run.files import read_json, write_json
from birl.run.history import RunHistory, SeedGroup, by_settings, read_histories

BASELINE = "random.json"  # the returns of random actions, in a run's directory
EPISODES = 20  # with random actions
PATIENCE = 20.0  # seconds for these


class Shown(NamedTuple):
    """The evidence of a rule, and the run that shows it."""

    evidence: Evidence
    run: RunHistory


def diagnose(run: str | Path, trust: bool = False) -> list[Diagnosis]:
    """The diagnosis of a run, or of each group of seeds below a directory.

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
    fired: dict[str, Shown] = {}
    counts = {name: sum(name == fault.rule for one in each for fault in one.findings) for name in RULES}
    for facts, one in zip(seeds, each, strict=True):
        for fault in one.findings:
            if fault.rule not in fired or fault.evidence.confidence > fired[fault.rule].evidence.confidence:
                fired[fault.rule] = Shown(fault.evidence, facts.run)
    for name, (evidence, run) in fired.items():
        seed = f"seed {run.seed}" + (", in which it is clearest" if counts[name] > 1 else "")
        fired[name] = Shown(replace(evidence, sentence=f"{seed}: {evidence.sentence}"), run)
    often = {name: shown for name, shown in fired.items() if 2 * counts[name] >= len(each)}
    seldom = {name: shown for name, shown in fired.items() if name not in often}
    findings, in_few = (
        [replace(one, seeds=(counts[one.rule], len(each))) for one in ordered(some)] for some in (often, seldom)
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
    run, fired, healthy, unseen = facts.run, {}, [], {}
    for name in RULES:
        match check(name, facts):
            case Evidence() as evidence:
                fired[name] = Shown(evidence, run)
            case Unseen() as reason:
                unseen[name] = str(reason)
            case None:
                healthy.append(name)
    return Diagnosis(
        run_dir=run.run_dir,
        label=f"{run.settings['algorithm']} {run.settings['env.id']}",
        env_steps=facts.env_steps,
        total_steps=int(facts.number("run.total_steps", 0)),
        verdict=facts.verdict,
        findings=ordered(fired),
        healthy=healthy,
        unseen=unseen,
        runs=[run.run_dir],
    )


def check(name: str, facts: Facts) -> Evidence | Unseen | None:
    """The evidence of a rule in a run, or why it cannot be checked; None: nothing is wrong."""
    try:
        found: Evidence | None = vars(rule_evidence)[name.replace("-", "_")](facts, RULES[name].limits)
    except Unseen as reason:
        return reason
    return found


def _unseen_in(reasons: Sequence[str | None]) -> str | None:
    """The reason why a rule was not checked in some of the seeds; None if it was in all."""
    given = [reason for reason in reasons if reason is not None]
    if not given or len(given) == len(reasons):
        return given[0] if given else None
    return f"in {len(given)} of {len(reasons)} seeds: {given[0]}"


def ordered(fired: Mapping[str, Shown]) -> list[Fault]:
    """The faults, causes first: what follows from another one comes below it."""
    causes: dict[str, str] = {}
    for name in fired:
        above = [
            other
            for other in fired
            if name in RULES[other].causes and name not in _roots(other, causes) and _stronger(other, name, fired)
        ]
        if above:
            causes[name] = max(above, key=lambda other: fired[other].evidence.confidence)
    roots = [name for name in RULES if name in fired and name not in causes]
    roots.sort(key=lambda name: (RULES[name].only_speed, -round(fired[name].evidence.confidence, 1)))
    rest = [name for name in RULES if name in causes]
    return [_fault(RULES[name], fired[name], causes) for name in [*roots, *rest]]


def _roots(name: str, causes: Mapping[str, str]) -> set[str]:
    """The rules that this one was found to follow from, itself included."""
    found = {name}
    while name in causes and causes[name] not in found:
        name = causes[name]
        found.add(name)
    return found


def _stronger(cause: str, symptom: str, fired: Mapping[str, Shown]) -> bool:
    """True if the cause may stand above the symptom; of two that cause each other, the surer."""
    if cause not in RULES[symptom].causes:
        return True
    sure = [fired[name].evidence.confidence for name in (cause, symptom)]
    order = list(RULES)
    return sure[0] > sure[1] or (sure[0] == sure[1] and order.index(cause) < order.index(symptom))


def _fault(rule: Rule, shown: Shown, causes: Mapping[str, str]) -> Fault:
    changes = suggested_settings(rule, shown.run.settings)
    lasting = (name for name, cause in causes.items() if cause == rule.name and RULES[name].proof == "new runs")
    inherited = next(lasting, None)
    forks = rule.proof == "fork" and inherited is None
    return Fault(
        rule=rule.name,
        title=rule.title,
        evidence=shown.evidence,
        why=rule.why,
        advice=rule.advice,
        changes=changes,
        command=command_for(rule, changes, shown.run.run_dir, forks),
        run_dir=shown.run.run_dir,
        lasting=inherited,
        follows_from=causes.get(rule.name),
    )


def suggested_settings(rule: Rule, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that a rule would change, as far as this run has them, with new values.

    A schedule is text, as in the history of a run; each of its values is changed.
    """
    found: dict[str, Any] = {}
    for change in rule.changes:
        now = settings.get(change.setting)
        if now is None or settings.get(change.unless) is not None:
            continue
        new = _changed(now, change, settings)
        if new is not None and new != now:
            found[change.setting] = new
    return found


def command_for(rule: Rule, changes: Mapping[str, Any], run_dir: Path, forks: bool) -> str:
    """The command that tries these settings; "" if there are none."""
    if rule.proof == "evaluation":
        return shlex.join(["birl", "eval", str(run_dir), "--sample"])
    if not changes:
        return ""
    words = ["birl", *(["fork"] if forks else ["train", "--like"]), str(run_dir)]
    for name, new in changes.items():
        words.append(f"--{name.rpartition('.')[2].replace('_', '-')}")
        words += [] if new is True else [f"{new:g}" if isinstance(new, float) else str(new)]
    return shlex.join(words)


def _changed(now: Any, change: Change, settings: Mapping[str, Any]) -> Any:
    """The new value of a setting; None if it is no number and no schedule, as in a damaged file."""
    bound = change.value
    match change.how:
        case "times" if type(now) is int:
            return _whole(now, change, settings.get(change.multiple_of))
        case "times":
            return _each(now, lambda value: _few_digits(min(value * bound, change.most)))
        case "at least":
            return _each(now, lambda value: value if value >= bound else bound)
        case "at most":
            return _each(now, lambda value: value if value <= bound else bound)
    return bound


def _whole(now: int, change: Change, unit: Any) -> int | None:
    """A whole number times a factor: whole, at least 1; None if that makes it no smaller."""
    unit = unit if type(unit) is int and unit > 0 else 1
    new = unit * max(1, round(min(now * change.value, change.most) / unit))
    return None if change.value < 1 and new >= now else new


def _each(now: Any, change: Callable[[float], float]) -> Any:
    """A number, or a schedule as text, with each value changed."""
    from birl.maths.schedules import Schedule, format, parse  # imports JAX

    if type(now) in (int, float):
        return change(now)
    try:
        schedule = parse(now)
    except (AttributeError, ValueError):
        return None
    if not isinstance(schedule, Schedule):
        return None
    return format(Schedule(schedule.kind, tuple(map(change, schedule.values)), schedule.points))


def _few_digits(value: float) -> float:
    return value if value == 0 or not math.isfinite(value) else round(value, 3 - math.floor(math.log10(abs(value))))


def with_baseline(diagnosis: Diagnosis, play: bool = False, trust: bool = False) -> Diagnosis:
    """The diagnosis with the return of random actions, if nothing was learned for no known cause.

    It is that of a file of the run, or of a seed. With `play`, episodes are played and written
    there if there is none.
    """
    if diagnosis.findings or not diagnosis.learned_nothing:
        return diagnosis
    kept = [path for run_dir in diagnosis.runs if os.path.lexists(path := run_dir / BASELINE)]
    try:
        if kept:
            return replace(diagnosis, baseline=_read(kept[0]))
        if not play:
            return replace(diagnosis, no_baseline="birl diagnose plays them once")
        return replace(diagnosis, baseline=_play(diagnosis.runs[0], trust))
    except TimeoutError:
        reason = f"{EPISODES} episodes take more than {PATIENCE:.0f} seconds"
    except (CheckpointError, ConfigError, OSError) as problem:
        reason = str(problem)
    except Exception as problem:  # of the environment
        reason = f"{type(problem).__name__}: {problem}"
    return replace(diagnosis, no_baseline=reason)


def _read(path: Path) -> Baseline:
    stored = read_json(path)
    returns = stored.get("returns") if isinstance(stored, dict) else None
    numbers = isinstance(returns, list) and returns and all(type(value) in (int, float) for value in returns)
    if not numbers:
        raise CheckpointError(f"{path} is damaged: it must hold a list of returns; remove it")
    return _baseline(np.array(returns, float))


def _play(run_dir: Path, trust: bool) -> Baseline:
    from birl.envs.make import spaces_of
    from birl.lab.random_policy import RandomPolicy
    from birl.run.evaluating import evaluate_policy
    from birl.run.given import Given
    from birl.run.loading import load_to_play

    player, env = load_to_play(run_dir, Given(trust=trust))
    begin = time.monotonic()

    def watch(ended: int, steps: int) -> None:
        if time.monotonic() - begin > PATIENCE:
            raise TimeoutError

    policy = RandomPolicy(spaces_of(env)[1], 0)
    returns = evaluate_policy(policy, env, EPISODES, 0, max_steps=player.config.run.eval_max_steps, watch=watch).returns
    with suppress(OSError):  # a directory that cannot be written to: then they are played again
        write_json(run_dir / BASELINE, {"returns": returns.tolist()})
    return _baseline(returns)


def _baseline(returns: np.ndarray) -> Baseline:
    from birl.lab.random_policy import mean_interval

    return Baseline(float(returns.mean()), *mean_interval(returns), len(returns))
