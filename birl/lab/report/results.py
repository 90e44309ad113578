"""The sections with what was reached: scores over seeds, and which group is better."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from birl.config import ConfigError
from birl.lab.compare import compare_groups
from birl.lab.comparison import Comparison, GroupResult, Interval, PairResult, Spread
from birl.lab.report.elements import Content, Html, Section, element, join, named, sentences, small, table
from birl.lab.reproduce import config_of
from birl.presets import find_preset
from birl.presets.entry import Preset, core_of
from birl.presets.published import SOURCES, Published, best_published
from birl.run.console import number
from birl.run.history import RunHistory, SeedGroup

NOTHING = "–"
MOST_PAIRED = 4  # of more groups, each is compared with the first only


class Compared(NamedTuple):
    """The groups of one environment, and their comparison."""

    found: Comparison
    groups: list[SeedGroup]
    labels: list[Html]


def compared(groups: Sequence[SeedGroup]) -> list[Compared]:
    """The comparison of all groups, one for each environment."""
    places: dict[str, list[int]] = defaultdict(list)
    for place, group in enumerate(groups):
        places[group.settings["env.id"]].append(place)
    parts = []
    for own in places.values():
        chosen = [groups[place] for place in own]
        labels = [named(groups[place].label, place) for place in own]
        parts.append(Compared(compare_groups(chosen, all_pairs=len(own) <= MOST_PAIRED), chosen, labels))
    return parts


def results_section(comparisons: Sequence[Compared]) -> Section:
    """The scores of all groups over their seeds, and in words which is better."""
    return Section("Results", join(_by_env(comparisons, _scores)))


def comparison_section(comparisons: Sequence[Compared]) -> Section | None:
    """How fast groups learned, and the numbers of each pair; None if there is no pair."""
    parts = [one for one in comparisons if len(one.groups) > 1]
    return Section("Comparison", join(_by_env(parts, _comparison))) if parts else None


def _by_env(comparisons: Sequence[Compared], part: Callable[[Compared], Iterator[Content]]) -> Iterator[Content]:
    """This part of each comparison; if there are several, below its environment's name."""
    for one in comparisons:
        if len(comparisons) > 1:
            yield element("h3", element("bdi", one.found.env_id))
        yield from part(one)


def _scores(one: Compared) -> Iterator[Content]:
    rows = [
        [label, *_score_texts(result), *_reference_texts(group)]
        for label, result, group in zip(one.labels, one.found.groups, one.groups, strict=True)
    ]
    yield table(["", "seeds", "IQM", "95 % interval", "worst to best", "steps", "preset's score", "published"], rows)
    policy = f" ({one.found.scored_policy})" if one.found.scored_policy else ""
    meaning = f"Score: {one.found.score}{policy}. IQM: interquartile mean over seeds, with its bootstrap interval."
    yield small(" ".join([meaning, *_source_texts(one.groups)]))
    if one.found.pairs:
        yield element("ul", join(element("li", sentences(pair.sentence)) for pair in one.found.pairs))
    notices = [_without_options(notice) for notice in one.found.notices]
    yield from (element("p", sentences(notice), class_="note") for notice in notices)


def _comparison(one: Compared) -> Iterator[Content]:
    if any(result.area.iqm is not None for result in one.found.groups):
        yield from _speed(one.found, one.labels)
    labels = {group.label: label for group, label in zip(one.groups, one.labels, strict=True)}
    head = ["", "against", "wins with probability", "95 % interval", "IQM difference", "95 % interval", "p"]
    yield table(head, [_pair(pair, labels) for pair in one.found.pairs], texts=2)
    yield small(
        "Probability: that a seed of the first beats one of the second, ties counting half, with Newcombe's interval. "
        f"p: of the two-sided Mann-Whitney test. {_correction(one.found)}"
    )


def _correction(found: Comparison) -> str:
    """For how many pairs p is adjusted, and why birl compare may say another p for one of them."""
    text = found.correction()
    if not text or not found.has_every_pair:
        return text and f"{text}."
    return f"{text}; birl compare counts those with the first group only, unless --all is given: its p may be lower."


def task_of(run: RunHistory) -> tuple[str, str, bool, str] | None:
    """Algorithm, environment, hidden velocities and core; None if settings are unknown here."""
    try:
        config = config_of(run)
    except ConfigError:
        return None
    return run.settings["algorithm"], config.env.id, config.env.hide_velocities, core_of(config)


def preset_for(run: RunHistory) -> Preset | None:
    """The preset of a run's task, with or without a score; None if there is none."""
    task = task_of(run)
    return None if task is None else find_preset(*task)


def shown(value: float | None) -> str:
    """A number, or a dash if there is none."""
    return NOTHING if value is None else number(value)


def mean_text(values: Sequence[float | None]) -> str:
    """The mean of those that are known."""
    known = [value for value in values if value is not None]
    return shown(sum(known) / len(known) if known else None)


def _score_texts(result: GroupResult) -> list[Content]:
    scores = list(result.score.values.values())
    span = f"{number(min(scores))} to {number(max(scores))}" if len(scores) > 1 else NOTHING
    failed = f", {len(result.failed)} failed" if result.failed else ""
    iqm, interval = _spread(result.score)
    return [f"{len(scores)}{failed}", iqm, interval, span, shown(result.env_steps)]


def _spread(spread: Spread) -> tuple[str, str]:
    return shown(spread.iqm), _interval(spread.interval)


def _interval(ends: Interval | None) -> str:
    return NOTHING if ends is None else f"{number(ends[0])} to {number(ends[1])}"


def _speed(found: Comparison, labels: Sequence[Html]) -> Iterator[Content]:
    """How fast each group learned: area under the curve, and when it reached the target."""
    head = ["", "area under the curve", "95 % interval"]
    if found.target is not None:
        head += ["seeds that reached it", "after steps", "wall s", "CPU s"]
    rows = []
    for label, result in zip(labels, found.groups, strict=True):
        cells: list[Content] = [label, *_spread(result.area)]
        if found.target is not None and (reached := result.reached) is not None:
            of_all = f"{reached.seeds} of {len(result.score.values)}"
            cells += [of_all, *map(shown, (reached.env_steps, reached.wall_seconds, reached.cpu_seconds))]
        rows.append(cells + [NOTHING] * (len(head) - len(cells)))
    yield table(head, rows)
    if found.step_range is not None:
        steps = " to ".join(f"{end:,.0f}" for end in found.step_range)
        area = f"Area under the curve: the mean training return from step {steps}, which all runs have."
        goal = (
            f" Target: a return of {shown(found.target)} ({_without_options(found.target_reason)}); medians over seeds."
        )
        yield small(area + (goal if found.target is not None else ""))


def _pair(pair: PairResult, labels: dict[str, Html]) -> list[Content]:
    return [
        labels.get(pair.first, Html("")),
        labels.get(pair.second, Html("")),
        NOTHING if pair.probability is None else f"{pair.probability:.2f}",
        NOTHING if pair.probability_interval is None else "{:.2f} to {:.2f}".format(*pair.probability_interval),
        shown(pair.iqm_difference),
        _interval(pair.difference_interval),
        NOTHING if pair.adjusted_p_value is None else f"{pair.adjusted_p_value:.2g}",
    ]


def _without_options(text: str) -> str:
    """A sentence without what it says about options of `birl compare`."""
    return text.partition("; --")[0]


def _reference_texts(group: SeedGroup) -> list[Content]:
    """What the preset was measured at, and the highest published score, each with its steps."""
    preset, published = preset_for(group.runs[0]), _published(group)
    measured = None if preset is None else preset.measured
    return [
        NOTHING if measured is None or preset is None else _at_steps(measured.score, preset.config.run.total_steps),
        NOTHING if published is None else _at_steps(published.score, published.env_steps),
    ]


def _at_steps(score: float, env_steps: int | None) -> Html:
    """A score with the steps after which it was reached below it."""
    steps = "" if env_steps is None else f"{env_steps:,} steps"
    return join([number(score), element("div", steps, class_="small")])


def _published(group: SeedGroup) -> Published | None:
    task = task_of(group.runs[0])
    return None if task is None else best_published(*task)


def _source_texts(groups: Sequence[SeedGroup]) -> list[str]:
    """Where the published scores of these groups come from, and how they were measured."""
    found = [(group.settings["algorithm"], one) for group in groups if (one := _published(group)) is not None]
    texts = [
        f"{algorithm}, {one.source}: {one.env_id}, {SOURCES[one.source].measured}{one.note and '; '}{one.note}."
        for algorithm, one in dict.fromkeys(found)  # groups of one task have the same
    ]
    return ["Published:", *texts] if texts else []
