"""The worker processes of one set of environments: which environments each has, who failed, who is
replaced, when to give up.
"""

import os
import warnings
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import gymnasium as gym

from birl.config import ConfigError, EnvConfig
from birl.errors import EnvError
from birl.workers.process import (
    Failure,
    Task,
    WorkerProcess,
    answers_of,
    arrivals,
    end_workers,
    start_worker,
    unnamed_memory,
)

START_TIMEOUT = 120.0  # seconds to import, make and reset the environments
FAULTS_IN_A_ROW = 10  # of one worker, no episode of which ended between them: the next is final
MOST_FAULTS = 1000  # in all


@dataclass(frozen=True)
class Fault:
    """A worker that was replaced."""

    step: int  # since the environments were reset
    environments: range  # whose episodes were cut
    pid: int
    reason: str

    def __str__(self) -> str:
        return f"{named(self.environments)} began new episodes at step {self.step} in a new process; in process {self.pid}: {self.reason}"


class Supervisor:
    """Workers by number, each with its share of the environments: the same share as long as they
    live, whatever process it is.
    """

    def __init__(self, config: EnvConfig) -> None:
        self.config = config
        bounds = [config.num_envs * number // config.workers for number in range(config.workers + 1)]
        self.shares = [slice(first, end) for first, end in pairwise(bounds)]
        self.everyone = range(config.workers)
        self.memory = unnamed_memory()
        self.workers: list[WorkerProcess] = []
        self.busy = (
            False  # orders were given and not all answers taken; outside a call only if an exception came between
        )
        self.faults: list[Fault] = []
        self._rows: list[list[Failure]] = [
            [] for _ in self.shares
        ]  # of each worker, those since the end of an episode of its
        self._end = weakref.finalize(
            self, end_workers, self.workers, self.memory, os.getpid()
        )  # also when the interpreter exits

    @property
    def closed(self) -> bool:
        return not self._end.alive

    def start(self) -> tuple[gym.Space, gym.Space]:
        """Start all workers; the environments' own observation and action space."""
        try:
            for number in self.everyone:
                self.workers.append(start_worker(self._task(number), self.memory))
            answers = answers_of(self.workers, START_TIMEOUT)
            for number, failure in self._failures(self.everyone, answers).items():
                if failure.configuration:
                    raise ConfigError(failure.reason)
                raise RuntimeError(
                    f"{named(self.environments(number))} cannot be made: {failure.reason}\n{failure.traceback}".rstrip()
                )
        except BaseException:
            self.close()
            raise
        return answers[0]

    def step(self) -> Iterator[tuple[int, Failure | None]]:
        """Have all workers step. Then, as they finish: its number, and why it failed."""
        self.busy = True
        for worker in self.workers:
            worker.step()
        return arrivals(self.workers, self.config.step_timeout)

    def call(
        self, numbers: Sequence[int], name: str, arguments: Sequence[Any], seconds: float | None
    ) -> tuple[list[Any], dict[int, Failure]]:
        """What these workers answer, and which of them failed."""
        self.busy = True
        workers = [self.workers[number] for number in numbers]
        for worker, argument in zip(workers, arguments, strict=True):
            worker.call(name, argument)
        answers = answers_of(workers, seconds)
        return answers, self._failures(numbers, answers)

    def restart(self, numbers: Sequence[int]) -> dict[int, Failure]:
        """New processes for these workers; those that failed again."""
        for number in numbers:
            self.workers[number].release()
            self.workers[number] = start_worker(self._task(number), self.memory)
        return self._failures(numbers, answers_of([self.workers[number] for number in numbers], START_TIMEOUT))

    def report(self, number: int, failure: Failure, step: int, episode_ended: bool) -> None:
        """Note a fault and warn of it. Raises if a restart will not mend it: too many, with or
        without an episode's end since the last.
        """
        if failure.invalid:
            raise EnvError(failure.reason)
        environments, row = self.environments(number), self._rows[number]
        self.faults.append(Fault(step, environments, self.workers[number].process.pid, failure.reason))
        if episode_ended:
            row.clear()
        row.append(failure)
        if len(row) > FAULTS_IN_A_ROW or len(self.faults) > MOST_FAULTS:
            first, times = row[0], len(row)
            often = f"{times} times in a row" if times > FAULTS_IN_A_ROW else f"after {MOST_FAULTS} faults in all"
            last = "" if failure.reason == first.reason else f"; the last time: {failure.reason}"
            raise RuntimeError(
                f"{named(environments)} failed {often}: {first.reason}{last}\n{first.traceback}".rstrip()
            )
        warnings.warn(str(self.faults[-1]), stacklevel=5)

    def environments(self, number: int) -> range:
        return range(self.shares[number].start, self.shares[number].stop)

    def close(self) -> None:
        """End the workers. Happens by itself, too, when nobody uses the crew any more or the
        interpreter exits.
        """
        self._end()

    def _task(self, number: int) -> Task:
        return Task(self.config, self.shares[number])

    def _failures(self, numbers: Sequence[int], answers: list[Any]) -> dict[int, Failure]:
        return {number: answer for number, answer in zip(numbers, answers, strict=True) if isinstance(answer, Failure)}


def named(environments: range) -> str:
    """Which environments, in words."""
    first, last = environments[0], environments[-1]
    return f"environment {first}" if first == last else f"environments {first} to {last}"
