"""A child process as its parent uses it: how it is started, called, waited for and ended.

Two pipes carry calls and answers; a step is one byte. To wake two workers and hear from both took
22 µs, with sockets 34, with multiprocessing's messages 87. Child processes are not started by
multiprocessing, which would run the user's script again in each of them and import jax.
"""

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from types import MappingProxyType
from typing import Any, NamedTuple

from birl.config import EnvConfig
from birl.workers.faults import Failure
from birl.workers.programs import describe_exit

STEP, CALL = b"s", b"c"  # what a child is asked; after CALL come the function's name and argument
STEPPED, VALUE, ERROR = b"k", b"v", b"e"  # what it answers; after VALUE or ERROR comes the value or the Failure
BOOT = "import sys; sys.path[:] = sys.argv[5:]; from {module} import main; main(*map(int, sys.argv[1:5]))"
START_TIMEOUT = 120.0  # seconds to import, make and reset the environments
CLOSE_TIMEOUT = 1.0  # seconds to close its environments before a child is killed
SPIN_SECONDS = 0.002  # longer than many steps take, and shorter than an update, in which workers sleep
# One thread of XLA for each process, or n processes would compete for the CPU cores.
ONE_THREAD = {"NPROC": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu"}


class EnvTask(NamedTuple):
    """The first message to an environment worker."""

    config: EnvConfig
    share: slice  # its environments among those of the config


class WorkerProcess:
    """A running child process. If it is dead, calls are dropped and its answer is a Failure."""

    def __init__(self, process: subprocess.Popen, calls: Connection, answers: Connection, lifeline: int) -> None:
        self.process = process
        self.lifeline = lifeline  # while this end of the pipe is open, the child runs
        self._calls = calls
        self._answers = answers
        self.call_descriptor = calls.fileno()
        self.answer_descriptor = answers.fileno()

    def step(self) -> None:
        """Have it step its environments."""
        with suppress(BrokenPipeError):
            os.write(self.call_descriptor, STEP)

    def call(self, name: str, argument: Any = None) -> None:
        """Have it call a function by name."""
        with suppress(BrokenPipeError):
            os.write(self.call_descriptor, CALL)
            self._calls.send((name, argument))

    def receive(self) -> Any:
        """Its next answer, or a Failure. Waits until there is one."""
        try:
            kind = os.read(self.answer_descriptor, 1)
            if kind == STEPPED:
                return None
            if kind:
                value = self._answers.recv()
                return value if kind == VALUE else Failure(*value)
        except (EOFError, ConnectionError):
            pass
        return Failure(f"its process {describe_exit(self.kill())}")

    def stop_calls(self) -> None:
        """Tell it to close its environments and exit."""
        self._calls.close()

    def wait(self, seconds: float) -> None:
        """Wait this long for it to exit."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)

    def kill(self) -> int:
        """Kill it and everything it started, if it still runs; its exit code."""
        if self.process.returncode is None:
            with suppress(ProcessLookupError, PermissionError):  # macOS does not allow to signal a zombie
                os.killpg(self.process.pid, signal.SIGKILL)
        code = self.process.wait()
        if self.lifeline >= 0:
            os.close(self.lifeline)
            self.lifeline = -1
        return code

    def release(self) -> None:
        """Kill it and close the pipes."""
        self.kill()
        self._calls.close()
        self._answers.close()


def start_worker(
    task: Any, memory: int, module: str, variables: Mapping[str, str] = MappingProxyType({})
) -> WorkerProcess:
    """Start a process that runs this module's `main` with these environment variables.

    Its first call sends the task. `memory` is the descriptor of the memory that it shares.
    """
    their_calls, our_calls = os.pipe()
    our_answers, their_answers = os.pipe()
    their_lifeline, our_lifeline = os.pipe()
    theirs = (their_calls, their_answers, their_lifeline, memory)
    command = [sys.executable, "-c", BOOT.format(module=module), *map(str, theirs), *map(str, sys.path)]
    # In a process group of its own: ctrl-C reaches only the parent, and a kill also ends what an
    # environment has started.
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, pass_fds=theirs, process_group=0, env=os.environ | dict(variables)
    )
    for descriptor in theirs[:3]:
        os.close(descriptor)
    calls, answers = Connection(our_calls, readable=False), Connection(our_answers, writable=False)
    worker = WorkerProcess(process, calls, answers, our_lifeline)
    worker.call("start", task)
    return worker


def answers_as_they_come(workers: Sequence[WorkerProcess], seconds: float | None) -> Iterator[tuple[int, Any]]:
    """(position among `workers`, answer) as answers arrive.

    The answer is a Failure if the worker raised, died or took longer than `seconds`.
    """
    waiting = {worker.answer_descriptor: index for index, worker in enumerate(workers)}
    poller = select.poll()
    for descriptor in waiting:
        poller.register(descriptor, select.POLLIN)
    deadline = None if seconds is None else time.monotonic() + seconds
    while waiting:
        ready = poller.poll(_milliseconds_until(deadline))
        if not ready:
            break
        for descriptor, _ in ready:
            poller.unregister(descriptor)
            index = waiting.pop(descriptor)
            yield index, workers[index].receive()
    for index in waiting.values():
        yield index, Failure(f"no answer within {seconds} seconds")


def answers_in_order(workers: Sequence[WorkerProcess], seconds: float | None) -> list[Any]:
    """The answer of each worker, once all have answered; a Failure as in `answers_as_they_come`."""
    answers = dict(answers_as_they_come(workers, seconds))
    return [answers[index] for index in range(len(workers))]


def poll_and_spin(poller: select.poll) -> list[tuple[int, int]]:
    """The descriptors that are ready. Polls without sleeping for a while, then sleeps until one is.

    A CPU core that sleeps takes long to wake up, above all on a virtual machine: two workers with
    four LunarLanders each lost a third of their time to it. Between polls it yields the CPU core.
    """
    spin_until = time.monotonic() + SPIN_SECONDS
    while time.monotonic() < spin_until:
        if ready := poller.poll(0):
            return ready
        os.sched_yield()
    return poller.poll(None)


def end_workers(workers: Sequence[WorkerProcess], memory: int, owner: int) -> None:
    """End these processes and free their memory; does nothing except in the process `owner`.

    It also runs when a forked copy of the owner exits, which must not end them.
    """
    if os.getpid() != owner:
        return
    try:
        for worker in workers:
            worker.stop_calls()
        deadline = time.monotonic() + CLOSE_TIMEOUT
        for worker in workers:
            worker.wait(max(0.0, deadline - time.monotonic()))
    finally:
        for worker in workers:
            worker.release()
        os.close(memory)


def _milliseconds_until(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, 1000 * (deadline - time.monotonic()))
