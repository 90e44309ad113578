"""Learning curves of runs as a picture: one line for each setting, a band over its seeds."""

import json
import os
import textwrap
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from birl.config import require
from birl.run.directory import flatten, read_settings
from birl.run.files import replacing
from birl.run.track import read_metrics

COLOURS = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#5C5C5C",
)  # Okabe and Ito 2008: safe for the colour-blind
DASHES = ("-", (0, (5, 2)), (0, (1, 1.4)), (0, (5, 1.5, 1, 1.5)))  # once the colours have been used
INK, FAINT = "#2B2B2B", "#E3E3E3"
GRID_POINTS = 400
MOST_SHOWN = 3  # settings in which the lines differ, all named in the legend
RESAMPLES = 1000
METRIC_LABELS = {
    "episode/return": "episode return",
    "episode/length": "episode length (steps)",
    "eval/return_mean": "evaluation return",
    "eval/length_mean": "evaluation episode length (steps)",
    "time/env_steps_per_second": "environment steps per second",
}
# Settings of a run that do not change what is learned, so do not part one group of seeds from
# another.
BOOKKEEPING = frozenset(
    f"run.{name}"
    for name in (
        "seed", "run_dir", "eval_every", "eval_episodes", "eval_deterministic", "checkpoint_every", "keep_checkpoints",
        "log_every", "log_seconds", "tensorboard", "wandb", "metric_names",
    )
)  # fmt: skip


@dataclass(frozen=True)
class Series:
    """One line of a plot: the (x, y) curves of its seeds."""

    label: str
    curves: list[tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class Run:
    """What a run directory says: its flattened settings and one metric of it."""

    settings: dict[str, Any]  # "algorithm", "env.id", "run.seed", ...
    x: np.ndarray
    y: np.ndarray


def plot_runs(
    run_dirs: Sequence[Path],
    out: Path,
    x: Literal["env_steps", "seconds"] = "env_steps",
    metric: str = "episode/return",
    smooth: float = 0.04,  # width of the moving mean, as a share of each curve's length; 0: none
) -> Path:
    """The path of a picture of a metric over environment steps or seconds; runs that differ only in
    seed are one series.
    """
    require(len(run_dirs) > 0, "no runs to plot; give directories such as runs/ppo-CartPole-v1-1")
    runs = [read_run(Path(run_dir), x, metric) for run_dir in run_dirs]
    title = ", ".join(sorted({run.settings["env.id"] for run in runs}))
    x_label, unit = ("environment steps", 1.0) if x == "env_steps" else time_axis(max(run.x[-1] for run in runs))
    series = group([replace(run, x=run.x / unit) for run in runs])
    return plot_curves(series, out, title, x_label, METRIC_LABELS.get(metric, metric), smooth)


def plot_curves(
    series: Sequence[Series], out: Path, title: str, x_label: str, y_label: str, smooth: float = 0.04
) -> Path:
    """The path of a picture (PNG unless `out` ends otherwise) of series: the mean over seeds in a
    95 % bootstrap interval.
    """
    require(len(series) > 0, "no series to plot; give at least one")
    figure = Figure(figsize=(7.2, 4.4), dpi=160, layout="constrained", facecolor="white")
    axes = figure.add_subplot()
    for number, one in enumerate(series):
        draw_series(axes, one, COLOURS[number % len(COLOURS)], DASHES[number // len(COLOURS) % len(DASHES)], smooth)
    dress(axes, title, x_label, y_label)
    add_legend(figure, axes, sorted({len(one.curves) for one in series}))
    out = out if out.suffix else out.with_suffix(".png")
    out.parent.mkdir(parents=True, exist_ok=True)
    with replacing(out) as file:
        figure.savefig(file, format=out.suffix.removeprefix("."))
    return out


def read_run(run_dir: Path, x: str, metric: str) -> Run:
    """A run's settings and one metric's curve, without rows where the metric is missing or null."""
    metrics_path = run_dir / "metrics.jsonl"
    stored = read_settings(run_dir)
    settings = flatten({"algorithm": stored.algorithm} | stored.values)
    require(isinstance(settings.get("env.id"), str), f"{run_dir / 'config.json'} is damaged: it must name an env.id")
    points: dict[float, float] = {}
    names: set[str] = set()
    for row in read_metrics(metrics_path) if os.path.lexists(metrics_path) else ():
        names |= {name for name, value in row.items() if value is not None}
        if (at := row.get(x)) is not None and (value := row.get(metric)) is not None:
            points[at] = value
    require(len(names) > 0, f"{run_dir} has no metrics yet: metrics.jsonl is missing or empty")
    others = ", ".join(sorted(names - {"env_steps", "seconds"}))
    require(len(points) > 0, f"{run_dir} has no metric {metric!r}; it has {others}")
    ordered = np.array(sorted(points.items()), float)
    return Run(settings, ordered[:, 0], ordered[:, 1])


def group(runs: Sequence[Run]) -> list[Series]:
    """Series of runs that differ in nothing but seed, each labelled by what sets it apart from the
    others.
    """
    seeds: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        seeds[
            json.dumps({name: value for name, value in run.settings.items() if name not in BOOKKEEPING}, sort_keys=True)
        ].append(run)
    settings = [json.loads(key) for key in seeds]
    labels = [label(one, settings) for one in settings]
    return [
        Series(text, [(run.x, run.y) for run in members]) for text, members in zip(labels, seeds.values(), strict=True)
    ]


def label(one: dict[str, Any], others: Sequence[dict[str, Any]]) -> str:
    """The algorithm, the environment if there are several, and the settings in which others of the
    two differ.
    """
    siblings = [other for other in others if all(other[name] == one[name] for name in ("algorithm", "env.id"))]
    names = sorted({name for sibling in siblings for name in sibling})
    different = [name for name in names if any(sibling.get(name) != one.get(name) for sibling in siblings)]
    several_envs = any(other["env.id"] != one["env.id"] for other in others)
    words = [one["algorithm"], *([one["env.id"]] if several_envs else [])]
    shown = different if len(different) <= MOST_SHOWN else _telling(different, siblings)
    more = [f"and {len(different) - len(shown)} more settings"] if len(shown) < len(different) else []
    return ", ".join(
        [" ".join(words), *(f"{name.removeprefix('run.')}={one.get(name, 'unset')}" for name in shown), *more]
    )


def _telling(different: list[str], siblings: Sequence[dict[str, Any]]) -> list[str]:
    """The fewest settings, found greedily, by which each sibling can be told from every other."""
    shown: list[str] = []

    def told_apart(names: list[str]) -> int:
        return len({json.dumps([sibling.get(name) for name in names]) for sibling in siblings})

    while told_apart(shown) < len(siblings):
        shown.append(max(different, key=lambda name: told_apart([*shown, name])))
    return shown


def moving_mean(x: np.ndarray, y: np.ndarray, at: np.ndarray, width: float) -> np.ndarray:
    """Mean of the line through the points (x, y) over windows of this width around `at`, cut at the
    curve's ends.

    The line's integral and not the points' mean: the same for dense and for sparse points. A width
    of 0 is the line itself.
    """
    if width <= 0 or len(x) == 1:
        return np.interp(at, x, y)
    low, high = np.clip(at - width / 2, x[0], x[-1]), np.clip(at + width / 2, x[0], x[-1])
    return (_integral(x, y, high) - _integral(x, y, low)) / (high - low)


def bootstrap_band(curves: np.ndarray, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
    """Ends of the percentile bootstrap interval of the mean of curves [seeds, points]; of 3 seeds
    or fewer, their extremes.
    """
    seeds = len(curves)
    draws = np.random.default_rng(0).multinomial(seeds, np.full(seeds, 1 / seeds), size=RESAMPLES)
    low, high = np.quantile(draws @ curves / seeds, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return low, high


def draw_series(axes: Axes, series: Series, colour: str, dashes: Any, smooth: float) -> None:
    """Several seeds: mean and band where all of them have values. One seed: the raw line, faint,
    and the smoothed one.
    """
    start, end = max(x[0] for x, _ in series.curves), min(x[-1] for x, _ in series.curves)
    name = textwrap.fill(series.label, 80)
    if end <= start:  # single points, as of evaluations only at the end
        for number, (x, y) in enumerate(series.curves):
            axes.plot(x, y, "o", color=colour, markersize=5, alpha=0.8, label=name if number == 0 else None)
        return
    at = np.linspace(start, end, GRID_POINTS)
    curves = np.stack([moving_mean(x, y, at, smooth * (x[-1] - x[0])) for x, y in series.curves])
    if len(curves) > 1:
        axes.fill_between(at, *bootstrap_band(curves), color=colour, alpha=0.16, linewidth=0)
    else:
        axes.plot(*series.curves[0], color=colour, alpha=0.22, linewidth=0.8)
    axes.plot(at, curves.mean(axis=0), label=name, color=colour, linestyle=dashes, linewidth=1.9, zorder=3)


def dress(axes: Axes, title: str, x_label: str, y_label: str) -> None:
    """House style: no box, a light grid behind the curves, quiet labels, numbers as people say
    them.
    """
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold", color=INK, pad=10)
    axes.set_xlabel(x_label, fontsize=9.5, color=INK)
    axes.set_ylabel(y_label, fontsize=9.5, color=INK)
    axes.grid(color=FAINT, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[:].set_visible(False)
    axes.spines["bottom"].set_visible(True)
    axes.spines["bottom"].set_color("#9A9A9A")
    axes.tick_params(length=0, labelsize=8.5, labelcolor=INK)
    axes.margins(x=0.01)
    axes.xaxis.set_major_formatter(FuncFormatter(short_number))
    axes.yaxis.set_major_formatter(FuncFormatter(short_number))


def add_legend(figure: Figure, axes: Axes, seeds: Sequence[int]) -> None:
    """Labels below the axes, where they hide no curve, and what the band is; `seeds` are the
    numbers of seeds, ascending.
    """
    labels = axes.get_legend_handles_labels()[1]
    columns = max(1, min(len(labels), 4, 90 // (max(map(len, labels)) + 8)))
    number = str(seeds[-1]) if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    meaning = f"mean over {number} seeds and its 95 % bootstrap interval" if seeds[-1] > 1 else None
    style: dict[str, Any] = {
        "frameon": False,
        "fontsize": 9,
        "labelcolor": INK,
        "title_fontsize": 8,
        "handlelength": 1.8,
    }
    figure.legend(loc="outside lower center", ncols=columns, title=meaning, **style).get_title().set_color("#6B6B6B")


def short_number(value: float, position: int = 0) -> str:
    """1500 as 1.5k, 2000000 as 2M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


def time_axis(seconds: float) -> tuple[str, float]:
    """The label of an axis this long in the unit that reads most easily, and that unit in
    seconds.
    """
    unit, size = ("s", 1.0) if seconds < 300 else ("min", 60.0) if seconds < 3 * 3600 else ("h", 3600.0)
    return f"wall time ({unit})", size


def _integral(x: np.ndarray, y: np.ndarray, to: np.ndarray) -> np.ndarray:
    """∫ of the line through the points from x[0] to `to`."""
    areas = np.concatenate([[0.0], np.cumsum(np.diff(x) * (y[1:] + y[:-1]) / 2)])
    before = np.clip(np.searchsorted(x, to, side="right") - 1, 0, len(x) - 2)
    return areas[before] + (to - x[before]) * (y[before] + np.interp(to, x, y)) / 2
