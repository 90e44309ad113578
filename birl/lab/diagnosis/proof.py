"""Trying what a diagnosis suggests: short runs with and without the change, compared over seeds.

All runs have equal steps, as many as fit into the time.
"""

import itertools
import os
import shutil
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from birl.config import ConfigError, require
from birl.errors import CheckpointError, NonFiniteError, printable_lines
from birl.lab.comparison import SIGNIFICANCE, Comparison, compare
from birl.lab.diagnosis.diagnoses import Diagnosis, Fault
from birl.lab.diagnosis.rules import RULES
from birl.lab.forking import open_fork
from birl.maths.comparisons import mann_whitney_p_value, probability_of_improvement
from birl.run import checkpoint
from birl.run.configure import configure
from birl.run.console import number
from birl.run.directory import CHECKPOINTS, is_group, runs_below
from birl.run.evaluating import evaluate
from birl.run.history import read_histories, read_history
from birl.run.run import Run
from birl.run.start import start

ARMS = ("control", "changed")
SPARE = 0.25  # of the time is kept for evaluations, and for runs that take longer than the measured ones

OpenRun = Callable[[int, Path, dict[str, Any]], Run]  # seed, run_dir, changed settings
FASTER = 1.1  # times as many steps per second as before are an improvement
EPISODES = 20


@dataclass(frozen=True)
class Proof:
    """The result of trying a suggestion."""

    rule: str
    changes: dict[str, Any]
    how: str  # what was done, in words
    helped: bool | None  # None: it cannot be said
    sentence: str
    directory: Path | None = None  # of the runs
    comparison: Comparison | None = None


class Bounds(NamedTuple):
    """Limits of the cost of a proof."""

    minutes: float = 5.0  # of all its runs together; what has not ended by then does not count
    steps: int | None = None  # environment steps of each run; None: as many as the diagnosed run made
    seeds: int = 5  # with the change, and as many without; no difference of 3 and 3 is clear enough


def prove(diagnosis: Diagnosis, bounds: Bounds = Bounds(), trust: bool = False) -> Proof | None:  # noqa: B008
    """Try the first fault that can be tried; None if there is none."""
    for fault in [*diagnosis.findings, *diagnosis.in_few]:
        kind = RULES[fault.rule].proof
        if kind == "evaluation" or (kind != "none" and fault.changes):
            break
    else:
        return None
    require(bounds.seeds >= 2, f"seeds is {bounds.seeds}; two or more can be compared")
    if kind == "evaluation":
        return _by_evaluation(fault, fault.run_dir, trust)
    return _by_runs(fault, diagnosis, bounds, trust)


class Trained(NamedTuple):
    """Runs DIRECTORY/control/seed-N and DIRECTORY/changed/seed-N."""

    seeds: int  # that have both
    env_steps: int  # of each run that did not fail
    failed: list[Path]  # runs that ended by a NaN


def train_both(
    open_run: OpenRun, directory: Path, changes: dict[str, Any], seeds: Sequence[int], seconds: float
) -> Trained:
    """Train each seed with the changes and without, all for as many steps as fit into the time.

    The first run of each arm is measured; if it does not end within its share of the time, its
    steps are the limit for all, and a longer one is trained again. When all the time is over, a
    seed that has not ended in both arms is removed.
    """
    ends = time.monotonic() + seconds
    share = (1 - SPARE) * seconds / (2 * len(seeds) + 1)
    limit: int | None = None
    made: dict[Path, int | None] = {}  # environment steps; None: it ended by a NaN
    measured: set[str] = set()
    waiting = [(seed, name) for seed in seeds for name in ARMS]
    while waiting and time.monotonic() < ends:
        seed, name = waiting.pop(0)
        path = directory / name / f"seed-{seed}"
        until = ends if name in measured else min(ends, time.monotonic() + share)
        run = open_run(seed, path, changes if name == "changed" else {})
        end = _train(run, limit, until)
        if end == "late" and until == ends:
            shutil.rmtree(path)
            break
        made[path] = None if end == "failed" else run.env_steps
        if end != "failed":
            measured.add(name)
        if end == "late":
            limit = run.env_steps
            longer = [one for one, steps in made.items() if steps is not None and steps > limit]
            for one in longer:
                shutil.rmtree(one)
                del made[one]
                waiting.insert(0, (int(one.name.removeprefix("seed-")), one.parent.name))
    complete = [seed for seed in seeds if all(directory / name / f"seed-{seed}" in made for name in ARMS)]
    kept = {path: steps for path, steps in made.items() if int(path.name.removeprefix("seed-")) in complete}
    for path in made.keys() - kept.keys():
        shutil.rmtree(path, ignore_errors=True)  # one that failed at once has none
    steps_made = [steps for steps in kept.values() if steps is not None]
    return Trained(len(complete), max(steps_made, default=0), [path for path, steps in kept.items() if steps is None])


def _train(run: Run, limit: int | None, until: float) -> Literal["ended", "late", "failed"]:
    """Train a run to its end, to the limit, or until this time; "failed" if it ends by a NaN."""
    end: Literal["ended", "late"] = "ended"
    try:
        with run:
            for _ in run:
                if limit is not None and run.env_steps >= limit:
                    break
                if time.monotonic() > until:
                    end = "late"
                    break
    except NonFiniteError:
        return "failed"
    return end


def _by_evaluation(fault: Fault, run_dir: Path, trust: bool) -> Proof:
    """The newest policy, with its most likely actions and with sampled ones."""
    newest = checkpoint.checkpoints_in(run_dir / CHECKPOINTS)[-1:]
    require(len(newest) > 0, f"{run_dir} has no checkpoint, so there is no policy to evaluate")
    likely, sampled = (
        evaluate(newest[0], EPISODES, 0, deterministic, trust=trust).returns for deterministic in (True, False)
    )
    clear = 2 * (likely.var() / len(likely) + sampled.var() / len(sampled)) ** 0.5
    gain = sampled.mean() - likely.mean()
    helped = bool(gain > 0) if abs(gain) > clear else None
    sentence = f"sampled actions return {number(sampled.mean())}, the most likely ones {number(likely.mean())}"
    return Proof(fault.rule, fault.changes, f"{EPISODES} episodes of the newest policy each", helped, sentence)


def _by_runs(fault: Fault, diagnosis: Diagnosis, bounds: Bounds, trust: bool) -> Proof:
    """Runs with the change and without, one after the other, all of the same number of steps."""
    run_dir, histories = fault.run_dir, [read_history(one) for one in diagnosis.runs]
    done = max((int(row["env_steps"] or 0) for row in histories[0].rows), default=0)
    steps = bounds.steps or max(done, 1)
    forks = RULES[fault.rule].proof == "fork" and fault.lasting is None
    at = _newest(run_dir) if forks else None

    def open_run(seed: int, path: Path, settings: dict[str, Any]) -> Run:
        own = {"run_dir": str(path), "seed": seed, "total_steps": (at or 0) + steps, **settings}
        if at is not None:
            return open_fork(run_dir, at, trust=trust, quiet=True, **own)
        return start(configure(like=run_dir, trust=trust, **own), quiet=True)

    directory = _free(_beside(diagnosis.run_dir) / fault.rule)
    changes = {name.rpartition(".")[2]: value for name, value in fault.changes.items()}
    first = max(history.seed for history in histories) + 1
    trained = train_both(open_run, directory, changes, range(first, first + bounds.seeds), 60 * bounds.minutes)
    began = f"forks at {at:,} steps" if at is not None else "new runs"
    if fault.lasting is not None:
        began += f" (forks would inherit {fault.lasting})"
    how = f"{trained.seeds} {began} without and {trained.seeds} with the change, to {trained.env_steps:,} steps"
    if trained.seeds < 2:
        sentence = f"{bounds.minutes:g} minutes are too short for two seeds of each; give more, or fewer steps or seeds"
        return Proof(fault.rule, fault.changes, how, None, sentence, directory)
    return judge(fault, how, directory, trained)


def judge(fault: Fault, how: str, directory: Path, trained: Trained) -> Proof:
    """Compare the runs with the change and without it."""
    sides = [directory / name for name in ARMS]
    runs = [read_histories(side) if runs_below(side) else [] for side in sides]
    if RULES[fault.rule].only_speed and all(runs):
        before, after = (statistics.median(map(_speed, side)) for side in runs)
        sentence = f"{after:,.0f} steps per second with the change, {before:,.0f} without"
        return Proof(fault.rule, fault.changes, how, after > FASTER * before, sentence, directory)
    found = compare(*sides) if all(runs) else None
    if found is not None and not trained.failed:
        pair = found.pairs[0]
        verdicts: dict[str, bool | None] = {"second": True, "first": False, "undecided": None}
        return Proof(fault.rule, fault.changes, how, verdicts[pair.verdict], pair.sentence, directory, found)
    control, changed = (_scores(side, trained, found) for side in sides)
    p_value = mann_whitney_p_value(changed, control)
    share = probability_of_improvement(changed, control)
    lost = [sum(path.parent == side for path in trained.failed) for side in sides]
    nans = f"{lost[1]} runs with the change and {lost[0]} without ended by a NaN, which is the worst score"
    sentence = f"{nans}: a run with the change wins with probability {share:.2f} (p = {p_value:.2g})"
    helped = None if p_value > SIGNIFICANCE else share > 0.5
    return Proof(fault.rule, fault.changes, how, helped, sentence, directory, found)


def _scores(side: Path, trained: Trained, found: Comparison | None) -> np.ndarray:
    """The scores of one side; of a run that ended by a NaN, -∞.

    Without a comparison all runs of the other side ended so, and any number is better.
    """
    failed = [-np.inf for path in trained.failed if path.parent == side]
    if found is None:
        return np.array(failed + [0.0] * (trained.seeds - len(failed)))
    scores = {Path(name): score for group in found.groups for name, score in group.score.values.items()}
    sound = [score for path, score in scores.items() if path.parent == side and path not in trained.failed]
    return np.array(failed + sound)


def _beside(run_dir: Path) -> Path:
    """The directory for proofs: beside the run, or beside the outermost group that holds it."""
    whole = Path(os.path.abspath(run_dir))
    groups = [path for path in (whole, *whole.parents) if is_group(path)]
    top = groups[-1] if groups else whole
    beside = top.with_name(f"{top.name}-proof")
    return beside if run_dir.is_absolute() else Path(os.path.relpath(beside))


def _speed(history: Any) -> float:
    values = history.curve("time/env_steps_per_second")[1]
    return float(statistics.median(values)) if len(values) else 0.0


def _newest(run_dir: Path) -> int | None:
    """The steps of the newest checkpoint; None if there is none."""
    with suppress(CheckpointError, ConfigError, OSError):
        paths = checkpoint.checkpoints_in(run_dir / CHECKPOINTS)
        return int(paths[-1].name) if paths else None
    return None


def _free(path: Path) -> Path:
    """This directory, or the first numbered one that does not exist."""
    names = itertools.chain([path], (path.with_name(f"{path.name}-{n}") for n in itertools.count(2)))
    return next(name for name in names if not name.exists())


def proof_text(proof: Proof | None) -> str:
    """The proof in words."""
    if proof is None:
        return "nothing to try: no finding suggests a setting"
    answer = {True: "it helped", False: "it did not help", None: "it cannot be said whether it helped"}[proof.helped]
    where = f"\n   {proof.directory}" if proof.directory is not None else ""
    text = f"proof of {proof.rule}: {answer}\n   {proof.how}: {proof.sentence}{where}"
    return printable_lines(text)
