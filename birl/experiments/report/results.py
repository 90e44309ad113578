"""The sections with what was reached: scores over seeds, and which group is better."""

from collections.abc import Iterator, Sequence

from birl.config import ConfigError
from birl.experiments.compare import compare_groups
from birl.experiments.comparison import Comparison, GroupResult, Interval, PairResult, Spread
from birl.experiments.report.elements import Content, Html, Section, element, join, named, paragraph, table
from birl.experiments.reproduce import config_of
from birl.presets import find_preset
from birl.presets.entry import Preset, core_of
from birl.run.display import number
from birl.run.history import RunHistory, SeedGroup

NOTHING = "–"
MOST_PAIRED = 4  # of more groups, each is compared with the first only


def results_section(groups: Sequence[SeedGroup]) -> Section:
    """The scores of all groups, by environment, and for each pair which is better."""
    parts: list[Content] = []
    envs = list(dict.fromkeys(group.settings["env.id"] for group in groups))
    for env in envs:
        places = [place for place, group in enumerate(groups) if group.settings["env.id"] == env]
        own = [groups[place] for place in places]
        if len(envs) > 1:
            parts.append(element("h3", element("bdi", str(env))))
        parts.append(comparison_body(compare_groups(own, all_pairs=len(own) <= MOST_PAIRED), own, places))
    return Section("Results", join(parts))


def comparison_body(found: Comparison, groups: Sequence[SeedGroup], places: Sequence[int]) -> Html:
    """A comparison as tables. `places` are the numbers of its groups on the page."""
    labels = [named(group.label, place) for group, place in zip(groups, places, strict=True)]
    rows = [
        [label, *_scores(result), _preset_text(preset_for(group.runs[0]))]
        for label, result, group in zip(labels, found.groups, groups, strict=True)
    ]
    head = ["", "seeds", "IQM", "95 % interval", "worst to best", "steps", "preset's score"]
    parts: list[Content] = [table(head, rows)]
    parts.append(paragraph(f"Score: {found.score}; the interquartile mean (IQM) over seeds, and its bootstrap interval."))
    if any(result.area.iqm is not None for result in found.groups):
        parts += _speed(found, labels)
    if found.pairs:
        parts += _pairs(found, dict(zip((group.label for group in groups), labels, strict=True)))
    parts += [element("p", notice, class_="note") for notice in found.notices]
    return join(parts)


def preset_for(run: RunHistory) -> Preset | None:
    """The preset of a run's task, with or without a score; None if there is none."""
    try:
        config = config_of(run)
    except ConfigError:
        return None
    return find_preset(run.settings["algorithm"], config.env.id, config.env.hide_velocities, core_of(config))


def shown(value: float | None) -> str:
    """A number, or a dash if there is none."""
    return NOTHING if value is None else number(value)


def mean_text(values: Sequence[float | None]) -> str:
    """The mean of those that are known."""
    known = [value for value in values if value is not None]
    return shown(sum(known) / len(known) if known else None)


def _scores(result: GroupResult) -> list[Content]:
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
    yield element("h3", "How fast they learned")
    yield table(head, rows)
    if found.step_range is not None:
        steps = " to ".join(f"{end:,.0f}" for end in found.step_range)
        area = f"Area under the curve: the mean training return from step {steps}, which all runs have."
        goal = f" Target: a return of {number(found.target)} ({_without_options(found.target_reason)})"
        yield paragraph(area + (f"{goal}; medians over seeds." if found.target is not None else ""))


def _pairs(found: Comparison, labels: dict[str, Html]) -> Iterator[Content]:
    head = ["", "against", "wins with probability", "95 % interval", "IQM difference", "95 % interval", "p"]
    yield element("h3", "Which is better")
    yield table(head, [_pair(pair, labels) for pair in found.pairs], texts=2)
    yield element("ul", join(element("li", pair.sentence) for pair in found.pairs))
    yield paragraph(
        "Probability: that a seed of the first beats one of the second, ties counting half, with Newcombe's interval. "
        "p: of the two-sided Mann-Whitney test, adjusted for the number of pairs by Holm's method."
    )


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
    """A reason without what the command line adds to it."""
    return text.partition("; --")[0]


def _preset_text(preset: Preset | None) -> str:
    if preset is None or preset.score is None:
        return NOTHING
    seeds = "1 seed" if preset.seeds == 1 else f"{preset.seeds} seeds"
    return f"{number(preset.score)} ({seeds}, {preset.config.run.total_steps:,} steps)"
