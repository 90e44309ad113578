"""Child processes that run a program to its end. They end with their parent, as workers do."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

BOOT = (
    "import sys; lifeline, count, *rest = sys.argv[1:]; count = int(count); sys.path[:] = rest[count:]; "
    "from {module} import main; sys.exit(main(int(lifeline), rest[:count]))"
)


class Program:
    """A running program. It is in a process group of its own, so ctrl-C reaches only its parent."""

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

    def kill(self) -> None:
        """Kill it and everything that it started, if it still runs."""
        if self._process.poll() is None:
            with suppress(ProcessLookupError, PermissionError):  # macOS does not allow to signal a zombie
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self.code()


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


def start_program(module: str, words: Sequence[str], output: int, variables: Mapping[str, str]) -> Program:
    """Start a process that calls `main(lifeline, words)` of this module.

    What it prints goes to the descriptor `output`. The module calls `child.die_with_parent` first.
    """
    theirs, ours = os.pipe()
    arguments = [str(theirs), str(len(words)), *words, *map(str, sys.path)]
    try:
        process = subprocess.Popen(
            [sys.executable, "-c", BOOT.format(module=module), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=[theirs],
            process_group=0,
            env=os.environ | dict(variables),
        )
    except BaseException:
        os.close(ours)
        raise
    finally:
        os.close(theirs)
    return Program(process, ours)


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
