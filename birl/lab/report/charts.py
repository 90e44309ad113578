"""The data of learning curves, small enough for a page, and the section that shows them.

page.js draws them. A curve with many points is shown as means over short stretches of it; one with
few, such as evaluations, as its points.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from birl.lab.report.page import Content, Html, Section, data, element, join, paragraph, sentences, style_of
from birl.maths.curves import moving_mean
from birl.run.history import RunHistory, SeedGroup
from birl.run.plot import METRIC_LABELS, bootstrap_band, ends_early

NUMBERS = 60_000  # in the data of all curves; each takes about 6 bytes of the page
FEWEST_POINTS, MOST_POINTS = 24, 200  # of a curve
FEW = 50  # points or fewer are shown as they are
MOST_METRICS = 60
SMOOTH = 0.04  # width of the moving mean over seeds, as a share of the curve; as `birl plot` has it
FIRST = (
    "episode/return", "eval/return_mean", "episode/success", "eval/success_mean", "episode/length", "policy/entropy",
    "loss/policy", "loss/value",
)  # fmt: skip
LARGEST = 1e100  # of a value that is drawn
LEFT_OUT = {"env_steps", "seconds", "eval/episodes"}
AXES = ("steps", "seconds")
Curve = tuple[np.ndarray, np.ndarray]
Start = tuple[RunHistory, int]  # of a fork: its parent, and the steps that it began with


@dataclass
class Grids:
    """The steps and seconds of curves' points: curves that were logged together share them."""

    found: list[dict[str, list[float]]] = field(default_factory=list)

    def number(self, steps: np.ndarray, seconds: np.ndarray) -> int:
        """The number of the grid with these points."""
        grid = {"steps": rounded(steps), "seconds": rounded(seconds)}
        if grid not in self.found:
            self.found.append(grid)
        return self.found.index(grid)


def curves_section(groups: Sequence[SeedGroup]) -> Section:
    """Learning curves of these groups: any metric, over steps or seconds."""
    found = curve_data(groups)
    body = paragraph("No run has metrics yet.") if not found["metrics"] else figure(found, "curves")
    return Section("Learning curves", body)


def figure(found: dict[str, Any], id: str) -> Html:
    """The controls and the place of a chart; page.js fills it from the data."""
    several = any(len(group["seeds"]) > 1 for group in found["groups"])
    metrics = join(element("option", metric["label"], value=metric["name"]) for metric in found["metrics"])
    controls: list[Content] = [
        element("label", join(["Metric ", element("select", metrics, class_="metric")])),
        element("label", join(["Over ", element("select", _axis_options(), class_="axis")])),
    ]
    if several:
        box = Html('<input type="checkbox" class="each" checked>')
        controls.append(element("label", join([box, " each seed"])))
    notes = ["Thick: mean over seeds, with its 95 % bootstrap interval. Thin: each seed."] if several else []
    if found["smoothed"]:
        lines = "Thick lines" if several else "Thick lines (thin: as logged)"
        notes.append(f"{lines} of more than {FEW} points are smoothed over {100 * SMOOTH:.0f} % of the steps.")
    notes += found["notes"]
    left_out = found["left_out"]
    more = f" Not shown, to keep this page small: {', '.join(left_out)}." if left_out else ""
    how = " Point at the chart, touch it, or use the arrow keys to read values."
    parts = [
        element("div", join(controls), class_="controls"),
        element("div", "", class_="legend"),
        element("div", "", class_="plot"),
        element("noscript", paragraph("The curves are drawn by a script, and scripts are switched off.")),
        element("figcaption", join([sentences(" ".join(notes)), element("span", how, class_="screen"), more])),
        data(id, found),
    ]
    return element("figure", join(parts), class_="curves", data_curves=id)


def curve_data(groups: Sequence[SeedGroup]) -> dict[str, Any]:
    """Every metric of every run, and the mean over seeds with its band, over steps and seconds."""
    names = ordered({name for group in groups for run in group.runs for name in run.metric_names()})
    per_metric = sum(len(group.runs) + 6 for group in groups)  # a curve for each run; mean and band over two axes
    shown = names[: max(1, min(MOST_METRICS, NUMBERS // (per_metric * FEWEST_POINTS)))]
    most = max(FEWEST_POINTS, min(MOST_POINTS, NUMBERS // (per_metric * max(1, len(shown)))))
    grids = Grids()
    clocks = {run.run_dir: _clock(run) for group in groups for run in group.runs}
    starts = _starts([run for group in groups for run in group.runs])
    metrics = [
        {
            "name": name,
            "label": METRIC_LABELS.get(name, name),
            "groups": [_group_curves(group, name, most, grids, clocks, starts) for group in groups],
        }
        for name in shown
    ]
    labels = [
        {"label": group.label, "style": style_of(number), "seeds": [str(run.seed) for run in group.runs]}
        for number, group in enumerate(groups)
    ]
    return {
        "groups": labels,
        "metrics": metrics,
        "grids": grids.found,
        "left_out": names[len(shown) :],
        "smoothed": any(len(run.curve(name)[0]) > FEW for name in shown for group in groups for run in group.runs),
        "notes": [note for group in groups for note in mean_notes(group)],
    }


def mean_notes(group: SeedGroup) -> Iterator[str]:
    """Notes on a mean: the seeds that are not in it, and where it ends early."""
    sound = _in_mean(group.runs)
    left_out = [str(run.seed) for run in group.runs if run not in sound]
    if left_out:
        seeds, are = ("seed", "is") if len(left_out) == 1 else ("seeds", "are")
        yield f"{group.label}: {seeds} {', '.join(left_out)} failed and {are} not in the mean."
    shortest = min(sound, key=lambda run: run.last_step)
    if len(sound) > 1 and ends_early([run.last_step for run in sound]):
        now = "is now" if shortest.summary is None else "ended"
        yield f"{group.label}: the mean ends at {shortest.last_step:,} steps, where seed {shortest.seed} {now}."


def _in_mean(runs: Sequence[RunHistory]) -> list[RunHistory]:
    """The runs that did not fail; all if all did."""
    return [run for run in runs if run.problem is None] or list(runs)


def ordered(names: Iterable[str]) -> list[str]:
    """The metrics that a reader looks for first, then the others by name."""
    wanted = [name for name in names if name not in LEFT_OUT and not name.endswith("_seconds")]
    return sorted(wanted, key=lambda name: (FIRST.index(name) if name in FIRST else len(FIRST), name))


def mean_and_band(curves: Sequence[Curve], most: int) -> list[list[float]] | None:
    """Points, mean and band where all curves have values: x, mean, and low and high if several."""
    start, end = max(x[0] for x, _ in curves), min(x[-1] for x, _ in curves)
    if end < start:
        return None
    every = np.unique(np.concatenate([x for x, _ in curves]))
    few = max(len(x) for x, _ in curves) <= FEW
    at = every[(every >= start) & (every <= end)]
    at = at if few and len(at) <= most else np.linspace(start, end, most)
    widths = [0.0 if len(x) <= FEW else SMOOTH * (x[-1] - x[0]) for x, _ in curves]
    values = np.stack([moving_mean(x, y, at, width) for (x, y), width in zip(curves, widths, strict=True)])
    lines = [values.mean(axis=0), *(bootstrap_band(values) if len(values) > 1 else ())]
    return [rounded(at), *map(rounded, lines)]


def thinned(x: np.ndarray, y: np.ndarray, most: int) -> Curve:
    """A curve of at most this many points: means over equal stretches of it if it has more."""
    if len(x) <= most:
        return x, y
    at = np.linspace(x[0], x[-1], most)
    return at, moving_mean(x, y, at, (x[-1] - x[0]) / most)


def rounded(values: np.ndarray) -> list[float]:
    """The values with as many digits as a chart can show: a thousandth of their range."""
    span = float(values.max() - values.min()) or float(abs(values[0])) or 1.0
    digits = 3 - math.floor(math.log10(span))
    numbers = [round(float(value), digits) for value in values]
    return [int(number) if number.is_integer() and abs(number) < 1e15 else number for number in numbers]


def _group_curves(
    group: SeedGroup, metric: str, most: int, grids: Grids, clocks: dict[Path, Curve], starts: dict[Path, Start]
) -> dict[str, Any] | None:
    """The curves of one metric: of each seed its grid and values, and the mean and band."""
    curves = {run.run_dir: _drawable(*_with_start(run, metric, starts)) for run in group.runs}
    found = {run_dir: curve for run_dir, curve in curves.items() if len(curve[0])}
    if not found:
        return None
    seeds: list[Any] = []
    in_mean = _in_mean([run for run in group.runs if run.run_dir in found])
    by_time: list[Curve] = []
    for run in group.runs:
        if run.run_dir not in found:
            seeds.append(None)
            continue
        steps, values = thinned(*found[run.run_dir], most)
        seconds = np.interp(steps, *clocks[run.run_dir])
        seeds.append([grids.number(steps, seconds), rounded(values)])
        if run in in_mean:
            by_time.append(_increasing(seconds, values))
    return {
        "seeds": seeds,
        "steps": mean_and_band([found[run.run_dir] for run in in_mean], most),
        "seconds": mean_and_band(by_time, most),
    }


def _starts(runs: Sequence[RunHistory]) -> dict[Path, Start]:
    """For each fork whose parent is among these runs: the parent, and the steps at its start."""
    known = {run.run_dir.resolve(): run for run in runs}
    return {
        run.run_dir: (known[parent], run.fork.env_steps)
        for run in runs
        if run.fork is not None and (parent := run.fork.parent.resolve()) in known
    }


def _with_start(run: RunHistory, metric: str, starts: dict[Path, Start]) -> Curve:
    """The curve of a run; that of a fork begins with its parent's value, so that it branches."""
    steps, values = run.curve(metric)
    if run.run_dir not in starts or not len(steps):
        return steps, values
    parent, start = starts[run.run_dir]
    before, known = parent.curve(metric)
    if not len(before) or not before[0] <= start < steps[0]:
        return steps, values
    return np.insert(steps, 0, start), np.insert(values, 0, np.interp(start, before, known))


def _drawable(x: np.ndarray, y: np.ndarray) -> Curve:
    """The points whose values can be added up without overflow."""
    keep = np.abs(y) < LARGEST
    return x[keep], y[keep]


def _clock(run: RunHistory) -> Curve:
    """The wall seconds of a run over its steps; they never fall."""
    steps, seconds = run.curve("seconds")
    if not len(steps):
        return np.zeros(1), np.zeros(1)
    return steps, np.maximum.accumulate(seconds)


def _increasing(x: np.ndarray, y: np.ndarray) -> Curve:
    """The curve without points at the same place as the one before."""
    keep = np.concatenate([[True], np.diff(x) > 0])
    return x[keep], y[keep]


def _axis_options() -> Html:
    texts = {"steps": "environment steps", "seconds": "wall time"}
    return join(element("option", texts[axis], value=axis) for axis in AXES)
