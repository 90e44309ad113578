"""Standard output and error that are closed, or that nobody reads any more: they must not end a
run.
"""

import os
import select
import sys
from typing import TextIO


def open_closed_streams() -> None:
    """Have what is written to a closed standard stream (`>&-`) go nowhere. Else the next file that
    is opened would take its number.
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
    """Whether whoever read it left, as `head` does."""
    try:
        poller = select.poll()
        poller.register(stream.fileno(), 0)
        return bool(poller.poll(0))
    except OSError:  # no file at all
        return False


def silence(stream: TextIO) -> None:
    """Have everything that is written to this file from now on go nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
