"""What every child process does first, and how it reports an error. It imports no jax."""

import fcntl
import os
import select
import signal
import sys
import threading
import traceback
from multiprocessing.connection import Connection
from typing import Any

from birl.config import ConfigError
from birl.errors import EnvError, NonFiniteError
from birl.workers.faults import Failure


def connect_to_parent(calls: int, answers: int, lifeline: int, memory: int) -> tuple[Connection, Connection]:
    """Tie this process to its parent; (where calls come from, where answers go).

    The arguments are file descriptors.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _ignore)
    for descriptor in (calls, answers, lifeline, memory):
        os.set_inheritable(descriptor, False)  # or a simulator that outlives this process would hide its death
    die_with_parent(lifeline)
    return Connection(calls, writable=False), Connection(answers, readable=False)


def as_failure(error: BaseException) -> Failure:
    """An error as a Failure to send to the parent. Call it in the `except` block of that error."""
    plain = isinstance(error, ConfigError | EnvError | RuntimeError)  # the message says enough without the type
    reason = str(error) if plain else f"{type(error).__name__}: {error}"
    kinds = (isinstance(error, kind) for kind in (ConfigError, NonFiniteError, EnvError))
    return Failure(reason, traceback.format_exc(), *kinds)


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


def _kill_at_end_of(lifeline: int) -> None:
    while os.read(lifeline, 1):
        pass
    os.kill(os.getpid(), signal.SIGKILL)


def _ignore(number: int, frame: Any) -> None:
    """A handler in place of SIG_IGN, which a simulator started by an environment would inherit."""
