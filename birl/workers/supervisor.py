"""A supervisor of child processes: it starts, calls, replaces and ends them.

Environment workers and actor-learners use it. A task says what a process does. Two pipes carry
calls and answers; a step is one byte. To wake two workers and hear from both took 22 µs, with
sockets 34, with multiprocessing's messages 87. Arrays are in memory that the processes share.
"""

import mmap
import os
import select
import sys
import tempfile
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from birl.envs.spaces import derived_seeds
from birl.workers.child import Program, describe_exit, start_program
from birl.workers.faults import Failure, FaultLog

STEP, CALL = b"s", b"c"  # what a child is asked; after CALL come the function's name and argument
STEPPED, VALUE, ERROR = b"k", b"v", b"e"  # what it answers; after VALUE or ERROR comes the value or the Failure
START_TIMEOUT = 120.0  # seconds to import, make and reset the environments
CLOSE_TIMEOUT = 1.0  # seconds to close its environments before a child is killed
ALIGNMENT = 64  # bytes: a cache line
# One thread of XLA for each process, or n processes would compete for the CPU cores.
ONE_THREAD = {"NPROC": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu"}

Shapes = list[tuple[tuple[int, ...], Any]]  # the shape and dtype of each array


class WorkerProcess:
    """A running child process. If it is dead, calls are dropped and its answer is a Failure."""

    def __init__(self, program: Program, calls: Connection, answers: Connection) -> None:
        self.program = program
        self._calls = calls
        self._answers = answers
        self.answer_descriptor = answers.fileno()

    def step(self) -> None:
        """Have it step its environments."""
        with suppress(BrokenPipeError):
            os.write(self._calls.fileno(), STEP)

    def call(self, name: str, argument: Any = None) -> None:
        """Have it call a function by name."""
        with suppress(BrokenPipeError):
            os.write(self._calls.fileno(), CALL)
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
        return Failure(f"its process {describe_exit(self.program.kill())}")

    def stop_calls(self) -> None:
        """Tell it to close its environments and exit."""
        self._calls.close()

    def release(self) -> None:
        """Kill it and close the pipes."""
        self.program.kill()
        self._calls.close()
        self._answers.close()


class Supervisor:
    """Child processes by number, and the memory they share. A replacement keeps the number."""

    def __init__(self, count: int, module: str, variables: Mapping[str, str]) -> None:
        self.numbers = range(count)
        self.memory = unnamed_memory()
        self.workers: list[WorkerProcess] = []
        self.log = FaultLog(count)  # of the processes that were replaced
        self.busy = False  # a call was not answered by all; between calls only after an interruption
        self._module = module
        self._variables = variables
        # Ends the processes when this object is dropped, and when the interpreter exits.
        self._end = weakref.finalize(self, end_workers, self.workers, self.memory, os.getpid())

    @property
    def closed(self) -> bool:
        return not self._end.alive

    @property
    def pids(self) -> list[int]:
        """The id of each process."""
        return [worker.program.pid for worker in self.workers]

    def start(self, tasks: Sequence[Any]) -> None:
        """Start a process for each task, without waiting for answers."""
        for task in tasks:
            self.workers.append(self._start(task))

    def restart(self, number: int, task: Any) -> None:
        """Kill a process and start another in its place, without waiting for its answer."""
        self.workers[number].release()
        self.workers[number] = self._start(task)

    def answers(self, numbers: Sequence[int], seconds: float | None) -> tuple[list[Any], dict[int, Failure]]:
        """The answers of these processes, once all have answered, and which of them failed."""
        found = dict(answers_as_they_come([self.workers[number] for number in numbers], seconds))
        answers = [found[index] for index in range(len(numbers))]
        failures = zip(numbers, answers, strict=True)
        return answers, {number: answer for number, answer in failures if isinstance(answer, Failure)}

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
        for number, argument in zip(numbers, arguments, strict=True):
            self.workers[number].call(name, argument)
        return self.answers(numbers, seconds)

    def close(self) -> None:
        """End all processes."""
        self._end()

    def _start(self, task: Any) -> WorkerProcess:
        """A new process, whose first call sends the task."""
        their_calls, our_calls = os.pipe()
        our_answers, their_answers = os.pipe()
        theirs = their_calls, their_answers, self.memory
        program = start_program(self._module, [*map(str, theirs)], None, self._variables, theirs)
        os.close(their_calls)
        os.close(their_answers)
        worker = WorkerProcess(program, Connection(our_calls, readable=False), Connection(our_answers, writable=False))
        worker.call("start", task)
        return worker


def child_seed(run_seed: int, index: int, *restart: int) -> int:
    """The seed of the environments in child `index`; numbers in `restart` give another seed.

    The first start of child 0 has the run's own seed.
    """
    return run_seed if index == 0 and not any(restart) else derived_seeds([run_seed, index, *restart], 1)[0]


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
            worker.program.wait(max(0.0, deadline - time.monotonic()))
    finally:
        for worker in workers:
            worker.release()
        os.close(memory)


def map_arrays(memory: int, shapes: Shapes) -> list[np.ndarray]:
    """Arrays of these shapes and dtypes in this memory, for each process that maps it."""
    sizes = [int(np.prod(shape)) * np.dtype(dtype).itemsize for shape, dtype in shapes]
    ends = np.cumsum([-(-size // ALIGNMENT) * ALIGNMENT for size in sizes]).tolist()
    offsets = [0, *ends[:-1]]
    os.ftruncate(memory, ends[-1])
    mapped = mmap.mmap(memory, ends[-1])
    return [np.ndarray(shape, dtype, mapped, offset) for (shape, dtype), offset in zip(shapes, offsets, strict=True)]


def unnamed_memory() -> int:
    """The file descriptor of new memory. It has no name, so nothing is left when the run ends."""
    if sys.platform == "linux":
        return os.memfd_create("birl")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _milliseconds_until(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, 1000 * (deadline - time.monotonic()))
