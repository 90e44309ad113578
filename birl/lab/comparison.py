"""Groups of seeds side by side: scores, curves, and which group is better."""

import dataclasses
import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from birl.config import require
from birl.lab.scores import (
    CPU_SECONDS,
    RETURN,
    Scoring,
    choose_scoring,
    choose_target,
    common_range,
    seconds_at,
    smoothed,
    trained_steps,
)
from birl.maths import comparisons
from birl.maths.curves import first_reached, mean_between
from birl.run.files import strict_json
from birl.run.groups.group_results import score_statistics
from birl.run.history import RunHistory, SeedGroup, by_settings, differing, label, read_histories

Interval = tuple[float, float]  # of 95 %
SIGNIFICANCE = 0.05
POWER = 0.8
MOST_SEEDS = 1000  # if more would be needed, the difference is none that anybody will measure
FEW = 5  # seeds; the intervals of fewer are too narrow
EVALUATION_SETTINGS = ("run.eval_episodes", "run.eval_deterministic", "run.eval_max_steps")


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
    """The time at which a group's seeds reached the target; a seed that did not counts as never."""

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
        """True if there are more pairs than those with the first group."""
        return len(self.pairs) > len(self.groups) - 1

    def to_json(self) -> dict[str, Any]:
        """All of it as strict JSON: tuples are lists, and what is not finite is null."""
        found: dict[str, Any] = strict_json(dataclasses.asdict(self))
        return found


def compare(
    *directories: str | Path,
    target: float | None = None,  # the training return whose first time is asked for; None: chosen from the curves
    at: int | None = None,  # compare at these environment steps; None: at the end of the runs
    all_pairs: bool = False,  # each group with every other; False: each with the first
    env: str | None = None,  # only groups of this environment; None: all, which must be of one
) -> Comparison:
    """Groups of seeds side by side: their scores, their curves, and which is better.

    A directory is a run, a group, or has runs below it. Its runs that differ only in their seed are
    a group; runs of two directories never are, even with equal settings.
    """
    require(len(directories) > 0, "no runs to compare; give directories such as runs/a runs/b")
    given = [(str(directory), read_histories(Path(directory))) for directory in directories]
    if env is not None:
        ids = sorted({run.settings["env.id"] for _, runs in given for run in runs})
        require(env in ids, f"none of these runs is of the environment {env}; there are {', '.join(ids)}")
        given = [(name, [run for run in runs if run.settings["env.id"] == env]) for name, runs in given]
    groups = labelled(given)
    found = ", ".join(group.label for group in groups)
    require(len(groups) > 1, f"there is only one group, {found}; give another directory to compare it with")
    return compare_groups(groups, target, at, all_pairs)


def labelled(given: Sequence[tuple[str, Sequence[RunHistory]]]) -> list[SeedGroup]:
    """The groups of seeds in each list of runs, labelled by what sets each apart from all others.

    Where that is nothing, as with runs of two versions of a program, the name of the list is added.
    """
    where = Counter(run.run_dir.resolve() for _, runs in given for run in runs)
    twice = next((run_dir for run_dir, times in where.items() if times > 1), None)
    require(twice is None, f"the run {twice} is named twice; a run cannot be compared with itself")
    found = [(name, group) for name, runs in given for group in by_settings(runs)]
    settings = [group.settings for _, group in found]
    labels = [label(one, settings) for one in settings]
    several = Counter(labels)
    groups_of = Counter(name for name, _ in found)

    def text(name: str, by_settings: str) -> str:
        if several[by_settings] == 1:
            return by_settings
        return name if groups_of[name] == 1 else f"{name}: {by_settings}"

    return [replace(group, label=text(name, one)) for (name, group), one in zip(found, labels, strict=True)]


def compare_groups(
    groups: Sequence[SeedGroup], target: float | None = None, at: int | None = None, all_pairs: bool = False
) -> Comparison:
    """The comparison of these groups, all of one environment; see `compare`."""
    envs = sorted({group.settings["env.id"] for group in groups})
    wrong = f"these runs are of {len(envs)} environments, {', '.join(envs)}, whose returns cannot be compared"
    require(len(envs) == 1, f"{wrong}; --env ID (env= in Python) takes those of one")
    require(at is None or at > 0, f"at is {at}; give a positive number of environment steps")
    sound = [[run for run in group.runs if run.problem is None] for group in groups]
    scoring, notices = choose_scoring([run for runs in sound for run in runs], at)
    scores = [_scores(runs, scoring) for runs in sound]
    scored = [[run for run in runs if str(run.run_dir) in own] for runs, own in zip(sound, scores, strict=True)]

    at = None if scoring is None else scoring.at
    curves = [{str(run.run_dir): curve for run in runs if len((curve := run.curve(RETURN))[0])} for runs in scored]
    steps = common_range([curve for own in curves for curve in own.values()], at)
    reason = "given" if target is not None else "the runs have no common steps with training returns"
    if target is None and steps is not None:
        target, reason = choose_target([list(own.values()) for own in curves], steps)

    results = []
    for group, runs, own, own_curves in zip(groups, scored, scores, curves, strict=True):
        areas = {} if steps is None else {name: mean_between(*curve, *steps) for name, curve in own_curves.items()}
        failed = {str(run.run_dir): run.problem for run in group.runs if run.problem is not None}
        trained = [trained_steps(run) for run in runs]
        results.append(
            GroupResult(
                label=group.label,
                settings=group.settings,
                directories=[str(run.run_dir) for run in group.runs],
                failed=failed,
                score=_spread(own),
                area=_spread(areas),
                reached=None if target is None else _reached(runs, target, steps, at),
                env_steps=float(np.median(trained)) if trained else None,
            )
        )
    chosen = itertools.combinations(results, 2) if all_pairs else ((results[0], other) for other in results[1:])
    return Comparison(
        env_id=envs[0],
        score="no run has a result yet" if scoring is None else scoring.text(),
        scored_policy="" if scoring is None else scoring.policy_text([run for own in scored for run in own]),
        at=at,
        target=target,
        target_reason=reason,
        step_range=steps,
        groups=results,
        pairs=settle([compare_pair(*pair) for pair in chosen]),
        notices=notices + _notices(groups, results, scored, scoring),
    )


def _scores(runs: Sequence[RunHistory], scoring: Scoring | None) -> dict[str, float]:
    if scoring is None:
        return {}
    return {str(run.run_dir): score for run in runs if (score := scoring.score(run)) is not None}


def _spread(values: Mapping[str, float]) -> Spread:
    found = score_statistics(values)
    interval = None if found["interval"] is None else (found["interval"][0], found["interval"][1])
    return Spread(dict(values), **(found | {"interval": interval}))


def _reached(runs: Sequence[RunHistory], target: float, steps: tuple[float, float] | None, at: int | None) -> Reached:
    """The first time at which the moving mean of the training return reached the target."""
    times = []
    for run in runs:
        curve = run.curve(RETURN)
        first = first_reached(*smoothed(curve, steps, at), target) if len(curve[0]) else None
        times.append(None if first is None else (first, *seconds_at(run, first)))
    reached = [one for one in times if one is not None]

    def median(column: int) -> float | None:
        """Over all runs; one that did not reach it counts as infinitely late."""
        values = [np.inf if one is None else one[column] for one in times]
        if not values or any(value is None for value in values):
            return None
        middle = float(np.median(np.array(values, float)))
        return middle if np.isfinite(middle) else None

    return Reached(len(reached), median(0), median(1), median(2))


def _notices(
    groups: Sequence[SeedGroup],
    results: Sequence[GroupResult],
    scored: Sequence[Sequence[RunHistory]],
    scoring: Scoring | None,
) -> list[str]:
    """Notes that a reader needs to trust the numbers."""
    found = []
    for result in results:
        seeds = len(result.score.values)
        if result.failed and seeds > 0:
            lost = f"{len(result.failed)} of {len(result.directories)} seeds of {result.label} failed"
            found.append(f"{lost}: the statistics are those of the others, and so too good")
        if seeds == 0:
            failed = f", and {len(result.failed)} of its {len(result.directories)} failed" if result.failed else ""
            found.append(f"{result.label} has no seed with a score{failed}: it cannot be compared")
        elif seeds == 1:
            found.append(f"{result.label} has one seed: it has no intervals, and nothing follows from it")
        elif seeds < FEW:
            found.append(f"{result.label} has {seeds} seeds: bootstrap intervals of fewer than {FEW} are too narrow")
    for result, own in zip(results, scored, strict=True):
        begun = Counter((run.fork.parent, run.fork.checkpoint) for run in own if run.fork is not None)
        if begun and max(begun.values()) > 1:
            of_one = f"seeds of {result.label} are forks of one checkpoint"
            found.append(f"{of_one}: what is found holds for continuing from it, not for training anew")
    runs = [run for own in scored for run in own]
    trained = sorted({int(result.env_steps) for result in results if result.env_steps is not None})
    if scoring is not None and scoring.kind == "final" and trained and trained[-1] > 1.1 * trained[0]:
        lengths = f"from {trained[0]:,} to {trained[-1]:,}"
        found.append(f"the groups were trained for different numbers of steps, {lengths}; --at STEP compares at one")
    if scoring is None or scoring.kind != "training":
        different = differing([{name: run.settings.get(name) for name in EVALUATION_SETTINGS} for run in runs])
        found += [f"the runs were evaluated with different {name}: their scores may differ by it" for name in different]
    if any(group.settings.get("env.backend") == "compiled" and len(group.runs) > 1 for group in groups):
        found.append("seeds of compiled environments may share a process: their seconds include those of others")
    if any(not len(run.curve(CPU_SECONDS)[0]) for run in runs):
        found.append("some runs did not log CPU seconds: theirs are wall seconds, scaled by the run's whole CPU time")
    return found


def compare_pair(first: GroupResult, second: GroupResult) -> PairResult:
    """The numbers of this pair. Its verdict depends on how many others there are: see `settle`."""
    a, b = (np.array(list(group.score.values.values()), float) for group in (first, second))
    sizes = len(a), len(b)
    found = min(sizes) > 0
    several = min(sizes) > 1  # one seed says nothing of the spread over seeds
    probability = comparisons.probability_of_improvement(a, b) if found else None
    names = differing([first.settings, second.settings])
    return PairResult(
        first=first.label,
        second=second.label,
        seeds=sizes,
        probability=probability,
        probability_interval=comparisons.improvement_interval(probability, *sizes)
        if several and probability is not None
        else None,
        probability_bootstrap=comparisons.bootstrap_improvement(a, b) if several else None,
        iqm_difference=None
        if first.score.iqm is None or second.score.iqm is None
        else first.score.iqm - second.score.iqm,
        difference_interval=comparisons.bootstrap_difference(a, b) if several else None,
        p_value=comparisons.mann_whitney_p_value(a, b) if several else None,
        adjusted_p_value=None,
        verdict="undecided",
        seeds_needed=None,
        sentence="",
        differing={name: (first.settings.get(name, "unset"), second.settings.get(name, "unset")) for name in names},
    )


def settle(pairs: Sequence[PairResult]) -> list[PairResult]:
    """The pairs with their verdicts; p-values are adjusted for the number of pairs (Holm 1979)."""
    tested = [number for number, pair in enumerate(pairs) if pair.p_value is not None]
    adjusted = dict(zip(tested, comparisons.holm([pairs[number].p_value or 0.0 for number in tested]), strict=True))
    return [_settled(pair, adjusted.get(number), len(tested)) for number, pair in enumerate(pairs)]


def _settled(pair: PairResult, p_value: float | None, pairs: int) -> PairResult:
    probability = pair.probability
    if p_value is not None and probability is not None:
        verdict: Literal["first", "second", "undecided"] = "undecided"
        if p_value <= SIGNIFICANCE:
            verdict = "first" if probability > 0.5 else "second"
        # Bonferroni's share of the significance: Holm's is at least that.
        needed = comparisons.scores_needed(probability, POWER, SIGNIFICANCE / pairs) if verdict == "undecided" else None
        pair = replace(pair, adjusted_p_value=p_value, verdict=verdict, seeds_needed=needed)
    return replace(pair, sentence=verdict_text(pair, pair.first, pair.second))


def verdict_text(pair: PairResult, first: str, second: str) -> str:
    """The verdict in words, with these names for the two groups."""
    if pair.adjusted_p_value is None or pair.probability is None:
        return _too_few(pair.seeds, (first, second))
    if pair.verdict == "undecided":
        return _undecided(pair, f"{first} and {second} cannot be told apart with these seeds")
    winner, loser, share, difference = first, second, pair.probability, pair.iqm_difference or 0.0
    if pair.verdict == "second":
        winner, loser, share, difference = loser, winner, 1.0 - share, -difference
    beats = f"{winner} is better than {loser}: a seed of it wins with probability {share:.2f}"
    lower = ", though its IQM is lower: look at the seeds" if difference < 0 else ""
    return f"{beats} (p = {pair.adjusted_p_value:.2g}){lower}."


def _too_few(seeds: tuple[int, int], names: tuple[str, str]) -> str:
    """The reason why groups cannot be compared if one has fewer than two scores."""
    count = min(seeds)
    short = " and of ".join(name for name, own in zip(names, seeds, strict=True) if own == count)
    if count == 0:
        return f"{names[0]} and {names[1]} cannot be compared: there is no score of {short}."
    unknown = f"of {short} there is only one seed, so nothing is known of how far its seeds differ"
    return (
        f"{names[0]} and {names[1]} cannot be told apart: {unknown}. "
        f"Train at least {comparisons.fewest_scores(SIGNIFICANCE) + 1} seeds of each."
    )


def _undecided(pair: PairResult, apart: str) -> str:
    apart = f"{apart} (p = {pair.adjusted_p_value:.2g})."
    needed = pair.seeds_needed
    if needed is None:
        return f"{apart} No difference was seen: neither wins more often."
    if needed > MOST_SEEDS:
        return f"{apart} If the difference is as small as it looks, more than {MOST_SEEDS:,} seeds of each are needed."
    more = [max(0, needed - seeds) for seeds in pair.seeds]
    missing = f"{more[0]} more of each" if more[0] == more[1] else f"{more[0]} and {more[1]} more"
    return f"{apart} If the difference is as large as it looks, about {needed} seeds of each would tell ({missing})."
