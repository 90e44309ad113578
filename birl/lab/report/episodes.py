"""The section with the returns of each episode of the final evaluations: a row of dots per seed."""

import math
from collections.abc import Sequence

from birl.lab.report.elements import Content, Html, Section, element, join, named, small, style_of
from birl.run.console import number
from birl.run.history import RunHistory, SeedGroup

MOST_EPISODES = 200  # of a seed
HEIGHT = 20  # of a row in pixels
LEVELS = (0, 3, -3, 1.5, -1.5)  # dots beside each other, so that equal returns are seen as several


def episodes_section(groups: Sequence[SeedGroup]) -> Section | None:
    """Returns of evaluation episodes by seed; None if no run has any."""
    found = [(number, group, [(run, returns_of(run)) for run in group.runs]) for number, group in enumerate(groups)]
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
            return [value for value in numbers if math.isfinite(value) and abs(value) < 1e100][:MOST_EPISODES]
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
