"""The picture of a diagnosis: the curves that show each fault, with their limits."""

import textwrap
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from birl.errors import printable
from birl.lab.diagnosis.diagnoses import Diagnosis, in_seeds
from birl.lab.diagnosis.rules import RULES
from birl.run.files import replacing
from birl.run.history import RunHistory, SeedGroup
from birl.run.plot import COLOURS, DARK, METRIC_LABELS, moving_mean, style_axes

COLUMNS = 3
LOGARITHMIC = 1000.0  # a curve whose largest value is so many times its median gets a logarithmic axis
SMOOTH = 0.04
LIMIT = COLOURS[1]


def draw_diagnoses(found: Sequence[Diagnosis], groups: Sequence[SeedGroup], out: Path) -> list[Path]:
    """One image for the diagnosis of each group; their paths."""
    paths = [out if number == 0 else out.with_stem(f"{out.stem}-{number + 1}") for number in range(len(found))]
    return [draw_diagnosis(one, group.runs, path) for one, group, path in zip(found, groups, paths, strict=True)]


def draw_diagnosis(diagnosis: Diagnosis, runs: Sequence[RunHistory], out: Path) -> Path:
    """A row of small plots for each fault, or the return alone; the path of the image."""
    titles = [f"{place}. {fault.title}" for place, fault in enumerate(diagnosis.findings, 1)]
    titles += [f"{in_seeds(fault)} {fault.title}" for fault in diagnosis.in_few]
    found = [*diagnosis.findings, *diagnosis.in_few]
    rows = [(title, RULES[one.rule].draw, one.evidence.lines) for title, one in zip(titles, found, strict=True)] or [
        ("", ("episode/return", "policy/entropy", "loss/value"), {})
    ]
    named = [(title, [metric for metric in metrics if _has(runs, metric)], lines) for title, metrics, lines in rows]
    named = [row for row in named if row[1]]
    figure = Figure(figsize=(3.5 * COLUMNS, 2.5 * max(1, len(named)) + 0.5), dpi=140, layout="constrained")
    figure.set_facecolor("white")
    heading = printable(f"{diagnosis.label}: {diagnosis.verdict.sentence}")
    figure.suptitle(heading, fontsize=10, color=DARK, x=0.01, ha="left", parse_math=False)
    grid = figure.add_gridspec(max(1, len(named)), COLUMNS)
    for row, (title, metrics, lines) in enumerate(named):
        for column, metric in enumerate(metrics[:COLUMNS]):
            axes = figure.add_subplot(grid[row, column])
            draw_metric(axes, runs, metric, lines.get(metric))
            axes.set_xlim(0, max(1, *(run.last_step for run in runs)))
            axes.xaxis.set_major_locator(MaxNLocator(4))
            heading = textwrap.fill(title, 42) if column == 0 else ""
            style_axes(axes, heading, "", METRIC_LABELS.get(metric, metric))
            axes.title.set_fontsize(9)
            axes.yaxis.label.set_fontsize(8)
            axes.tick_params(labelsize=7.5)
    out = out if out.suffix else out.with_suffix(".png")
    out.parent.mkdir(parents=True, exist_ok=True)
    with replacing(out) as file:
        figure.savefig(file, format=out.suffix.removeprefix("."))
    return out


def draw_metric(axes: Axes, runs: Sequence[RunHistory], metric: str, limit: float | None) -> None:
    """The curve of each seed, raw and smoothed, and the limit of the rule as a dashed line."""
    curves = [curve for run in runs if len((curve := run.curve(metric))[0])]
    for number, (steps, values) in enumerate(curves):
        colour = COLOURS[0] if len(curves) == 1 else COLOURS[(0, 2, 3, 4, 5)[number % 5]]
        smooth = moving_mean(steps, values, steps, SMOOTH * (steps[-1] - steps[0])) if len(steps) > 1 else values
        axes.plot(steps, values, color=colour, alpha=0.25, linewidth=0.8)
        axes.plot(steps, smooth, color=colour, linewidth=1.6, marker="o" if len(steps) == 1 else None, markersize=4)
    every = np.concatenate([values for _, values in curves])
    middle = float(np.median(np.abs(every)))
    if (every > 0).all() and middle > 0 and every.max() > LOGARITHMIC * middle:
        axes.set_yscale("log")
    if metric == "episode/return":
        for run in runs:
            axes.plot(*run.curve("eval/return_mean"), "D", color=LIMIT, markersize=5, label="evaluation", clip_on=False)
        if _has(runs, "eval/return_mean"):
            handles, labels = axes.get_legend_handles_labels()
            axes.legend(handles[:1], labels[:1], frameon=False, fontsize=7, labelcolor=DARK)
    if limit is not None:
        axes.axhline(limit, color=LIMIT, linestyle=(0, (4, 2)), linewidth=1.3)
        axes.annotate(
            "limit", (1, limit), xycoords=("axes fraction", "data"), ha="right", va="bottom", fontsize=7, color=LIMIT
        )


def _has(runs: Sequence[RunHistory], metric: str) -> bool:
    return any(len(run.curve(metric)[0]) for run in runs)
