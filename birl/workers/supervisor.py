"""One supervisor for child processes: starts them, waits for answers, replaces them, ends them.

Environment workers and actor-learners use it. A task says what a process does.
"""

import os
import weakref
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from birl.envs.spaces import derived_seeds
from birl.workers.arrays import unnamed_memory
from birl.workers.faults import Failure, Fault, FaultLog
from birl.workers.process import (
    START_TIMEOUT,
    WorkerProcess,
    answers_as_they_come,
    answers_in_order,
    end_workers,
    start_worker,
)


class Supervisor:
    """Child processes by number, and the memory they share. A replacement keeps the number."""

    def __init__(self, count: int, module: str, variables: Mapping[str, str] = MappingProxyType({})) -> None:
        self.numbers = range(count)
        self.memory = unnamed_memory()
        self.workers: list[WorkerProcess] = []
        self.busy = False  # a call was not answered by all; between calls only after an interruption
        self._module = module
        self._variables = variables
        self._log = FaultLog(count)
        # Ends the processes when this object is dropped, and when the interpreter exits.
        self._end = weakref.finalize(self, end_workers, self.workers, self.memory, os.getpid())

    @property
    def closed(self) -> bool:
        return not self._end.alive

    @property
    def faults(self) -> list[Fault]:
        """Every replacement of a process so far."""
        return self._log.faults

    @property
    def pids(self) -> list[int]:
        """The id of each process."""
        return [worker.process.pid for worker in self.workers]

    def start(self, tasks: Sequence[Any]) -> None:
        """Start a process for each task, without waiting for answers."""
        for task in tasks:
            self.workers.append(self._start(task))

    def restart(self, number: int, task: Any) -> None:
        """Kill a process and start another in its place, without waiting for its answer."""
        self.workers[number].release()
        self.workers[number] = self._start(task)

    def wait_for_start(self, numbers: Sequence[int]) -> tuple[list[Any], dict[int, Failure]]:
        """The first answer of these processes, and which of them failed."""
        answers = answers_in_order([self.workers[number] for number in numbers], START_TIMEOUT)
        return answers, _failures(numbers, answers)

    def step(self, seconds: float) -> Iterator[tuple[int, Failure | None]]:
        """Have all processes step; (number, failure or None) as each finishes."""
        self.busy = True
        for worker in self.workers:
            worker.step()
        return answers_as_they_come(self.workers, seconds)

    def call(
        self, numbers: Sequence[int], name: str, arguments: Sequence[Any], seconds: float | None
    ) -> tuple[list[Any], dict[int, Failure]]:
        """Call a function in these processes: their answers, and which of them failed."""
        self.busy = True
        workers = [self.workers[number] for number in numbers]
        for worker, argument in zip(workers, arguments, strict=True):
            worker.call(name, argument)
        answers = answers_in_order(workers, seconds)
        return answers, _failures(numbers, answers)

    def report(self, fault: Fault, failure: Failure, episode_ended: bool, started: bool = True) -> None:
        """Record a fault and warn. Raises an error if a new process would not help."""
        self._log.report(fault, failure, episode_ended, started)

    def close(self) -> None:
        """End all processes."""
        self._end()

    def _start(self, task: Any) -> WorkerProcess:
        return start_worker(task, self.memory, self._module, self._variables)


def child_seed(run_seed: int, index: int, *restart: int) -> int:
    """The seed of the environments in child `index`; numbers in `restart` give another seed.

    The first start of child 0 has the run's own seed.
    """
    return run_seed if index == 0 and not any(restart) else derived_seeds([run_seed, index, *restart], 1)[0]


def _failures(numbers: Sequence[int], answers: list[Any]) -> dict[int, Failure]:
    return {number: answer for number, answer in zip(numbers, answers, strict=True) if isinstance(answer, Failure)}
