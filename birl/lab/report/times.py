"""The section on where time went: environments, policy, learning, and everything else."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from birl.lab.report.elements import Content, Html, Section, element, join, named, small, table
from birl.lab.report.results import NOTHING, mean_text
from birl.lab.scores import own_steps
from birl.run.console import number
from birl.run.history import RunHistory, SeedGroup

PARTS = {"environment": "environment", "policy": "policy", "learning": "learning", "program": "one compiled program"}
STYLES = {"environment": "p1", "policy": "p2", "learning": "p0", "program": "p0"}
OTHER = "start, evaluation, saving"


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
    return [
        mean_text(rates),
        mean_text(walls),
        mean_text([summary_number(run, "cpu_seconds") for run in group.runs]),
    ]


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
