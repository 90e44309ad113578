"""Standard streams that are closed, or whose reader has gone: they must not end a run."""

import os
import select
import sys
from typing import TextIO


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
    """Whether the stream's reader has gone, as `head` does."""
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
