"""The runs of a search: groups of seeds in its directory, ordinary runs, trained to a rung."""

import io
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from birl.config import is_compiled
from birl.errors import CheckpointError
from birl.lab.search_space import at_point
from birl.lab.tuning.plan import TunePlan
from birl.lab.tuning.state import FINAL_DEFAULT, SearchState, Trial
from birl.run.checkpoint import checkpoints_in
from birl.run.directory import CHECKPOINTS
from birl.run.files import make_directory, open_to_append, require_real_directory
from birl.run.groups.group_plan import make_group, plan_group
from birl.run.groups.lane import LOG
from birl.run.history import read_history
from birl.run.start import reopen, with_run

ALIVE_SECONDS = 20.0  # between two signs of life of a worker


class Result(NamedTuple):
    """What came of a job."""

    env_steps: int
    score: float | None  # None: the run has no evaluation
    seconds: float
    rate: float | None  # seconds a step, without compiling and evaluating; None: there was one update at most


def trial_config(plan: TunePlan, trial: Trial) -> Any:
    """The settings of a trial."""
    base = plan.candidates[trial.candidate].config
    return base if trial.point is None else at_point(base, trial.point)


def make_runs(directory: Path, group: str, plan: TunePlan, trial: Trial) -> None:
    """Make the run directories of a group; what a killed process left of it is removed first."""
    config = trial_config(plan, trial)
    seeds = plan.seeds
    if group == FINAL_DEFAULT:
        config = plan.candidates[trial.candidate].config
    if not group.startswith("trials/"):
        seeds = plan.final_seeds
    elif is_compiled(config.env):  # chunks end where a checkpoint is due, and so at the rungs
        config = with_run(config, checkpoint_every=plan.steps(trial.candidate, 0))
    path = directory / group
    for part in (path.parent, path):
        require_real_directory(part)
    if path.exists():
        shutil.rmtree(path)
    make_directory(path.parent)
    config = with_run(config, seed=seeds[0], run_dir=str(path))
    make_group(plan_group(lambda _: config, {}, len(seeds)), None, overwrite=False)


def run_dir_of(directory: Path, group: str, seed: int) -> Path:
    """The directory of a run; CheckpointError if a link leads to it, out of the search."""
    run_dir = directory / group / f"seed-{seed}"
    for part in [run_dir, *run_dir.parents][: len(run_dir.parts) - len(directory.parts)]:
        require_real_directory(part)
    return run_dir


def train_run(run_dir: Path, steps: int, trust: bool, signals: Sequence[int], tick: Callable[[], bool]) -> Result:
    """Train a run to these steps from where it is, or until `tick`, called after updates, is true.

    A run that is there already is not trained or evaluated again. After a signal it is saved, and
    SystemExit is raised.
    """
    begin = time.monotonic()
    run = reopen(run_dir, trust=trust, pause_at=steps)
    with io.TextIOWrapper(open_to_append(run_dir / LOG), line_buffering=True) as log, run.as_lane(signals, log):
        first = last = None
        for _ in run:
            is_over = tick()
            last = run.env_steps, time.monotonic()
            first = first or last
            if is_over:
                break
    rate = None
    if first is not None and last is not None and last[0] > first[0]:
        rate = (last[1] - first[1]) / (last[0] - first[0])
    return Result(run.env_steps, score_at(run_dir, run.env_steps), time.monotonic() - begin, rate)


def score_at(run_dir: Path, env_steps: int) -> float | None:
    """The evaluation of a run at these steps; None if there is none."""
    steps, scores = read_history(run_dir).curve("eval/return_mean")
    return float(scores[-1]) if len(steps) and int(steps[-1]) == env_steps else None


def saved_steps(run_dir: Path) -> int:
    """The steps of the newest checkpoint of a run; -1 if there is none."""
    try:
        found = checkpoints_in(run_dir / CHECKPOINTS)
    except CheckpointError:
        return -1
    return int(found[-1].name) if found else -1


def held_steps(directory: Path, state: SearchState, worker: str) -> int:
    """The saved steps of the run that this worker trains; -1 if there are none."""
    for group, lanes in state.groups():
        for seed, lane in lanes.items():
            if lane.holder == worker:
                return saved_steps(directory / group / f"seed-{seed}")
    return -1
