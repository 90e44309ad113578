"""A worker process seen from outside: how it is started, given orders, waited for and ended.

Two pipes carry the orders and the answers, one byte for a step: waking two workers and hearing from
both took 22 µs, by sockets 34, by multiprocessing's messages 87. It is no child of multiprocessing,
which would run the user's script again in it, jax and all.
"""

import mmap
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from types import MappingProxyType
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from birl.config import EnvConfig
from birl.envs.observations import Arrays, ObservationLayout
from birl.envs.spaces import action_dtype, action_shape, mask_width

STEP, CALL = b"s", b"c"  # an order; after a call come its name and argument
STEPPED, VALUE, ERROR = b"k", b"v", b"e"  # an answer; after a value or an error comes what it is
BOOT = "import sys; sys.path[:] = sys.argv[5:]; from {module} import main; main(*map(int, sys.argv[1:5]))"
PATIENCE = 1.0  # seconds to close its environments before a worker is killed
SPIN_SECONDS = 0.002  # seconds: many steps take less, and an update, which workers sleep through, takes more
ALIGNMENT = 64  # bytes: a cache line


class Task(NamedTuple):
    """What a worker that steps environments is told first."""

    config: EnvConfig
    share: slice  # where its environments are among those of the config


class Failure(NamedTuple):
    """Why a worker did not answer as it should."""

    reason: str
    traceback: str = ""
    configuration: bool = False  # the user's settings are wrong: starting again is of no use
    not_finite: bool = False  # a NaN or infinity came up: nor is it then
    invalid: bool = False  # an environment returned what it must not: nor is it then


@dataclass(frozen=True)
class SharedArrays:
    """Actions in, what became of them out: arrays in memory that this process and its workers
    see.
    """

    actions: np.ndarray  # [B, ...]
    rewards: np.ndarray  # [B]
    flags: np.ndarray  # [4, B] terminated, truncated, valid, game over: one array is copied sooner than four
    masks: np.ndarray  # [B, A]; nothing in it if actions cannot be masked
    observations: Arrays  # [B, ...]

    def part(self, share: slice) -> "SharedArrays":
        """The same memory, only some of the environments."""
        observations = {name: array[share] for name, array in self.observations.items()}
        return SharedArrays(
            self.actions[share], self.rewards[share], self.flags[:, share], self.masks[share], observations
        )


class WorkerProcess:
    """One running worker. Orders to a dead one are lost without a word: the wait for its answer
    tells.
    """

    def __init__(self, process: subprocess.Popen, orders: Connection, answers: Connection, lifeline: int) -> None:
        self.process, self.lifeline = process, lifeline
        self._orders, self._answers = orders, answers
        self.order_descriptor, self.answer_descriptor = orders.fileno(), answers.fileno()

    def step(self) -> None:
        with suppress(BrokenPipeError):
            os.write(self.order_descriptor, STEP)

    def call(self, name: str, argument: Any = None) -> None:
        with suppress(BrokenPipeError):
            os.write(self.order_descriptor, CALL)
            self._orders.send((name, argument))

    def receive(self) -> Any:
        """Its answer, or a Failure. Waits until there is one."""
        try:
            kind = os.read(self.answer_descriptor, 1)
            if kind == STEPPED:
                return None
            if kind:
                value = self._answers.recv()
                return value if kind == VALUE else Failure(*value)
        except (EOFError, ConnectionError):
            pass
        code = self.kill()
        signals = {number.value: number.name for number in signal.Signals}
        cause = f"exited with code {code}" if code >= 0 else f"was ended by {signals.get(-code, f'signal {-code}')}"
        return Failure(f"its process {cause}")

    def stop_orders(self) -> None:
        """Tell it to close its environments and exit."""
        self._orders.close()

    def wait(self, seconds: float) -> None:
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)

    def kill(self) -> int:
        """End it, with whatever it started, if it still runs; how it ended."""
        if self.process.returncode is None:
            with suppress(ProcessLookupError, PermissionError):  # macOS forbids to signal a zombie
                os.killpg(self.process.pid, signal.SIGKILL)
        code = self.process.wait()
        if self.lifeline >= 0:
            os.close(self.lifeline)
            self.lifeline = -1
        return code

    def release(self) -> None:
        """Kill it and close the pipes."""
        self.kill()
        self._orders.close()
        self._answers.close()


def start_worker(
    task: Any, memory: int, module: str = "birl.workers.main", variables: Mapping[str, str] = MappingProxyType({})
) -> WorkerProcess:
    """A new process that runs this module's `main`, with these environment variables; its first
    order is to start this task.
    """
    their_orders, our_orders = os.pipe()
    our_answers, their_answers = os.pipe()
    their_lifeline, our_lifeline = os.pipe()
    theirs = (their_orders, their_answers, their_lifeline, memory)
    # A process group of its own: ctrl-C reaches only the parent, and a kill reaches what an
    # environment may have started.
    command = [sys.executable, "-c", BOOT.format(module=module), *map(str, theirs), *map(str, sys.path)]
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, pass_fds=theirs, process_group=0, env=os.environ | dict(variables)
    )
    for descriptor in theirs[:3]:
        os.close(descriptor)
    worker = WorkerProcess(
        process, Connection(our_orders, readable=False), Connection(our_answers, writable=False), our_lifeline
    )
    worker.call("start", task)
    return worker


def arrivals(workers: Sequence[WorkerProcess], seconds: float | None) -> Iterator[tuple[int, Any]]:
    """(which of them, its answer) as they come in; a Failure for who raised, died or took longer
    than this.
    """
    waiting = {worker.answer_descriptor: index for index, worker in enumerate(workers)}
    poller = select.poll()
    for descriptor in waiting:
        poller.register(descriptor, select.POLLIN)
    deadline = None if seconds is None else time.monotonic() + seconds
    while waiting:
        ready = poller.poll(None if deadline is None else max(0.0, 1000 * (deadline - time.monotonic())))
        if not ready:
            break
        for descriptor, _ in ready:
            poller.unregister(descriptor)
            index = waiting.pop(descriptor)
            yield index, workers[index].receive()
    for index in waiting.values():
        yield index, Failure(f"no answer within {seconds} seconds")


def wait_for(poller: select.poll, deadline: float | None) -> list[tuple[int, int]]:
    """The descriptors that are ready; [] if none is by the deadline. Looks for a while before it
    sleeps.

    A core that falls asleep takes long to wake, on a virtual machine above all: two workers with
    four LunarLanders each lost a third of their time to it. Who looks in vain gives way to whoever
    wants the core.
    """
    spin_until = time.monotonic() + SPIN_SECONDS
    while time.monotonic() < spin_until:
        if ready := poller.poll(0):
            return ready
        os.sched_yield()
    return poller.poll(None if deadline is None else max(0.0, 1000 * (deadline - time.monotonic())))


def answers_of(workers: Sequence[WorkerProcess], seconds: float | None) -> list[Any]:
    """The same in the workers' order, once all are in."""
    answers = dict(arrivals(workers, seconds))
    return [answers[index] for index in range(len(workers))]


def end_workers(workers: Sequence[WorkerProcess], memory: int, owner: int) -> None:
    """Nothing is left of them afterwards. A forked copy of the owner, which runs this too when it
    exits, leaves them alone.
    """
    if os.getpid() != owner:
        return
    try:
        for worker in workers:
            worker.stop_orders()
        deadline = time.monotonic() + PATIENCE
        for worker in workers:
            worker.wait(max(0.0, deadline - time.monotonic()))
    finally:
        for worker in workers:
            worker.release()
        os.close(memory)


def unnamed_memory() -> int:
    """A descriptor of memory to share. It has no name, so that nothing remains of it however the
    run ends.
    """
    if sys.platform == "linux":
        return os.memfd_create("birl")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def arrays_in(memory: int, kinds: Sequence[tuple[tuple[int, ...], Any]]) -> list[np.ndarray]:
    """Arrays of these shapes and types in this memory, which is given their size: the same for
    every process.
    """
    sizes = [int(np.prod(shape)) * np.dtype(dtype).itemsize for shape, dtype in kinds]
    ends = np.cumsum([-(-size // ALIGNMENT) * ALIGNMENT for size in sizes]).tolist()
    os.ftruncate(memory, ends[-1])
    mapped = mmap.mmap(memory, ends[-1])
    return [
        np.ndarray(shape, dtype, mapped, offset) for (shape, dtype), offset in zip(kinds, [0, *ends[:-1]], strict=True)
    ]


def map_arrays(memory: int, layout: ObservationLayout, action_space: gym.Space, num_envs: int) -> SharedArrays:
    """What environments and their workers share, in this memory."""
    B = num_envs
    kinds: list[tuple[tuple[int, ...], Any]] = [((B, *action_shape(action_space)), action_dtype(action_space))]
    kinds += [((B,), np.float32), ((4, B), bool), ((B, mask_width(action_space) or 0), bool)]
    kinds += [((B, *(leaf.shape or ())), leaf.dtype) for leaf in layout.leaves.values()]
    arrays = arrays_in(memory, kinds)
    actions, rewards, flags, masks, *observations = arrays
    return SharedArrays(actions, rewards, flags, masks, dict(zip(layout.leaves, observations, strict=True)))
