"""Signals and standard streams of a process.

The first SIGINT, SIGTERM or SIGHUP lets a run save and end, the next ends it at once. A stream that
is closed, or whose reader has gone, must not end a run.
"""

import gc
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO

FIRST = "ending after this update, with a checkpoint; once more ends at once, even while a step hangs"
STOPS = ("SIGINT", "SIGTERM", "SIGHUP")  # Windows has no SIGHUP


class Interrupted(SystemExit):
    """A signal ended the run; the exit code is 128 plus its number, as in a shell."""


class SecondSignal(BaseException):
    """Raised by the second signal. Not a SystemExit: that would look like the environment's."""


@contextmanager
def caught_signals() -> Iterator[list[int]]:
    """The signals received so far: the first is only added, the second ends the program.

    So does a third one, without leaving any block: the second was an exception.

    Outside the main thread signals cannot be caught, and the list stays empty.
    """
    received: list[int] = []

    def note(number: int, frame: Any) -> None:
        received.append(number)
        if len(received) > 2:
            os._exit(128 + number)  # the second one was lost in code that catches everything
        if len(received) > 1:
            raise SecondSignal(number)
        with suppress(OSError):  # os.write: a signal may come while something is printed
            os.write(2, f"\nbirl: {signal.Signals(number).name}: {FIRST}\n".encode())

    with _handled(note):
        try:
            yield received
        except SecondSignal as again:
            raise Interrupted(128 + again.args[0]) from None


@contextmanager
def starting() -> Iterator[None]:
    """While heavy modules are imported, let a signal end the process: there is nothing to save yet.

    An exception could be lost in a package's C code, or be taken for a missing module. What was
    imported stays, so the garbage collector need not look at it again: a full collection of JAX's
    modules takes 85 ms.
    """

    def leave(number: int, frame: Any) -> None:
        with suppress(OSError):
            os.write(2, b"birl: interrupted\n")
        os._exit(128 + number)

    collects = gc.isenabled()
    gc.disable()
    try:
        with _handled(leave):
            yield
        gc.freeze()
    finally:
        if collects:
            gc.enable()


def may_save_after(error: BaseException) -> bool:
    """True if a run is saved after this error in the body of a loop: not after a signal."""
    return isinstance(error, Exception | SystemExit) and not isinstance(error, Interrupted)


def open_closed_streams() -> None:
    """Open closed standard streams (`>&-`) on /dev/null.

    Otherwise the next file that is opened would get the stream's number, and its output.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            os.dup2(opened, number)
            if opened != number:
                os.close(opened)
    sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115


def is_abandoned(stream: TextIO) -> bool:
    """True if the stream's reader has gone, as `head` does."""
    try:
        poller = select.poll()
        poller.register(stream.fileno(), 0)
        return bool(poller.poll(0))
    except OSError:  # the stream is not a file
        return False


def say(text: str) -> None:
    """Print a line. If its reader has gone, it goes nowhere, and the work goes on."""
    try:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
    except BrokenPipeError:
        silence(sys.stdout)


def silence(stream: TextIO) -> None:
    """Send everything that is written to this stream from now on to /dev/null."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)


@contextmanager
def _handled(handler: Callable[[int, Any], None]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [number for number in signal.Signals if number.name in STOPS]
    # nohup ignores SIGHUP: then the run is to outlive its terminal.
    numbers = [number for number in numbers if number.name != "SIGHUP" or signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)
