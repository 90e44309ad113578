"""Actor-learners in processes that write to the same parameters without locks.

This is Hogwild! (Recht et al. 2011), as in Mnih et al. 2016. The parameters are in shared memory.
Each process runs `learn`: copy the parameters, take a worker step, apply its gradient. For each
report all of them pause between two steps, so that the copy of the parameters is consistent. An
actor-learner that raised, died or hangs is replaced: `_watch` (with `_receive`) notices it ->
`_replace` -> `FaultLog.report` warns or ends the run -> `Supervisor.restart`.
"""

import fcntl
import os
import select
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np

from birl.asynchronous.actor_learner import PoolRecord, Work, open_actor_learner, run_worker_step
from birl.asynchronous.parameters import SharedParameters
from birl.maths.keys import numbered
from birl.speed import prepare_jax
from birl.types import Metrics, Snapshot
from birl.workers.child import connect_to_parent
from birl.workers.faults import Failure, Fault, as_failure
from birl.workers.supervisor import ERROR, ONE_THREAD, START_TIMEOUT, VALUE, Shapes, Supervisor, map_arrays

WATCH_SECONDS = 0.01  # between looks at the actor-learners
PAUSE_SECONDS = 0.0002  # between looks while they pause
FINISHED = 2**62  # in `paused`: it has ended, which answers every pause request


@dataclass(frozen=True)
class Control:
    """Shared arrays with which this process pauses and watches the actor-learners.

    To pause them all it writes the number of a new pause request. Each writes this number to
    `paused` once it has stopped between two steps, and waits until the request is 0 again.
    """

    pause_request: np.ndarray  # [1] the number of the pause request; 0: actor-learners run
    paused: np.ndarray  # [n] the last pause request that each has answered; FINISHED at its end
    learning: np.ndarray  # [n] whether it writes to the parameters; false while it starts
    heartbeats: np.ndarray  # [n] when each last began a step

    @staticmethod
    def shapes(count: int) -> Shapes:
        return [((1,), np.int64), ((count,), np.int64), ((count,), bool), ((count,), np.float64)]


class Assignment(NamedTuple):
    """The first message to the process of an actor-learner."""

    work: Work
    shapes: Shapes  # of the shared parameters
    number: int
    seed: int
    generation: int  # how often this actor-learner was replaced


def map_shared(memory: int, shapes: Shapes) -> tuple[SharedParameters, Control]:
    """The shared parameters and the control arrays in this memory."""
    count = shapes[-1][0][0]
    arrays = map_arrays(memory, shapes + Control.shapes(count))
    return SharedParameters(*arrays[: len(shapes)]), Control(*arrays[len(shapes) :])


class ProcessPool:
    """Actor-learners, each in a process of its own."""

    def __init__(self, work: Work, shared: SharedParameters, snapshot: Snapshot | None) -> None:
        self.work = work
        self.count = len(shared.keys)
        self.last_copy = shared  # of the parameters, at the last report
        self._record = PoolRecord(work, shared, "processes", snapshot)
        # Each child process runs `main` of this file.
        self._supervisor = Supervisor(self.count, "birl.asynchronous.processes", ONE_THREAD)
        self._shapes: Shapes = [(array.shape, array.dtype) for array in vars(shared).values()]
        self._shared, self._control = map_shared(self._supervisor.memory, self._shapes)
        for mapped, array in zip(vars(self._shared).values(), vars(shared).values(), strict=True):
            mapped[...] = array
        self._started_at = [0.0] * self.count
        self._pause_requests = 0

    def __enter__(self) -> Self:
        self._supervisor.start([self._assign(number) for number in range(self.count)])
        return self

    def __exit__(self, *_: object) -> None:
        self._supervisor.close()

    @property
    def pids(self) -> list[int]:
        """The id of each actor-learner's process."""
        return self._supervisor.pids

    @property
    def faults(self) -> list[Fault]:
        """Every replacement of an actor-learner so far."""
        return self._supervisor.log.faults

    def run(self, env_steps: int) -> SharedParameters:
        """Learn until so many environment steps are done in all; a copy of the parameters then."""
        while self._env_steps() < env_steps or not self._record.names:
            self._watch(WATCH_SECONDS)
        self.last_copy = self._copy()
        return self.last_copy

    def metrics(self) -> Metrics:
        """The metrics of the actor-learners' last steps."""
        return self._record.metrics(self.last_copy)

    def snapshot(self) -> Snapshot:
        """The number of episodes, which is all that is saved beside the parameters."""
        return self._record.snapshot(self.last_copy)

    def _env_steps(self) -> int:
        return int(self._shared.env_steps.sum())

    def _assign(self, number: int) -> Assignment:
        """The assignment of a new process for this actor-learner."""
        self._control.learning[number] = False
        self._record.ready[number] = False
        self._started_at[number] = time.monotonic()
        return Assignment(self.work, self._shapes, number, self._record.seed(number), self._record.generations[number])

    def _copy(self) -> SharedParameters:
        """A copy of the parameters, while all actor-learners pause."""
        self._pause_requests += 1
        self._control.pause_request[0] = self._pause_requests
        try:
            while np.any(self._control.learning & (self._control.paused < self._pause_requests)):
                self._watch(PAUSE_SECONDS)
            return self._shared.copy()
        finally:
            self._control.pause_request[0] = 0

    def _watch(self, seconds: float) -> None:
        """Wait this long for messages of actor-learners, and replace those that failed."""
        poller = select.poll()
        workers = self._supervisor.workers
        numbers = {worker.answer_descriptor: number for number, worker in enumerate(workers)}
        for number, worker in enumerate(workers):
            if self._control.paused[number] != FINISHED or not self._record.ready[number]:
                poller.register(worker.answer_descriptor, select.POLLIN)
        if seconds < 0.001:
            time.sleep(seconds)
        for descriptor, _ in poller.poll(int(1000 * seconds)):
            self._receive(numbers[descriptor])
        now = time.monotonic()
        for number in range(self.count):
            ready = self._record.ready[number]
            last_heartbeat = self._control.heartbeats[number] if ready else self._started_at[number]
            limit = self.work.config.env.step_timeout if ready else START_TIMEOUT
            if now - last_heartbeat > limit and self._control.paused[number] != FINISHED:
                self._replace(number, Failure(f"no heartbeat for {limit:g} seconds"))

    def _receive(self, number: int) -> None:
        answer = self._supervisor.workers[number].receive()
        if not isinstance(answer, Failure):
            self._record.names = answer
            self._record.ready[number] = True
        elif self._control.paused[number] != FINISHED:
            self._replace(number, answer)

    def _replace(self, number: int, failure: Failure) -> None:
        """Start another process. All that it needs is in shared memory, its random key too."""
        place = self._supervisor.pids[number], ""
        self._record.replaced(number, self._shared, failure, self._supervisor.log, place, excused=False)
        self._supervisor.workers[number].program.kill()  # before its control values are set back
        self._supervisor.restart(number, self._assign(number))


def main(lifeline: int, words: list[str]) -> None:
    """Learn until the run's steps are done or the parent ends this process."""
    calls, answers, memory = connect_to_parent(lifeline, words)
    try:
        os.read(calls.fileno(), 1)
        _, assignment = calls.recv()
        for names in learn(assignment, memory):
            os.write(answers.fileno(), VALUE)
            answers.send(names)
    except BaseException as error:  # also an environment's sys.exit
        os.write(answers.fileno(), ERROR)
        answers.send(tuple(as_failure(error)))


def learn(assignment: Assignment, memory: int) -> Iterator[tuple[str, ...]]:
    """The loop of an actor-learner; yields the names of its metrics once it is ready to learn."""
    work = assignment.work
    number = assignment.number
    shared, control = map_shared(memory, assignment.shapes)
    prepare_jax()
    key = numbered(shared.keys[number], assignment.generation)  # a replacement does not repeat old draws
    learner = open_actor_learner(work, number, key, assignment.seed)
    # One process at a time: the first compiles, and the others find its programs on disk.
    fcntl.lockf(memory, fcntl.LOCK_EX)
    weights = shared.read()  # θ' ← θ
    result, learner = run_worker_step(learner, weights, work)  # act; dθ
    fcntl.lockf(memory, fcntl.LOCK_UN)
    control.heartbeats[number] = time.monotonic()
    yield tuple(result.metrics)
    control.learning[number] = True
    while True:
        # The loop begins in the middle of a round: the first worker step is above, because it shows
        # that the actor-learner works.
        wait_while_paused(control, number)
        work.apply_gradients(shared, result, work.config)  # update θ using dθ
        shared.write(number, result)  # T ← T + the steps taken
        if shared.env_steps.sum() >= work.config.run.total_steps:
            break
        control.heartbeats[number] = time.monotonic()
        weights = shared.read()  # θ' ← θ
        result, learner = run_worker_step(learner, weights, work)  # act; dθ
    control.paused[number] = FINISHED
    learner.envs.close()


def wait_while_paused(control: Control, number: int) -> None:
    """Wait until the parent has copied the parameters."""
    while request := int(control.pause_request[0]):
        control.paused[number] = request
        control.heartbeats[number] = time.monotonic()
        time.sleep(PAUSE_SECONDS)
