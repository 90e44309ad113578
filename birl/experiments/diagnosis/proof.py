"""Trying what a diagnosis suggests: short runs with and without the change, compared over seeds."""

import itertools
import statistics
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from birl.config import ConfigError, require
from birl.config_json import from_json
from birl.errors import CheckpointError, NonFiniteError
from birl.experiments.compare import compare
from birl.experiments.comparison import Comparison
from birl.experiments.diagnosis.findings import Diagnosis, Finding
from birl.experiments.diagnosis.rules import RULES
from birl.experiments.fork import open_fork
from birl.maths.schedules import Schedule
from birl.run import checkpoint_folder
from birl.run.configure import configure
from birl.run.directory import CHECKPOINTS, holds_run, runs_below
from birl.run.display import number
from birl.run.evaluate import evaluate
from birl.run.history import read_histories
from birl.run.loop import Run
from birl.run.starting import start

FASTER = 1.1  # times as many steps per second as before are an improvement
EPISODES = 20


@dataclass(frozen=True)
class Proof:
    """Whether a suggestion helped."""

    rule: str
    changes: dict[str, Any]
    how: str  # what was done, in words
    helped: bool | None  # None: it cannot be said
    sentence: str
    directory: Path | None = None  # of the runs
    comparison: Comparison | None = None


class Bounds(NamedTuple):
    """How much a proof may cost."""

    minutes: float = 5.0  # of all its runs together
    steps: int | None = None  # environment steps of each run; None: as many as the diagnosed run made
    seeds: int = 5  # with the change, and as many without; no difference of 3 and 3 is clear enough


OpenRun = Callable[[int, Path, dict[str, Any]], Run]  # seed, run_dir, changed settings


def prove(diagnosis: Diagnosis, bounds: Bounds = Bounds(), trust: bool = False) -> Proof | None:  # noqa: B008
    """Try the first finding that can be tried; None if there is none."""
    finding = next((one for one in diagnosis.findings if _can_be_tried(one)), None)
    if finding is None:
        return None
    require(bounds.seeds >= 2, f"seeds is {bounds.seeds}; two or more can be compared")
    run_dir = diagnosis.run_dir if holds_run(diagnosis.run_dir) else runs_below(diagnosis.run_dir)[0]
    if RULES[finding.rule].proof == "evaluation":
        return _by_evaluation(finding, run_dir, trust)
    return _by_runs(finding, run_dir, bounds, trust)


def _can_be_tried(finding: Finding) -> bool:
    kind = RULES[finding.rule].proof
    return kind == "evaluation" or (kind != "none" and bool(finding.changes))


def _by_evaluation(finding: Finding, run_dir: Path, trust: bool) -> Proof:
    """The same policy, with its most likely actions and with sampled ones."""
    likely, sampled = (
        evaluate(run_dir, EPISODES, 0, deterministic, trust=trust).returns for deterministic in (True, False)
    )
    error = (likely.var() / len(likely) + sampled.var() / len(sampled)) ** 0.5
    helped = bool(sampled.mean() - likely.mean() > 2 * error)
    sentence = f"sampled actions return {number(sampled.mean())}, the most likely ones {number(likely.mean())}"
    return Proof(finding.rule, finding.changes, f"{EPISODES} episodes of the same policy each", helped, sentence)


def _by_runs(finding: Finding, run_dir: Path, bounds: Bounds, trust: bool) -> Proof:
    """Runs with the change and without, one after the other, all of the same number of steps."""
    histories = read_histories(run_dir)
    done = max((int(row["env_steps"] or 0) for row in histories[0].rows), default=0)
    steps = bounds.steps or max(done, 1)
    forks = RULES[finding.rule].proof == "fork" and finding.lasting is None
    at = _newest(run_dir) if forks else None
    open_run = _forks(run_dir, at, steps, trust) if at is not None else _new_runs(run_dir, steps, trust)
    directory = _free(run_dir.with_name(f"{run_dir.name}-proof") / finding.rule)
    changes = {name.rpartition(".")[2]: _value(value) for name, value in finding.changes.items()}
    deadline = bounds.minutes * 60 / (2 * bounds.seeds)
    limit: int | None = None
    failed = {"control": 0, "changed": 0}
    arms: list[tuple[str, dict[str, Any]]] = [("control", {}), ("changed", changes)]
    for seed in range(histories[0].seed + 1, histories[0].seed + 1 + bounds.seeds):
        for name, settings in arms:
            with suppress(NonFiniteError), open_run(seed, directory / name / f"seed-{seed}", settings) as run:
                begun = time.monotonic()
                for _ in run:
                    late = limit is None and time.monotonic() - begun > deadline
                    if late or (limit is not None and run.env_steps >= limit):
                        break
                limit = run.env_steps if limit is None else limit
            failed[name] += run.summary is None
    began = f"forks at {at:,} steps" if at is not None else "new runs"
    if finding.lasting is not None:
        began += f" (forks would inherit {finding.lasting})"
    how = f"{bounds.seeds} {began} without and {bounds.seeds} with the change, to {limit or 0:,} steps"
    return _judged(finding, how, directory, failed)


def _judged(finding: Finding, how: str, directory: Path, failed: dict[str, int]) -> Proof:
    sides = directory / "control", directory / "changed"
    if RULES[finding.rule].only_speed:
        before, after = (statistics.median(map(_speed, read_histories(side))) for side in sides)
        sentence = f"{after:,.0f} steps per second with the change, {before:,.0f} without"
        return Proof(finding.rule, finding.changes, how, after > FASTER * before, sentence, directory)
    if failed["changed"] != failed["control"]:
        sentence = f"{failed['changed']} runs with the change and {failed['control']} without ended by a NaN"
        fewer = failed["changed"] < failed["control"]
        return Proof(finding.rule, finding.changes, how, fewer, sentence, directory)
    found = compare(*sides)
    pair = found.pairs[0]
    verdicts: dict[str, bool | None] = {"second": True, "first": False, "undecided": None}
    helped = verdicts[pair.verdict]
    return Proof(finding.rule, finding.changes, how, helped, pair.sentence, directory, found)


def _speed(history: Any) -> float:
    values = history.curve("time/env_steps_per_second")[1]
    return float(statistics.median(values)) if len(values) else 0.0


def _forks(run_dir: Path, at: int, steps: int, trust: bool) -> OpenRun:
    def open_run(seed: int, directory: Path, settings: dict[str, Any]) -> Run:
        where: dict[str, Any] = {"run_dir": str(directory), "seed": seed, "total_steps": at + steps}
        return open_fork(run_dir, at, trust=trust, quiet=True, **where, **settings)

    return open_run


def _new_runs(run_dir: Path, steps: int, trust: bool) -> OpenRun:
    def open_run(seed: int, directory: Path, settings: dict[str, Any]) -> Run:
        where: dict[str, Any] = {"run_dir": str(directory), "seed": seed, "total_steps": steps}
        return start(configure(like=run_dir, trust=trust, **where, **settings), quiet=True)

    return open_run


def _newest(run_dir: Path) -> int | None:
    """The steps of the newest checkpoint; None if there is none."""
    with suppress(CheckpointError, ConfigError, OSError):
        paths = checkpoint_folder.numbered(run_dir / CHECKPOINTS)
        return int(paths[-1].name) if paths else None
    return None


def _free(path: Path) -> Path:
    """This directory, or the first numbered one that does not exist."""
    names = itertools.chain([path], (path.with_name(f"{path.name}-{n}") for n in itertools.count(2)))
    return next(name for name in names if not name.exists())


def _value(value: Any) -> Any:
    """A setting as `configure` takes it."""
    return from_json(Schedule, value) if isinstance(value, dict) else value


def proof_text(proof: Proof | None) -> str:
    """The proof in words."""
    if proof is None:
        return "nothing to try: no finding suggests a setting"
    answer = {True: "it helped", False: "it did not help", None: "it cannot be said whether it helped"}[proof.helped]
    where = f"\n   {proof.directory}" if proof.directory is not None else ""
    return f"proof of {proof.rule}: {answer}\n   {proof.how}: {proof.sentence}{where}"
