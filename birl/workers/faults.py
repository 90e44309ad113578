"""Failures of child processes: which are replaced, and after how many failures a run ends.

One rule for environment workers, actor-learners and Ray actors. A child that fails is replaced,
with a warning. The run ends if a new process would fail too, or if one child fails again and again
without finishing an episode.
"""

import traceback
import warnings
from dataclasses import dataclass
from typing import NamedTuple

from birl.config import ConfigError
from birl.errors import EnvError, NonFiniteError

FAULTS_IN_A_ROW = 10  # faults of one child without a finished episode between them; one more is an error
MOST_FAULTS = 1000  # faults of all children; one more is an error


class Failure(NamedTuple):
    """The reason why a child did not answer. With one of the flags, a new one would fail too."""

    reason: str
    traceback: str = ""
    configuration: bool = False  # the user's settings are wrong
    not_finite: bool = False  # a NaN or infinity appeared
    invalid: bool = False  # an environment returned something that its spaces do not allow


def as_failure(error: BaseException) -> Failure:
    """An error as a Failure to send to the parent. Call it in the `except` block of that error."""
    plain = isinstance(error, ConfigError | EnvError | RuntimeError)  # the message says enough without the type
    reason = str(error) if plain else f"{type(error).__name__}: {error}"
    kinds = (isinstance(error, kind) for kind in (ConfigError, NonFiniteError, EnvError))
    return Failure(reason, traceback.format_exc(), *kinds)


@dataclass(frozen=True)
class Fault:
    """A failure of a child process that was replaced."""

    who: str  # "actor-learner 2", or "environments 4 to 7"
    index: int  # the child's number
    step: int  # environment steps when the failure was noticed
    pid: int  # of the process that failed; 0 if it never answered
    reason: str
    machine: str = ""  # where it ran; "" for this machine
    outcome: str = "restarted"  # what happened to the child or its environments

    def __str__(self) -> str:
        process = f"process {self.pid}" if self.pid else "its process"
        process += f" on {self.machine}" if self.machine else ""
        if self.reason.startswith("its process "):
            why = process + self.reason.removeprefix("its process")
        else:
            why = f"{self.reason} (in {process})"
        return f"{self.who} {self.outcome} in a new process at step {self.step:,}: {why}"


class FaultLog:
    """All faults of a number of child processes. It decides when there are too many."""

    def __init__(self, count: int) -> None:
        self.faults: list[Fault] = []
        self._in_a_row: list[list[Failure]] = [[] for _ in range(count)]  # of each child

    def report(self, fault: Fault, failure: Failure, episode_ended: bool, started: bool = True) -> None:
        """Record a fault and warn. Raises an error if a new process would not help.

        `episode_ended`: this child has finished an episode since its last fault. `started`: it has
        worked before. A child that raises before that is not replaced.
        """
        if failure.configuration:
            raise ConfigError(failure.reason)
        if failure.not_finite:
            raise NonFiniteError(failure.reason)
        if failure.invalid:
            raise EnvError(failure.reason)
        if not started and failure.traceback:  # without a traceback it was killed from outside
            raise RuntimeError(f"{fault.who} cannot start: {failure.reason}\n{failure.traceback}".rstrip())
        row = self._in_a_row[fault.index]
        if episode_ended:
            row.clear()
        row.append(failure)
        self.faults.append(fault)
        if len(row) > FAULTS_IN_A_ROW or len(self.faults) > MOST_FAULTS:
            raise RuntimeError(_too_many(fault.who, row))
        warnings.warn(str(fault), stacklevel=3)


def _too_many(who: str, row: list[Failure]) -> str:
    """The message after too many faults: how many, and the first and last reason."""
    often = f"{len(row)} times in a row" if len(row) > FAULTS_IN_A_ROW else f"after {MOST_FAULTS} faults in all"
    first, last = row[0], row[-1]
    change = "" if last.reason == first.reason else f"; the last time: {last.reason}"
    return f"{who} failed {often}: {first.reason}{change}\n{first.traceback}".rstrip()


def name_environments(environments: range) -> str:
    """The numbers of these environments as words: "environment 3", or "environments 4 to 7"."""
    first, last = environments[0], environments[-1]
    return f"environment {first}" if first == last else f"environments {first} to {last}"
