"""Workers of a search as processes of this machine, or as tasks of a Ray cluster."""

import os
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from birl.config import ConfigError, require
from birl.lab.tuning.journal import Journal, process_name, waiting_for
from birl.run.files import PARTIAL, make_directory, open_to_append
from birl.run.groups.lane_training import POLL_SECONDS, SIGNAL_SECONDS, lane_variables, last_words
from birl.workers.child import Program, SignalRelay, describe_exit, start_program
from birl.workers.faults import Failure

LOGS = "logs"
MOST_DEATHS = 20  # of workers that did nothing in between, before the search gives up


class WorkerProcess(NamedTuple):
    """A worker of this machine."""

    number: int
    program: Program
    log: Path
    log_start: int


def run_here(
    directory: Path, jobs: int, trust: bool, signals: Sequence[int], progress: Callable[[], int]
) -> Iterator[int]:
    """Keep `jobs` workers at work until all have ended; the number of those that run, repeatedly.

    A worker that dies is replaced, unless workers die again and again while `progress`, the number
    of events, stays the same. After a signal all save and end. If the iterator is closed, they are
    killed.
    """
    running = [_start(directory, number, trust) for number in range(jobs)]
    relay = SignalRelay(signals)
    deaths = seen = 0
    try:
        while running:
            relay.pass_on(one.program for one in running)
            for index, one in reversed(list(enumerate(running))):
                code = one.program.code()
                if code is None:
                    continue
                del running[index]
                if code != 0 and not signals:
                    report_crash(directory, one.program.pid)
                    deaths = deaths + 1 if progress() == seen else 1
                    seen = progress()
                    _raise_if_hopeless(one, code, deaths)
                    running.append(_start(directory, one.number, trust))
            yield len(running)
            time.sleep(POLL_SECONDS)
    finally:
        for one in running:
            one.program.kill()


def report_crash(directory: Path, pid: int) -> None:
    """Write down that a worker of this machine died by itself: its run may be to blame."""
    with waiting_for(directory):
        Journal(directory).append({"event": "crashed", "process": process_name(pid)})


def _raise_if_hopeless(one: WorkerProcess, code: int, deaths: int) -> None:
    said = last_words(one.log, one.log_start)
    if code == 2:
        raise ConfigError(said or f"a worker {describe_exit(code)}; see {one.log}")
    if deaths >= MOST_DEATHS:
        raise ConfigError(f"workers die again and again: the last {describe_exit(code)}: {said}; see {one.log}")


def _start(directory: Path, number: int, trust: bool) -> WorkerProcess:
    path = make_directory(directory / LOGS) / f"worker-{number}.log"
    with open_to_append(path) as log:
        begin = os.fstat(log.fileno()).st_size
        words = ["search", str(directory), str(time.time()), *(["--trust"] if trust else [])]
        program = start_program("birl.cli.children", words, log.fileno(), lane_variables())
        return WorkerProcess(number, program, path, begin)


class WorkerEnd(NamedTuple):
    """The end of a task's worker."""

    problem: str = ""  # why it failed
    is_final: bool = False  # another one would fail as well


class WorkerTask(NamedTuple):
    """The arguments of a task of a cluster."""

    directory: Path
    token: str  # a file that the directory has, if it is the same one
    number: int
    trust: bool


class WaitingTasks(Iterator[WorkerTask]):
    """Tasks to start. More can be added while others run, also after it was empty."""

    def __init__(self, tasks: Iterable[WorkerTask]) -> None:
        self._tasks = deque(tasks)
        self.started: list[WorkerTask] = []

    def add(self, task: WorkerTask) -> None:
        self._tasks.append(task)

    def __next__(self) -> WorkerTask:
        if not self._tasks:
            raise StopIteration
        self.started.append(self._tasks.popleft())
        return self.started[-1]


def run_on_ray(
    address: str, directory: Path, jobs: int, trust: bool, signals: Sequence[int], progress: Callable[[], int]
) -> Iterator[int]:
    """As `run_here`, with a task of the cluster for each worker; all must see the directory."""
    from birl.workers.ray_actors import run_tasks  # which needs an extra

    token = f"{PARTIAL}{secrets.token_hex(8)}"
    (directory / token).touch()
    tasks = WaitingTasks(WorkerTask(directory.resolve(), token, number, trust) for number in range(jobs))
    ended = deaths = seen = 0
    try:
        for answer in run_tasks(work_on_cluster, tasks, address, jobs, signals):
            if answer is not None:
                index, found = answer
                end = WorkerEnd(found.reason) if isinstance(found, Failure) else found
                if end.problem and not signals:
                    deaths = deaths + 1 if progress() == seen else 1
                    seen = progress()
                    again = f"workers on the cluster die again and again, the last: {end.problem}"
                    require(not end.is_final, end.problem)
                    require(deaths < MOST_DEATHS, again)
                    tasks.add(tasks.started[index])
                else:
                    ended += 1
            yield jobs - ended
    finally:
        (directory / token).unlink(missing_ok=True)


def work_on_cluster(task: WorkerTask, read_signal: Callable[[], int]) -> WorkerEnd:
    """Run a worker's process on this machine to its end; how it ended."""
    if not (task.directory / task.token).exists():
        wrong = f"a machine of the cluster does not see {task.directory}; put the search on a shared file system"
        return WorkerEnd(wrong, is_final=True)
    one = _start(task.directory, os.getpid(), task.trust)
    received, next_look = 0, time.monotonic()
    try:
        while (code := one.program.code()) is None:
            if not received and time.monotonic() >= next_look:
                next_look = time.monotonic() + SIGNAL_SECONDS
                received = read_signal()
                if received:
                    one.program.send(received)
            time.sleep(POLL_SECONDS)
    finally:
        one.program.kill()
    if code == 0 or received:
        return WorkerEnd()
    report_crash(task.directory, one.program.pid)
    return WorkerEnd(last_words(one.log, one.log_start) or describe_exit(code), is_final=code == 2)
