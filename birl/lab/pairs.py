"""Two groups of scores: the verdict, in numbers and in words."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from birl.lab.comparison import GroupResult, PairResult
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
    if p_value is not None and probability is not None:
        verdict: Literal["first", "second", "undecided"] = "undecided"
        if p_value <= SIGNIFICANCE:
            verdict = "first" if probability > 0.5 else "second"
        # Bonferroni's share of the significance: Holm's is at least that.
        needed = scores_needed(probability, POWER, SIGNIFICANCE / pairs) if verdict == "undecided" else None
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
    """Why nothing can be said of groups of which one has no score, or one."""
    count = min(seeds)
    short = " and of ".join(name for name, own in zip(names, seeds, strict=True) if own == count)
    if count == 0:
        return f"{names[0]} and {names[1]} cannot be compared: there is no score of {short}."
    unknown = f"of {short} there is only one seed, so nothing is known of how far its seeds differ"
    return (
        f"{names[0]} and {names[1]} cannot be told apart: {unknown}. "
        f"Train at least {fewest_scores(SIGNIFICANCE) + 1} seeds of each."
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
