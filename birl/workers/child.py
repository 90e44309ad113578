"""Child processes: how a program is started, and how it ends with its parent. It imports no jax.

A child is not started by multiprocessing, which would run the user's script again in each of them
and import jax. It is in a process group of its own: ctrl-C reaches only the parent, and a kill also
ends what an environment has started.
"""

import fcntl
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

BOOT = (
    "import sys; lifeline, count, *rest = sys.argv[1:]; count = int(count); sys.path[:] = rest[count:]; "
    "from {module} import main; sys.exit(main(int(lifeline), rest[:count]))"
)


class Program:
    """A running child process."""

    def __init__(self, process: subprocess.Popen, lifeline: int) -> None:
        self._process = process
        self._lifeline = lifeline  # while this end of the pipe is open, the program runs

    @property
    def pid(self) -> int:
        return self._process.pid

    def code(self) -> int | None:
        """Its exit code, the negative number of the signal that ended it, or None while it runs."""
        code = self._process.poll()
        if code is not None and self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1
        return code

    def send(self, number: int) -> None:
        """Send it a signal."""
        self._process.send_signal(number)

    def wait(self, seconds: float) -> None:
        """Wait this long for it to exit."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)

    def kill(self) -> int:
        """Kill it and everything that it started, if it still runs; its exit code."""
        if self._process.returncode is None:
            with suppress(ProcessLookupError, PermissionError):  # macOS does not allow to signal a zombie
                os.killpg(self._process.pid, signal.SIGKILL)
        code = self._process.wait()
        self.code()
        return code


class SignalRelay:
    """Passes the signals that this process receives on to programs, each signal once."""

    def __init__(self, signals: Sequence[int]) -> None:
        self._signals = signals  # of this process; it grows at any moment
        self._passed_on = 0

    def pass_on(self, programs: Iterable[Program]) -> None:
        """Send the programs the signals that have come since the last call."""
        new = self._signals[self._passed_on :]
        self._passed_on += len(new)
        for program in programs:
            for number in new:
                program.send(number)


def start_program(
    module: str,
    words: Sequence[str],
    output: int | None,
    variables: Mapping[str, str],
    descriptors: Sequence[int] = (),
) -> Program:
    """Start a process that calls `main(lifeline, words)` of this module.

    It prints to the descriptor `output`; with None, to where this process prints. It inherits the
    other descriptors. The module first calls `connect_to_parent` or `end_with_parent`.
    """
    theirs, ours = os.pipe()
    arguments = [str(theirs), str(len(words)), *words, *map(str, sys.path)]
    try:
        process = subprocess.Popen(
            [sys.executable, "-c", BOOT.format(module=module), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=[theirs, *descriptors],
            process_group=0,
            env=os.environ | dict(variables),
        )
    except BaseException:
        os.close(ours)
        raise
    finally:
        os.close(theirs)
    return Program(process, ours)


def connect_to_parent(lifeline: int, words: Sequence[str]) -> tuple[Connection, Connection, int]:
    """Tie this process to its parent: (pipe of calls, pipe of answers, shared memory).

    The words are the file descriptors of these, as a Supervisor gives them.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _ignore)
    calls, answers, memory = map(int, words)
    for descriptor in (calls, answers, lifeline, memory):
        os.set_inheritable(descriptor, False)  # or a simulator that outlives this process would hide its death
    die_with_parent(lifeline)
    return Connection(calls, writable=False), Connection(answers, readable=False), memory


def die_with_parent(lifeline: int) -> None:
    """Have the kernel end this process with its parent, even if an environment hangs.

    PR_SET_PDEATHSIG would be too early: it acts when the thread that started this process ends.
    """
    if sys.platform != "linux":
        return  # elsewhere a child notices when it next waits for a call
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGIO})
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(lifeline, fcntl.F_SETFL, os.O_ASYNC)  # SIGIO ends this process once the parent's end is closed
    poller = select.poll()
    poller.register(lifeline, 0)
    if poller.poll(0):  # it was closed before
        sys.exit(1)


def end_with_parent(lifeline: int) -> None:
    """Have this process killed once its parent has ended, on every system; see die_with_parent."""
    os.set_inheritable(lifeline, False)
    die_with_parent(lifeline)
    if sys.platform != "linux":
        threading.Thread(target=_kill_at_end_of, args=(lifeline,), daemon=True).start()


def usable_cpus() -> int:
    """The number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def free_memory(root: Path = Path("/")) -> int | None:
    """Bytes of memory that are still free on Linux, within a container's limit; None elsewhere."""
    groups = root / "sys/fs/cgroup"
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
        free = [1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable")]
        free.append(_left_in_group(groups, "memory.max", "memory.current"))
        free.append(_left_in_group(groups / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"))  # version 1
        return min(free)
    except OSError:
        return None


def _left_in_group(group: Path, limit: str, used: str) -> int:
    """Bytes that a container's limit leaves; a very large number if it has none."""
    if not (group / limit).exists() or (most := (group / limit).read_text().strip()) == "max":
        return 2**63
    sizes = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    # Cached files count as used, but they are given up as soon as memory is needed.
    files = int(sizes["active_file"]) + int(sizes["inactive_file"])
    return int(most) - int((group / used).read_text()) + files


def describe_exit(code: int) -> str:
    """How a process ended, in words."""
    signals = {number.value: number.name for number in signal.Signals}
    return f"exited with code {code}" if code >= 0 else f"was ended by {signals.get(-code, f'signal {-code}')}"


def _kill_at_end_of(lifeline: int) -> None:
    while os.read(lifeline, 1):
        pass
    os.kill(os.getpid(), signal.SIGKILL)


def _ignore(number: int, frame: Any) -> None:
    """A handler in place of SIG_IGN, which a simulator started by an environment would inherit."""
