"""Actor-learners in processes that write to the same parameters without locks (Recht et al. 2011,
Mnih et al. 2016).

The board lies in memory that all see. Each process loops by itself: copy the parameters, take a
turn, write its step. This process only watches: it reports, replaces whoever raised, died or hangs,
and for each report has all of them wait between two turns, so that what it copies is whole.
"""

import os
import select
import time
import warnings
import weakref
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np

from birl.asynchronous.actor_learner import SharedParameters, Work, combined, episodes_of, not_exact, seed_of
from birl.errors import InexactResume, snapshot_errors
from birl.types import Metrics, Snapshot
from birl.workers.faults import Fault, Faults
from birl.workers.process import Failure, WorkerProcess, arrays_in, end_workers, start_worker, unnamed_memory
from birl.workers.supervisor import START_TIMEOUT

# A thread of XLA's own for each process, or n of them would fight for the cores; and networks of
# actor-learners are small.
ONE_THREAD = {"NPROC": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu"}
GLANCE = 0.01  # seconds between looks at the actor-learners
BLINK = 0.0002  # the same while they are made to wait
FINISHED = 2**62  # a ticket later than all others

Kinds = list[tuple[tuple[int, ...], Any]]


@dataclass(frozen=True)
class Control:
    """How the watching process and actor-learners make themselves understood."""

    pause: np.ndarray  # [1] a ticket: who sees it waits; 0: go on
    paused: np.ndarray  # [n] the last ticket for which each waited
    learning: np.ndarray  # [n] whether it writes to the board, or is still getting ready
    heartbeats: np.ndarray  # [n] when each last began a turn

    @staticmethod
    def kinds(count: int) -> Kinds:
        return [((1,), np.int64), ((count,), np.int64), ((count,), bool), ((count,), np.float64)]


class Assignment(NamedTuple):
    """What an actor-learner's process is told first."""

    work: Work
    kinds: Kinds  # of the board's arrays
    number: int
    seed: int
    generation: int  # processes that were this actor-learner before


def shared_arrays(memory: int, kinds: Kinds) -> tuple[SharedParameters, Control]:
    """The board and what goes with it, in this memory."""
    arrays = arrays_in(memory, kinds + Control.kinds(kinds[-1][0][0]))
    return SharedParameters(*arrays[: len(kinds)]), Control(*arrays[len(kinds) :])


class ProcessPool:
    """Actor-learners, each in a process of its own."""

    def __init__(self, work: Work, shared: SharedParameters, snapshot: Snapshot | None) -> None:
        self.work, self.count = work, len(shared.keys)
        self._faults = Faults(self.count)
        self.names: tuple[str, ...] = ()
        self.seen = shared  # at the last report
        self._first_steps, self._episodes = int(shared.env_steps.sum()), 0
        if snapshot is not None:
            with snapshot_errors():
                self._episodes = int(snapshot.values["episodes"])
            warnings.warn(f"this resume is not exact: {not_exact('processes', work)}", InexactResume, stacklevel=3)
        self._memory = unnamed_memory()
        self._kinds: Kinds = [(array.shape, array.dtype) for array in vars(shared).values()]
        self._shared, self._control = shared_arrays(self._memory, self._kinds)
        for mapped, array in zip(vars(self._shared).values(), vars(shared).values(), strict=True):
            mapped[...] = array
        self._workers: list[WorkerProcess] = []
        self._generations, self._started, self._ready = [0] * self.count, [0.0] * self.count, [False] * self.count
        self._ticket = 0
        self._end = weakref.finalize(
            self, end_workers, self._workers, self._memory, os.getpid()
        )  # also when the interpreter exits

    def __enter__(self) -> Self:
        for index in range(self.count):
            self._workers.append(self._start(index))
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    @property
    def pids(self) -> list[int]:
        return [worker.process.pid for worker in self._workers]

    @property
    def faults(self) -> list[Fault]:
        """Every replacement of an actor-learner so far."""
        return self._faults.all

    def run(self, env_steps: int) -> SharedParameters:
        while self._steps() < env_steps:
            self._watch(GLANCE)
        self.seen = self._copy()
        return self.seen

    def metrics(self) -> Metrics:
        metrics = combined(self.seen.metrics, self.names)
        return metrics | {"episode/count": self._episodes + metrics["episode/count"]}

    def snapshot(self) -> Snapshot:
        return Snapshot(
            {}, {"episodes": self.metrics()["episode/count"]}, exact=False, reason=not_exact("processes", self.work)
        )

    def _steps(self) -> int:
        return int(self._shared.env_steps.sum())

    def _start(self, index: int) -> WorkerProcess:
        seed = seed_of(self.work.config.run.seed, index, self._first_steps, self._generations[index])
        assignment = Assignment(self.work, self._kinds, index, seed, self._generations[index])
        self._control.learning[index], self._ready[index] = False, False
        self._started[index] = time.monotonic()
        return start_worker(assignment, self._memory, "birl.asynchronous.process_main", ONE_THREAD)

    def _copy(self) -> SharedParameters:
        """The board between two turns of every actor-learner."""
        self._ticket += 1
        self._control.pause[0] = self._ticket
        try:
            while np.any(self._control.learning & (self._control.paused < self._ticket)):
                self._watch(BLINK)
            return self._shared.copy()
        finally:
            self._control.pause[0] = 0

    def _watch(self, seconds: float) -> None:
        """Hear what actor-learners have to say within this time, and see to those that failed."""
        poller = select.poll()
        indices = {worker.answer_descriptor: index for index, worker in enumerate(self._workers)}
        for index, worker in enumerate(self._workers):
            if self._control.paused[index] != FINISHED:
                poller.register(worker.answer_descriptor, select.POLLIN)
        if seconds < 0.001:
            time.sleep(seconds)
        for descriptor, _ in poller.poll(int(1000 * seconds)):
            self._hear(indices[descriptor])
        now = time.monotonic()
        for index in range(self.count):
            since = now - (self._control.heartbeats[index] if self._ready[index] else self._started[index])
            limit = self.work.config.env.step_timeout if self._ready[index] else START_TIMEOUT
            if since > limit and self._control.paused[index] != FINISHED:
                self._replace(index, Failure(f"no sign of life for {limit:g} seconds"))

    def _hear(self, index: int) -> None:
        answer = self._workers[index].receive()
        if not isinstance(answer, Failure):
            self.names, self._ready[index] = answer, True
        elif self._control.paused[index] != FINISHED:
            self._replace(index, answer)

    def _replace(self, index: int, failure: Failure) -> None:
        """Another process for this actor-learner: it finds parameters, counters, statistics and its
        key on the board.
        """
        fault = Fault("actor-learner", index, self._steps(), self._workers[index].process.pid, failure.reason)
        started = self._ready[index] or self._generations[index] > 0
        episodes = episodes_of(self._shared, self.names, index)
        self._faults.report(fault, failure, episodes > 0, started)
        self._workers[index].release()
        self._episodes += episodes
        self._generations[index] += 1
        self._workers[index] = self._start(index)
