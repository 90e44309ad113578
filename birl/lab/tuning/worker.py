"""A worker: a process that reads in the journal what is to be done, does it, and reports.

Nobody gives out work. A worker holds the search's lock while it reads the journal, decides and
claims a job, and then trains without it. A worker's own lock shows others that it lives; the claim
of one that died is free again, and its run goes on from its checkpoint. So workers can be processes
of this machine, tasks of a Ray cluster, or processes of any machine that sees the directory.
"""

import io
import os
import secrets
import shutil
import signal
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, overload

from birl.config import ConfigError, is_compiled
from birl.errors import CheckpointError
from birl.lab.tuning.halving import Begin, Choose, Close, Job, Over, Promote, Wait, next_step, time_of_job
from birl.lab.tuning.journal import (
    FINAL,
    FINAL_DEFAULT,
    JOURNAL,
    Event,
    Journal,
    LaneState,
    SearchState,
    Trial,
    process_name,
    waiting_for,
)
from birl.lab.tuning.plan import PLAN, TunePlan, read_plan
from birl.lab.tuning.search_space import at_point
from birl.lab.tuning.suggesting import choose_settings
from birl.run.checkpoint import checkpoints_in
from birl.run.directory import CHECKPOINTS
from birl.run.files import make_directory, open_to_append, require_real_directory
from birl.run.groups.group_plan import make_group, plan_group
from birl.run.groups.lane import LOG
from birl.run.groups.lane_training import SAID
from birl.run.history import read_history
from birl.run.lock import locked
from birl.run.signals import Interrupted
from birl.run.start import reopen, with_run

ALIVE_SECONDS = 20.0  # between two signs of life of a worker
WORKERS = "workers"
WAIT_SECONDS = 0.5
TIME_IS_OVER = signal.SIGALRM  # what a run of the search is told when the time of the search is over


class JobResult(NamedTuple):
    """The result of a job."""

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


def train_run(run_dir: Path, steps: int, trust: bool, signals: Sequence[int], tick: Callable[[], bool]) -> JobResult:
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
    return JobResult(run.env_steps, score_at(run_dir, run.env_steps), time.monotonic() - begin, rate)


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


class Stops(Sequence[int]):
    """Reasons for a run to stop: the signals of this process, and the end of the search's time."""

    def __init__(self, signals: list[int]) -> None:
        self._signals = signals
        self.time_is_over = False

    def __len__(self) -> int:
        return len(self._signals) + self.time_is_over

    @overload
    def __getitem__(self, index: int) -> int: ...

    @overload
    def __getitem__(self, index: slice) -> list[int]: ...

    def __getitem__(self, index: int | slice) -> int | list[int]:
        return [*self._signals, *([TIME_IS_OVER] if self.time_is_over else [])][index]


class Worker:
    """A worker of the search in a directory."""

    def __init__(self, directory: Path, trust: bool, signals: list[int], started: float) -> None:
        self._directory = directory
        self._trust = trust
        self._signals = signals  # that this process has received
        self._started = started  # the time of the process's start: importing takes seconds, too
        self._journal = Journal(directory)
        self._state = SearchState(read_plan(directory, trust)[0])
        self._name = f"{process_name(os.getpid())}{secrets.token_hex(2)}"

    def work(self) -> None:
        """Do what there is to do; returns when everything is done, or after a signal."""
        own = make_directory(make_directory(self._directory / WORKERS) / self._name)
        with locked(own):
            self._report({"event": "worker", "started": self._started})
            try:
                while not self._signals:
                    step = self._next()
                    if isinstance(step, Over):
                        break
                    if isinstance(step, Job):
                        self._train(step)
                    else:
                        time.sleep(WAIT_SECONDS)
            finally:
                self._report({"event": "left"})
        with suppress(OSError):
            own.rmdir()

    def _next(self) -> Job | Wait | Over:
        """Decide what to do, write it down, and claim it."""
        with waiting_for(self._directory):
            self._free_lost()
            while True:
                step = next_step(self._read(), time.time(), self._alive(), self._name)
                match step:
                    case Job(group, seed, rung):
                        self._append({"event": "claim", "group": group, "seed": seed, "rung": rung})
                        return step
                    case Promote(trial, rung):
                        self._append({"event": "promote", "trial": trial, "rung": rung})
                    case Begin(number):
                        self._append(*self._begin(number))
                        self._require_begun(number)
                    case Close(finalists):
                        self._append({"event": "finalists", "trials": finalists})
                    case Choose(winner):
                        self._append(self._choose(winner))
                    case Wait() | Over():
                        return step

    def _begin(self, number: int) -> list[Event]:
        """A new trial with its run directories."""
        candidate, point, how = choose_settings(self._state, number)
        event = {"event": "trial", "trial": number, "candidate": candidate, "point": point, "how": how}
        seeds = self._state.plan.seeds
        trial = Trial(number, candidate, point, how, {seed: LaneState() for seed in seeds})
        try:
            make_runs(self._directory, trial.name, self._state.plan, trial)
        except Exception as problem:  # settings that do not go together, or a disk that is full
            said = str(problem) if isinstance(problem, SAID) else f"{type(problem).__name__}: {problem}"
            return [event, {"event": "failed", "group": trial.name, "seed": seeds[0], "problem": said[:2_000]}]
        return [event]

    def _require_begun(self, number: int) -> None:
        """Raise CheckpointError if the journal lacks this trial: it would be begun forever."""
        wrong = f"trial {number} was written to {self._directory / JOURNAL}, and cannot be read from it"
        if len(self._read().trials) <= number:
            raise CheckpointError(f"{wrong}; its settings do not fit {PLAN}")

    def _choose(self, winner: int) -> Event:
        """The winner, and the directories of the final runs."""
        trial = self._state.trials[winner]
        groups = [FINAL] if trial.point is None else [FINAL, FINAL_DEFAULT]
        groups = groups if self._state.plan.final_seeds else []
        for group in groups:
            make_runs(self._directory, group, self._state.plan, trial)
        return {"event": "winner", "trial": winner, "groups": groups}

    def _train(self, job: Job) -> None:
        """Train a job's run, and report how it ended."""
        begin = time.monotonic()
        what = {"group": job.group, "seed": job.seed, "rung": job.rung}
        try:
            run_dir = run_dir_of(self._directory, job.group, job.seed)
        except CheckpointError as problem:  # nothing is written there
            self._report({"event": "failed", "problem": str(problem), **what})
            return
        stops = Stops(self._signals)
        try:
            tick = self._ticker(stops, job)
            found = train_run(run_dir, self._state.steps(job.group, job.rung), self._trust, stops, tick)
        except Interrupted:
            seconds, steps = time.monotonic() - begin, saved_steps(run_dir)
            self._report({"event": "stopped", "seconds": seconds, "env_steps": steps, **what})
        except MemoryError as problem:
            self._fail(what, run_dir, f"there is not enough memory: {problem}")
        except SAID as problem:
            self._fail(what, run_dir, str(problem))
        except Exception as problem:  # of an environment, for instance; the search goes on
            self._fail(
                what, run_dir, f"{type(problem).__name__}: {problem}", "".join(traceback.format_exception(problem))
            )
        else:
            if found.score is None:
                self._fail(what, run_dir, "it has no evaluation")
            else:
                self._report({"event": "done", **what, **found._asdict()})

    def _ticker(self, stops: "Stops", job: Job) -> Callable[[], bool]:
        """A function for after each update: signs of life, and whether the run ends here.

        When the time is over, a run is stopped, or evaluated where it is (see time_of_job).
        """
        seconds, is_evaluated = time_of_job(self._state, job, time.time(), self._alive())
        end = time.monotonic() + seconds
        next_sign = time.monotonic() + ALIVE_SECONDS

        def tick() -> bool:
            nonlocal next_sign
            now = time.monotonic()
            stops.time_is_over = now > end and not is_evaluated
            if now > next_sign:
                next_sign = now + ALIVE_SECONDS
                self._report({"event": "alive"})
            return now > end and is_evaluated

        return tick

    def _fail(self, what: Event, run_dir: Path, problem: str, more: str = "") -> None:
        with suppress(OSError, CheckpointError), open_to_append(run_dir / LOG) as log:
            log.write(f"{more or problem}\n".encode())
        self._report({"event": "failed", "problem": problem[:2_000], "env_steps": saved_steps(run_dir), **what})

    def _free_lost(self) -> None:
        """Free the claims of workers that have died; call it with the lock."""
        state = self._read()
        for name, worker in state.workers.items():
            if not worker.ended and name != self._name and self._is_dead(name):
                steps = held_steps(self._directory, state, name)
                self._append({"event": "lost", "worker": name, "env_steps": steps})

    def _is_dead(self, name: str) -> bool:
        own = self._directory / WORKERS / name
        if os.sep in name or name.startswith(".") or not own.is_dir():
            return True
        try:
            with locked(own):
                pass
        except ConfigError:
            return False
        with suppress(OSError):
            own.rmdir()
        return True

    def _alive(self) -> int:
        return max(1, sum(not worker.ended for worker in self._state.workers.values()))

    def _read(self) -> SearchState:
        self._state.add(self._journal.read())
        return self._state

    def _append(self, *events: Event) -> None:
        self._journal.append(*({"worker": self._name} | event for event in events))

    def _report(self, event: Event) -> None:
        with waiting_for(self._directory):
            self._append(event)
