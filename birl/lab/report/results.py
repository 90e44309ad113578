"""The sections on results: scores over seeds, which group is better, and where time went."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from birl.config import ConfigError
from birl.lab.comparison import Comparison, GroupResult, Interval, PairResult, compare_groups
from birl.lab.report.page import Content, Html, Section, element, join, named, sentences, small, style_of, table
from birl.lab.reproduce import config_of
from birl.lab.scores import own_steps
from birl.presets import find_preset
from birl.presets.entry import Preset, core_of
from birl.presets.published import SOURCES, Published, best_published
from birl.run.console import number
from birl.run.history import RunHistory, SeedGroup

NOTHING = "–"
MOST_PAIRED = 4  # of more groups, each is compared with the first only
PARTS = {"environment": "environment", "policy": "policy", "learning": "learning", "program": "one compiled program"}
STYLES = {"environment": "p1", "policy": "p2", "learning": "p0", "program": "p0"}
OTHER = "start, evaluation, saving"
MOST_EPISODES = 200  # of a seed
HEIGHT = 20  # of a row in pixels
LEVELS = (0, 3, -3, 1.5, -1.5)  # dots beside each other, so that equal returns are seen as several


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
    """The speed of learning of each group, and the numbers of each pair; None without a pair."""
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


def references(run: RunHistory) -> tuple[Preset | None, Published | None]:
    """The preset of a run's task, with or without a score, and the highest published score."""
    try:
        config = config_of(run)
    except ConfigError:  # settings that are unknown here
        return None, None
    task = run.settings["algorithm"], config.env.id, config.env.hide_velocities, core_of(config)
    return find_preset(*task), best_published(*task)


def number_text(value: float | Interval | None, text: Callable[[float], str] = number) -> str:
    """A number or an interval, or a dash if there is none."""
    if value is None:
        return NOTHING
    return " to ".join(map(text, value)) if isinstance(value, tuple) else text(value)


def mean_text(values: Sequence[float | None]) -> str:
    """The mean of those that are known."""
    known = [value for value in values if value is not None]
    return number_text(sum(known) / len(known) if known else None)


def _score_texts(result: GroupResult) -> list[Content]:
    scores = list(result.score.values.values())
    span = f"{number(min(scores))} to {number(max(scores))}" if len(scores) > 1 else NOTHING
    failed = f", {len(result.failed)} failed" if result.failed else ""
    iqm, interval = number_text(result.score.iqm), number_text(result.score.interval)
    return [f"{len(scores)}{failed}", iqm, interval, span, number_text(result.env_steps)]


def _speed(found: Comparison, labels: Sequence[Html]) -> Iterator[Content]:
    """The area under each group's curve, and the time at which it reached the target."""
    head = ["", "area under the curve", "95 % interval"]
    if found.target is not None:
        head += ["seeds that reached it", "after steps", "wall s", "CPU s"]
    rows = []
    for label, result in zip(labels, found.groups, strict=True):
        cells: list[Content] = [label, number_text(result.area.iqm), number_text(result.area.interval)]
        if found.target is not None and (reached := result.reached) is not None:
            of_all = f"{reached.seeds} of {len(result.score.values)}"
            cells += [of_all, *map(number_text, (reached.env_steps, reached.wall_seconds, reached.cpu_seconds))]
        rows.append(cells + [NOTHING] * (len(head) - len(cells)))
    yield table(head, rows)
    if found.step_range is not None:
        steps = " to ".join(f"{end:,.0f}" for end in found.step_range)
        area = f"Area under the curve: the mean training return from step {steps}, which all runs have."
        reason = _without_options(found.target_reason)
        goal = f" Target: a return of {number_text(found.target)} ({reason}); medians over seeds."
        yield small(area + (goal if found.target is not None else ""))


def _pair(pair: PairResult, labels: dict[str, Html]) -> list[Content]:
    return [
        labels.get(pair.first, Html("")),
        labels.get(pair.second, Html("")),
        number_text(pair.probability, "{:.2f}".format),
        number_text(pair.probability_interval, "{:.2f}".format),
        number_text(pair.iqm_difference),
        number_text(pair.difference_interval),
        number_text(pair.adjusted_p_value, "{:.2g}".format),
    ]


def _without_options(text: str) -> str:
    """A sentence without what it says about options of `birl compare`."""
    return text.partition("; --")[0]


def _reference_texts(group: SeedGroup) -> list[Content]:
    """The measured score of the preset and the highest published one, each with its steps."""
    preset, published = references(group.runs[0])
    measured = None if preset is None else preset.measured
    return [
        NOTHING if measured is None or preset is None else _at_steps(measured.score, preset.config.run.total_steps),
        NOTHING if published is None else _at_steps(published.score, published.env_steps),
    ]


def _at_steps(score: float, env_steps: int | None) -> Html:
    """A score with the steps after which it was reached below it."""
    steps = "" if env_steps is None else f"{env_steps:,} steps"
    return join([number(score), element("div", steps, class_="small")])


def _source_texts(groups: Sequence[SeedGroup]) -> list[str]:
    """The sources of these groups' published scores, and how they were measured."""
    found = [(group.settings["algorithm"], one) for group in groups if (one := references(group.runs[0])[1])]
    texts = [
        f"{algorithm}, {one.source}: {one.env_id}, {SOURCES[one.source].measured}{one.note and '; '}{one.note}."
        for algorithm, one in dict.fromkeys(found)  # groups of one task have the same
    ]
    return ["Published:", *texts] if texts else []


def times_section(groups: Sequence[SeedGroup]) -> Section | None:
    """The share of each part in the wall time of a group's runs; None if no run says."""
    found = [(place, group, _shares(group)) for place, group in enumerate(groups)]
    known = [(place, group, shares) for place, group, shares in found if shares]
    if not known:
        return None
    parts = [name for name in PARTS if any(name in shares for _, _, shares in known)]
    key = join(_key(STYLES[name], PARTS[name]) for name in parts)
    head = ["", *(PARTS[name] for name in parts), OTHER, "steps/s", "wall s", "CPU s"]
    rows: list[list[Content]] = []
    bars: list[Content] = []
    for place, group, shares in known:
        rest = max(0.0, 1.0 - sum(shares.values()))
        bars += [
            element("h3", named(group.label, place)),
            _bar({STYLES[name]: shares.get(name, 0.0) for name in parts}),
        ]
        texts: list[Content] = [f"{shares[name]:.0%}" if name in shares else NOTHING for name in parts]
        rows.append([named(group.label, place), *texts, f"{rest:.0%}", *_speeds(group)])
    about = "Shares of wall time, as means over seeds. Seeds that trained side by side shared the machine."
    body = [element("p", join([key, _key("p3", OTHER)]), class_="key"), *bars, table(head, rows), small(about)]
    return Section("Where time went", join(body))


def seconds_of(run: RunHistory, part: str) -> float | None:
    """The seconds that a run spent in this part; None if it does not say.

    They are counted on from where the run began: a fork has those of its parent before its first
    row, and where the count begins again, as in another process, what came before is added.
    """
    counts = [
        (row.get("seconds") or 0.0, count) for row in run.rows if (count := row.get(f"time/{part}_seconds")) is not None
    ]
    if not counts:
        return None
    total = min(counts[0])  # no more than the wall seconds until then
    for (_, last), (_, now) in pairwise(counts):
        total += now - last if now >= last else now
    return total


def wall_seconds(run: RunHistory) -> float | None:
    """The wall seconds of a run, as far as its files say."""
    known = [summary_number(run, "wall_seconds"), *(row.get("seconds") for row in run.rows[-1:])]
    return max((value for value in known if value is not None), default=None)


def summary_number(run: RunHistory, name: str) -> float | None:
    """A number of a run's summary; None if it has none of this name."""
    value: Any = (run.summary or {}).get(name)
    return float(value) if type(value) in (int, float) and abs(value) < 1e100 else None


def _shares(group: SeedGroup) -> dict[str, float]:
    """The mean share of each part that the runs of a group report."""
    shares: dict[str, float] = {}
    for part in PARTS:
        found = [
            min(1.0, max(0.0, spent / wall))
            for run in group.runs
            if (spent := seconds_of(run, part)) is not None and (wall := wall_seconds(run))
        ]
        if found:
            shares[part] = sum(found) / len(found)
    return shares


def _speeds(group: SeedGroup) -> list[str]:
    walls = [wall_seconds(run) for run in group.runs]
    rates = [own_steps(run) / wall if wall else None for run, wall in zip(group.runs, walls, strict=True)]
    return [mean_text(rates), mean_text(walls), mean_text([summary_number(run, "cpu_seconds") for run in group.runs])]


def _bar(shares: dict[str, float]) -> Html:
    """One bar of 100 % in parts; what they leave is the rest."""
    pieces = []
    start = 0.0
    for style, share in [*shares.items(), ("p3", 1.0)]:
        width = max(0.0, min(share, 1.0 - start))
        pieces.append(element("rect", x=f"{100 * start:.2f}%", width=f"{100 * width:.2f}%", height=16, class_=style))
        start += width
    text = ", ".join(f"{number(100 * share)} %" for share in shares.values())
    return element("svg", join(pieces), class_="stack", width="100%", height=16, role="img", aria_label=text)


def _key(style: str, text: str) -> Html:
    square = element("rect", width=12, height=12, rx=2, class_=style)
    return element("span", join([element("svg", square, width=12, height=12, aria_hidden="true"), text]))


def episodes_section(groups: Sequence[SeedGroup]) -> Section | None:
    """Returns of evaluation episodes by seed; None if no run has any."""
    found = [
        (number, group, [(run, returns_of(run)[:MOST_EPISODES]) for run in group.runs])
        for number, group in enumerate(groups)
    ]
    every = [value for _, _, runs in found for _, returns in runs for value in returns]
    if not every:
        return None
    low, high = min(every), max(every)
    parts = [
        _strips(group.label, place, [(run, returns) for run, returns in runs if returns], low, high)
        for place, group, runs in found
        if any(returns for _, returns in runs)
    ]
    about = "Each dot is the return of one episode of the final evaluation, each row a seed; right, the mean."
    return Section("Evaluation episodes", join([small(about), *parts]))


def returns_of(run: RunHistory) -> list[float]:
    """The returns of a run's final evaluation; none if its summary has no usable ones."""
    match run.summary:
        case {"evaluation": {"returns": list(returns)}}:
            numbers = [float(value) for value in returns if type(value) in (int, float)]
            return [value for value in numbers if math.isfinite(value) and abs(value) < 1e100]
    return []


def _strips(label: str, place: int, runs: Sequence[tuple[RunHistory, list[float]]], low: float, high: float) -> Html:
    rows: list[Content] = []
    for run, returns in runs:
        mean = number(sum(returns) / len(returns))
        text = f"seed {run.seed}: {len(returns)} episodes from {number(min(returns))} to {number(max(returns))}"
        rows += [element("span", f"seed {run.seed}"), _dots(returns, low, high, place, text)]
        rows.append(element("span", mean, class_="number"))
    rows += [element("span"), _scale(low, high), element("span")]
    return join([element("h3", named(label, place)), element("div", join(rows), class_="strips")])


def _dots(returns: Sequence[float], low: float, high: float, place: int, text: str) -> Html:
    middle = HEIGHT / 2
    base = element("line", x1="0", x2="100%", y1=str(middle), y2=str(middle), class_="base")
    dots = join(
        element("circle", cx=_share(value, low, high), cy=str(middle + LEVELS[index % len(LEVELS)]), r=3)
        for index, value in enumerate(returns)
    )
    style = style_of(place)
    return element("svg", join([base, dots]), width="100%", height=HEIGHT, class_=style, role="img", aria_label=text)


def _scale(low: float, high: float) -> Html:
    """The lowest and the highest return, below the rows."""
    ends = [(low, "start")] if low == high else [(low, "start"), (high, "end")]
    texts = [
        element(
            "text", number(value), x=_share(value, low, high), y=13, text_anchor="middle" if low == high else anchor
        )
        for value, anchor in ends
    ]
    return element("svg", join(texts), width="100%", height=18)


def _share(value: float, low: float, high: float) -> str:
    return f"{100 * (value - low) / (high - low):.2f}%" if high > low else "50%"
