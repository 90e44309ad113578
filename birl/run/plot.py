"""Plots of learning curves: one line for each group of seeds, with a confidence band."""

import textwrap
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from birl.config import ConfigError, require
from birl.errors import CheckpointError
from birl.maths.curves import moving_mean
from birl.run.directory import Fork, holds_run, runs_below
from birl.run.files import replacing
from birl.run.history import RunHistory, read_history, split_by_settings

# Okabe and Ito 2008: safe for colour-blind people.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#5C5C5C")
DASHES = ("-", (0, (5, 2)), (0, (1, 1.4)), (0, (5, 1.5, 1, 1.5)))  # the next one when all colours are used
DARK = "#2B2B2B"
LIGHT = "#E3E3E3"
GRID_POINTS = 400  # points of a drawn curve
RESAMPLES = 1000  # of the bootstrap
CUT = 0.05  # a mean that ends by more than this share before the longest seed gets a note
METRIC_LABELS = {
    "episode/return": "episode return",
    "episode/length": "episode length (steps)",
    "eval/return_mean": "evaluation return",
    "eval/length_mean": "evaluation episode length (steps)",
    "time/env_steps_per_second": "environment steps per second",
}


@dataclass(frozen=True)
class Series:
    """One line of a plot: the (x, y) curves of its seeds."""

    label: str
    curves: list[tuple[np.ndarray, np.ndarray]]
    branch: float | None = None  # where forks left their parents: drawn from there on, with a dot
    failed: Sequence[tuple[np.ndarray, np.ndarray]] = ()  # of seeds that failed: drawn thin, not in the mean


@dataclass(frozen=True)
class RunCurve:
    """The flattened settings of a run, and the curve of one metric."""

    settings: dict[str, Any]  # "algorithm", "env.id", "run.seed", ...
    x: np.ndarray
    y: np.ndarray
    run_dir: Path | None = None
    fork: Fork | None = None  # where it branched off another run
    problem: str | None = None  # why it failed


def plot_runs(
    run_dirs: Sequence[Path],
    out: Path,
    x: Literal["env_steps", "seconds"] = "env_steps",
    metric: str = "episode/return",
    smooth: float = 0.04,  # width of the moving mean, as a share of each curve's length; 0: none
) -> Path:
    """Draw a metric over environment steps or seconds; the path of the image.

    Runs that differ only in their seed become one line with a band. A directory that holds no run
    stands for the runs below it; those of them that do not have the metric yet are left out. Over
    steps, a fork leaves the line of its parent where it branched off, if both are given.
    """
    require(len(run_dirs) > 0, "no runs to plot; give directories such as runs/ppo-CartPole-v1-1, or runs")
    runs = [run for run_dir in run_dirs for run in read_runs(Path(run_dir), x, metric)]
    title = ", ".join(sorted({run.settings["env.id"] for run in runs}))
    x_label, unit = ("environment steps", 1.0) if x == "env_steps" else time_axis(max(run.x[-1] for run in runs))
    runs = with_parents(runs) if x == "env_steps" else [replace(run, fork=None) for run in runs]
    series = series_of([replace(run, x=run.x / unit) for run in runs])
    return plot_curves(series, out, title, x_label, METRIC_LABELS.get(metric, metric), smooth)


def plot_curves(
    series: Sequence[Series], out: Path, title: str, x_label: str, y_label: str, smooth: float = 0.04
) -> Path:
    """Draw the mean over seeds and its 95 % bootstrap interval; the path of the image.

    It is a PNG unless `out` has another ending.
    """
    require(len(series) > 0, "no series to plot; give at least one")
    figure = Figure(figsize=(7.2, 4.4), dpi=160, layout="constrained", facecolor="white")
    axes = figure.add_subplot()
    for number, one in enumerate(series):
        draw_series(axes, one, COLOURS[number % len(COLOURS)], DASHES[number // len(COLOURS) % len(DASHES)], smooth)
    style_axes(axes, title, x_label, y_label)
    add_legend(figure, axes, sorted({len(one.curves) for one in series}), mean_notes(series))
    out = out if out.suffix else out.with_suffix(".png")
    out.parent.mkdir(parents=True, exist_ok=True)
    with replacing(out) as file:
        figure.savefig(file, format=out.suffix.removeprefix("."))
    return out


def read_runs(directory: Path, x: str, metric: str) -> list[RunCurve]:
    """The run in this directory, or else the runs below it, in the order of their names."""
    below = [] if holds_run(directory) else runs_below(directory)
    if not below:
        return [read_run(directory, x, metric)]
    found: dict[Path, RunCurve | None] = {}
    names: set[str] = set()  # of metrics that some run has
    for run_dir in below:
        try:
            run = _with_metrics(run_dir)
        except (ConfigError, CheckpointError) as problem:
            warnings.warn(f"left out: {problem}", stacklevel=3)
            continue
        found[run_dir] = _curve_of(run, x, metric)
        names |= run.metric_names()
    wrong = f"no run below {directory} has the metric {metric!r}"
    require(any(found.values()), f"{wrong}; they have {_listed(names)}" if names else wrong)
    for run_dir in [run_dir for run_dir, curve in found.items() if curve is None]:
        warnings.warn(f"left out: {run_dir} has no metric {metric!r}", stacklevel=3)
    return [curve for curve in found.values() if curve is not None]


def read_run(run_dir: Path, x: str, metric: str) -> RunCurve:
    """The settings of a run and the curve of one metric; rows without the metric are left out."""
    run = _with_metrics(run_dir)
    curve = _curve_of(run, x, metric)
    if curve is None:
        raise ConfigError(f"{run_dir} has no metric {metric!r}; it has {_listed(run.metric_names())}")
    return curve


def _with_metrics(run_dir: Path) -> RunHistory:
    run = read_history(run_dir)
    require(len(run.metric_names()) > 0, f"{run_dir} has no metrics yet: metrics.jsonl is missing or empty")
    return run


def _curve_of(run: RunHistory, x: str, metric: str) -> RunCurve | None:
    """The curve of one metric of a run; None if the run does not have it."""
    curve = run.curve(metric, x)
    return RunCurve(run.settings, *curve, run.run_dir, run.fork, run.problem) if len(curve[0]) else None


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(set(names) - {"env_steps", "seconds"}))


def with_parents(runs: Sequence[RunCurve]) -> list[RunCurve]:
    """The runs; the curve of a fork continues that of its parent, if that is among them."""
    known = {run.run_dir.resolve(): run for run in runs if run.run_dir is not None}

    def whole(run: RunCurve, depth: int = 0) -> RunCurve:
        """The curve from the beginning on; fork.json may be anybody's, and name a circle."""
        if run.fork is None or run.fork.parent not in known or depth > len(runs):
            return run
        parent = whole(known[run.fork.parent], depth + 1)
        before, after = parent.x <= run.fork.env_steps, run.x > run.fork.env_steps
        x, y = (np.concatenate([a[before], b[after]]) for a, b in ((parent.x, run.x), (parent.y, run.y)))
        return replace(run, x=x, y=y)

    return [whole(run) for run in runs]


def series_of(runs: Sequence[RunCurve]) -> list[Series]:
    """One series for all runs that differ only in their seed, labelled by its settings."""
    found = []
    for label, _, members in split_by_settings(runs):
        branches = [run.fork.env_steps for run in members if run.fork is not None]
        branch = max(branches) if branches else None
        sound = [run for run in members if run.problem is None]
        failed = [run for run in members if run.problem is not None] if sound else []
        curves, rest = ([(run.x, run.y) for run in runs] for runs in (sound or members, failed))
        found.append(Series(label, curves, branch, rest))
    return found


def mean_notes(series: Sequence[Series]) -> list[str]:
    """Notes on the means: which seeds are not in them, and which end early."""
    found = []
    for one in series:
        if one.failed:
            seeds = "1 failed seed is" if len(one.failed) == 1 else f"{len(one.failed)} failed seeds are"
            found.append(f"{one.label}: {seeds} drawn thin and not in the mean")
        ends = [x[-1] for x, _ in one.curves]
        if ends_early(ends):
            end = tick_text(float(f"{min(ends):.4g}"))
            found.append(f"{one.label}: the mean ends at {end}, with its first seed")
    return found


def ends_early(ends: Sequence[float]) -> bool:
    """True if some seed has clearly more than the shortest one, where the mean of all ends."""
    return max(ends) - min(ends) > CUT * max(ends)


def bootstrap_band(curves: np.ndarray, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
    """The percentile bootstrap interval of the mean of curves [seeds, points]: its two ends.

    For 3 seeds or fewer these are the lowest and the highest value.
    """
    seeds = len(curves)
    draws = np.random.default_rng(0).multinomial(seeds, np.full(seeds, 1 / seeds), size=RESAMPLES)
    low, high = np.quantile(draws @ curves / seeds, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return low, high


def draw_series(axes: Axes, series: Series, colour: str, dashes: Any, smooth: float) -> None:
    """Draw several seeds as mean and band, where all have values; one seed raw and smoothed."""
    start, end = max(x[0] for x, _ in series.curves), min(x[-1] for x, _ in series.curves)
    start = start if series.branch is None else max(start, series.branch)
    name = textwrap.fill(series.label, 80)
    for x, y in series.failed:
        axes.plot(x, y, color=colour, alpha=0.45, linewidth=0.8, linestyle=dashes)
    if end <= start:  # single points, for example of a final evaluation
        for number, (x, y) in enumerate(series.curves):
            axes.plot(x, y, "o", color=colour, markersize=5, alpha=0.8, label=name if number == 0 else None)
        return
    at = np.linspace(start, end, GRID_POINTS)
    curves = np.stack([moving_mean(x, y, at, smooth * (x[-1] - x[0])) for x, y in series.curves])
    if len(curves) > 1:
        axes.fill_between(at, *bootstrap_band(curves), color=colour, alpha=0.16, linewidth=0)
    else:
        x, y = series.curves[0]
        axes.plot(x[x >= start], y[x >= start], color=colour, alpha=0.22, linewidth=0.8)
    axes.plot(at, curves.mean(axis=0), label=name, color=colour, linestyle=dashes, linewidth=1.9, zorder=3)
    if series.branch is not None:
        axes.plot(at[0], curves.mean(axis=0)[0], "o", color=colour, markersize=5, markeredgecolor="white", zorder=4)


def style_axes(axes: Axes, title: str, x_label: str, y_label: str) -> None:
    """No box, a light grid behind the curves, small labels, and short numbers such as 1.5k."""
    # A "$" in the name of an environment or a metric is one, not the beginning of a formula.
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold", color=DARK, pad=10, parse_math=False)
    axes.set_xlabel(x_label, fontsize=9.5, color=DARK, parse_math=False)
    axes.set_ylabel(y_label, fontsize=9.5, color=DARK, parse_math=False)
    axes.grid(color=LIGHT, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[:].set_visible(False)
    axes.spines["bottom"].set_visible(True)
    axes.spines["bottom"].set_color("#9A9A9A")
    axes.tick_params(length=0, labelsize=8.5, labelcolor=DARK)
    axes.margins(x=0.01)
    axes.xaxis.set_major_formatter(FuncFormatter(tick_text))
    axes.yaxis.set_major_formatter(FuncFormatter(tick_text))


def add_legend(figure: Figure, axes: Axes, seeds: Sequence[int], notes: Sequence[str] = ()) -> None:
    """Add labels below the axes, and what the band means; `seeds` are the series' seed counts."""
    labels = axes.get_legend_handles_labels()[1]
    columns = max(1, min(len(labels), 4, 90 // (max(map(len, labels)) + 8)))
    number = str(seeds[-1]) if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    meaning = [f"mean over {number} seeds and its 95 % bootstrap interval"] if seeds[-1] > 1 else []
    title = "\n".join([*meaning, *(textwrap.fill(note, 110) for note in notes)])
    style: dict[str, Any] = {
        "frameon": False,
        "fontsize": 9,
        "labelcolor": DARK,
        "title_fontsize": 8,
        "handlelength": 1.8,
    }
    legend = figure.legend(loc="outside lower center", ncols=columns, title=title or None, **style)
    legend.get_title().set(color="#6B6B6B", multialignment="center")
    for text in [legend.get_title(), *legend.get_texts()]:
        text.set_parse_math(False)


def tick_text(value: float, position: int = 0) -> str:
    """1500 as 1.5k, 2000000 as 2M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


def time_axis(seconds: float) -> tuple[str, float]:
    """The label of a time axis of this length, and its unit in seconds."""
    unit, size = ("s", 1.0) if seconds < 300 else ("min", 60.0) if seconds < 3 * 3600 else ("h", 3600.0)
    return f"wall time ({unit})", size
