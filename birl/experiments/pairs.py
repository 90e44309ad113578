"""Two groups of scores: the verdict, in numbers and in words."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from birl.experiments.comparison import GroupResult, PairResult
from birl.maths.comparisons import (
    bootstrap_difference,
    bootstrap_improvement,
    fewest_scores,
    holm,
    improvement_interval,
    mann_whitney_p_value,
    probability_of_improvement,
    scores_needed,
)
from birl.run.history import differing

SIGNIFICANCE = 0.05
POWER = 0.8
MOST_SEEDS = 1000  # if more would be needed, the difference is none that anybody will measure


def compare_pair(first: GroupResult, second: GroupResult) -> PairResult:
    """The numbers of this pair. Its verdict depends on how many others there are: see `settle`."""
    a, b = (np.array(list(group.score.values.values()), float) for group in (first, second))
    sizes = len(a), len(b)
    found = min(sizes) > 0
    several = min(sizes) > 1  # one seed says nothing of the spread over seeds
    probability = probability_of_improvement(a, b) if found else None
    names = differing([first.settings, second.settings])
    return PairResult(
        first=first.label,
        second=second.label,
        seeds=sizes,
        probability=probability,
        probability_interval=improvement_interval(probability, *sizes) if several and probability is not None else None,
        probability_bootstrap=bootstrap_improvement(a, b) if several else None,
        iqm_difference=None
        if first.score.iqm is None or second.score.iqm is None
        else first.score.iqm - second.score.iqm,
        difference_interval=bootstrap_difference(a, b) if several else None,
        p_value=mann_whitney_p_value(a, b) if several else None,
        adjusted_p_value=None,
        verdict="undecided",
        seeds_needed=None,
        sentence="",
        differing={name: (first.settings.get(name, "unset"), second.settings.get(name, "unset")) for name in names},
    )


def settle(pairs: Sequence[PairResult]) -> list[PairResult]:
    """The pairs with their verdicts; p-values are adjusted for the number of pairs (Holm 1979)."""
    tested = [number for number, pair in enumerate(pairs) if pair.p_value is not None]
    adjusted = dict(zip(tested, holm([pairs[number].p_value or 0.0 for number in tested]), strict=True))
    return [_settled(pair, adjusted.get(number), len(tested)) for number, pair in enumerate(pairs)]


def _settled(pair: PairResult, p_value: float | None, pairs: int) -> PairResult:
    probability = pair.probability
    if p_value is None or probability is None:
        return replace(pair, sentence=_too_few(pair))
    verdict: Literal["first", "second", "undecided"] = "undecided"
    if p_value <= SIGNIFICANCE:
        verdict = "first" if probability > 0.5 else "second"
    pair = replace(pair, adjusted_p_value=p_value, verdict=verdict)
    if verdict != "undecided":
        return replace(pair, sentence=_better(pair, p_value))
    # Bonferroni's share of the significance: Holm's is at least that.
    needed = scores_needed(probability, POWER, SIGNIFICANCE / pairs)
    needed = None if needed is None else max(needed, min(pair.seeds) + 1)
    return replace(pair, seeds_needed=needed, sentence=_undecided(pair, p_value, needed))


def _too_few(pair: PairResult) -> str:
    without = [name for name, seeds in zip((pair.first, pair.second), pair.seeds, strict=True) if seeds == 0]
    if without:
        return f"{pair.first} and {pair.second} cannot be compared: {' and '.join(without)} has no score."
    return (
        f"{pair.first} and {pair.second} cannot be told apart with one seed of either: nothing is known of how far "
        f"two seeds differ. Train at least {fewest_scores(SIGNIFICANCE) + 1} seeds of each."
    )


def _better(pair: PairResult, p_value: float) -> str:
    winner, loser, share = pair.first, pair.second, pair.probability or 0.0
    difference = pair.iqm_difference or 0.0
    if pair.verdict == "second":
        winner, loser, share, difference = loser, winner, 1.0 - share, -difference
    beats = f"{winner} is better than {loser}: a seed of it wins with probability {share:.2f} (p = {p_value:.2g})"
    return f"{beats}, though its IQM is lower: look at the seeds." if difference < 0 else f"{beats}."


def _undecided(pair: PairResult, p_value: float, needed: int | None) -> str:
    apart = f"{pair.first} and {pair.second} cannot be told apart with these seeds (p = {p_value:.2g})."
    if needed is None:
        return f"{apart} No difference was seen: neither wins more often."
    if needed > MOST_SEEDS:
        return f"{apart} If the difference is as small as it looks, more than {MOST_SEEDS:,} seeds of each are needed."
    more = [max(0, needed - seeds) for seeds in pair.seeds]
    missing = f"{more[0]} more of each" if more[0] == more[1] else f"{more[0]} and {more[1]} more"
    return f"{apart} If the difference is as large as it looks, about {needed} seeds of each would tell ({missing})."
