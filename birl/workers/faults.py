"""Who failed among several that work side by side, who may be replaced, and when that is too
often.
"""

import warnings
from dataclasses import dataclass

from birl.config import ConfigError
from birl.errors import EnvError, NonFiniteError
from birl.workers.process import Failure
from birl.workers.supervisor import FAULTS_IN_A_ROW, MOST_FAULTS


@dataclass(frozen=True)
class Fault:
    """One of several whose process was replaced."""

    name: str  # what it is: an actor-learner, for instance
    index: int
    env_steps: int  # of all, when it was found
    pid: int  # 0 if it was never heard of
    reason: str
    machine: str = ""  # "" for this one

    def __str__(self) -> str:
        where = f"process {self.pid}" if self.pid else "its process"
        where += f" on {self.machine}" if self.machine else ""
        return (
            f"{self.name} {self.index} goes on in a new process at step {self.env_steps:,}; in {where}: {self.reason}"
        )


class Faults:
    """What went wrong so far."""

    def __init__(self, count: int) -> None:
        self.all: list[Fault] = []
        self._rows: list[list[Failure]] = [
            [] for _ in range(count)
        ]  # of each, those since the end of an episode of its

    def report(self, fault: Fault, failure: Failure, episode_ended: bool, started: bool) -> None:
        """Note a fault of one that has seen an episode's end since its last fault, or not, and warn
        of it.

        Raises if another process will not mend it.
        """
        if failure.configuration:
            raise ConfigError(failure.reason)
        if failure.not_finite:
            raise NonFiniteError(failure.reason)
        if failure.invalid:
            raise EnvError(failure.reason)
        if not started and failure.traceback:  # it raised by itself; who was killed from outside may have better luck
            raise RuntimeError(
                f"{fault.name} {fault.index} cannot start: {failure.reason}\n{failure.traceback}".rstrip()
            )
        row = self._rows[fault.index]
        if episode_ended:
            row.clear()
        row.append(failure)
        self.all.append(fault)
        if len(row) > FAULTS_IN_A_ROW or len(self.all) > MOST_FAULTS:
            often = f"{len(row)} times in a row" if len(row) > FAULTS_IN_A_ROW else f"after {MOST_FAULTS} faults in all"
            raise RuntimeError(
                f"{fault.name} {fault.index} failed {often}: {row[0].reason}\n{row[0].traceback}".rstrip()
            )
        warnings.warn(str(fault), stacklevel=3)
