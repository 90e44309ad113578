"""SIGINT and SIGTERM: the first lets a run end well, the second ends it."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Interrupted(SystemExit):
    """A signal ended the run; the exit code is the shell's for that signal, 128 + its number."""


@contextmanager
def caught_signals() -> Iterator[list[int]]:
    """SIGINT and SIGTERM that have come: the first is noted, the second stops at once. Only in the main thread."""
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return

    def note(number: int, frame: Any) -> None:
        received.append(number)
        if len(received) > 1:
            raise Interrupted(128 + number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
