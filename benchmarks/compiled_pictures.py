"""Pictures of compiled environments: how speed scales, and learning curves beside the host's."""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from birl.maths.curves import moving_mean
from birl.run.plot import (
    COLOURS,
    GRID_POINTS,
    Series,
    add_legend,
    bootstrap_band,
    draw_series,
    read_runs,
    style_axes,
    tick_text,
)

SEEDS = 10
BACKENDS = {"host": "gymnasium", "compiled": "compiled"}
SMOOTH = 0.04  # width of the moving mean, as `birl plot` has it
LAST = 0.9  # from here on is the end of a curve


class Task(NamedTuple):
    """A preset of Birl."""

    algorithm: str
    env: str
    quick_steps: int

    @property
    def title(self) -> str:
        return f"{self.algorithm.upper()} {self.env}"


TASKS = (Task("ppo", "CartPole-v1", 10_000), Task("ppo", "Pendulum-v1", 10_000), Task("sac", "Pendulum-v1", 2_000))
Groups = dict[Task, dict[str, Path]]  # of each task, the group directory of each form


def draw_scaling(lines: Mapping[str, Sequence[tuple[int, float, float]]], out: Path) -> Path:
    """Steps per second, and memory, over the numbers of environments and of lanes."""
    figure = Figure(figsize=(9.6, 4.2), dpi=160, layout="constrained", facecolor="white")
    panels = figure.subplots(1, 2)
    for axes, title, place in ((panels[0], "steps per second", 1), (panels[1], "peak memory (MB)", 2)):
        for (name, line), colour in zip(lines.items(), COLOURS, strict=False):
            counts, values = [point[0] for point in line], [point[place] for point in line]
            label = name if place == 1 else f"_{name}"  # a label with _ stays out of the legend
            axes.plot(counts, values, "o-", color=colour, markersize=4, linewidth=1.9, label=label)
        style_axes(axes, title, "how many", "")
        axes.set_xscale("log", base=4)
        axes.xaxis.set_major_locator(LogLocator(base=4, numticks=20))
        if place == 1:
            axes.set_yscale("log")
            axes.yaxis.set_major_locator(LogLocator(base=10, subs=(1, 2, 5), numticks=20))
        else:
            axes.set_ylim(bottom=0)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axes.yaxis.set_major_formatter(FuncFormatter(tick_text))
    add_legend(figure, panels[0], [1])
    return save(figure, out)


def train_groups(folder: Path, is_quick: bool) -> Groups:
    """A finished group of each task and form; one that is there already is not trained again."""
    groups: Groups = {}
    for task in TASKS:
        groups[task] = {}
        for form, backend in BACKENDS.items():
            group = folder / f"{task.algorithm}-{task.env}-{form}"
            groups[task][form] = group
            if not (group / "summary.json").exists():
                print(f"  {task.title}, {form}", file=sys.stderr, flush=True)
                subprocess.run(command(task, backend, group, is_quick), check=True, stdout=subprocess.DEVNULL)
    return groups


def command(task: Task, backend: str, group: Path, is_quick: bool) -> list[str]:
    """What trains a group, or goes on with an unfinished one."""
    birl = [sys.executable, "-m", "birl"]
    if group.exists():
        return [*birl, "resume", str(group)]
    steps = ["--total-steps", str(task.quick_steps)] if is_quick else []
    options = ["--backend", backend, "--eval-episodes", "1", "--run-dir", str(group)]
    return [*birl, "train", task.algorithm, task.env, "--seeds", str(2 if is_quick else SEEDS), *options, *steps]


def draw_bands(groups: Groups, out: Path) -> list[list[str]]:
    """Draw the curves of both forms of each task; a line of the table for each task."""
    figure = Figure(figsize=(4.4 * len(groups), 4.4), dpi=160, layout="constrained", facecolor="white")
    panels = figure.subplots(1, len(groups), squeeze=False)[0]
    lines = []
    for axes, (task, forms) in zip(panels, groups.items(), strict=True):
        curves = {
            form: [(run.x, run.y) for run in read_runs(group, "env_steps", "episode/return")]
            for form, group in forms.items()
        }
        for (form, runs), colour in zip(curves.items(), COLOURS, strict=False):
            label = form if axes is panels[0] else f"_{form}"
            draw_series(axes, Series(label, runs), colour, "-", SMOOTH)
        style_axes(axes, task.title, "environment steps", "episode return" if axes is panels[0] else "")
        lines.append([task.title, *compare(*curves.values())])
    add_legend(figure, panels[0], sorted({len(runs) for runs in curves.values()}))
    print(save(figure, out), file=sys.stderr)
    return lines


Curves = list[tuple[np.ndarray, np.ndarray]]


def compare(host: Curves, compiled: Curves) -> list[str]:
    """The last tenth of both, and in which share of the steps their bands overlap."""
    start = max(x[0] for x, _ in host + compiled)
    end = min(x[-1] for x, _ in host + compiled)
    at = np.linspace(start, end, GRID_POINTS)
    smooth = [np.stack([moving_mean(x, y, at, SMOOTH * (x[-1] - x[0])) for x, y in runs]) for runs in (host, compiled)]
    (low, high), (other_low, other_high) = (bootstrap_band(curves) for curves in smooth)
    overlap = np.mean((low <= other_high) & (other_low <= high))
    return [*(ending(curves) for curves in smooth), f"{overlap:.0%} of the steps"]


def ending(curves: np.ndarray) -> str:
    """The mean return of the last tenth over seeds, with its interval."""
    last = curves[:, int(LAST * curves.shape[1]) :].mean(axis=1, keepdims=True)
    low, high = bootstrap_band(last)
    return f"{last.mean():.1f} ({low[0]:.1f} to {high[0]:.1f})"


def save(figure: Figure, out: Path) -> Path:
    """Write the PNG."""
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, format="png")
    return out
