"""SIGINT, SIGTERM and SIGHUP: the first lets a run end well, the second ends it."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

STOPS = ("SIGINT", "SIGTERM", "SIGHUP")  # Windows has no SIGHUP


class Interrupted(SystemExit):
    """A signal ended the run; the exit code is the shell's for that signal, 128 + its number."""


class SecondSignal(BaseException):
    """What the second signal raises, wherever the program is: not SystemExit, for which an
    environment would be blamed.
    """


@contextmanager
def caught_signals() -> Iterator[list[int]]:
    """Signals that have come: the first is noted, the second stops at once. Only in the main
    thread.
    """
    received: list[int] = []

    def note(number: int, frame: Any) -> None:
        received.append(number)
        if len(received) > 1:
            raise SecondSignal(number)

    with _handled(note):
        try:
            yield received
        except SecondSignal as again:
            raise Interrupted(128 + again.args[0]) from None


@contextmanager
def starting() -> Iterator[None]:
    """While heavy modules are imported a signal ends the process: there is nothing to save or to
    tidy up yet.

    An exception would be raised inside somebody's C code, where it is lost, or taken for a module
    that is missing.
    """

    def leave(number: int, frame: Any) -> None:
        with suppress(OSError):
            os.write(2, b"birl: interrupted\n")
        os._exit(128 + number)

    with _handled(leave):
        yield


@contextmanager
def _handled(handler: Callable[[int, Any], None]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [number for number in signal.Signals if number.name in STOPS]
    # nohup: the run shall outlive its terminal.
    numbers = [number for number in numbers if number.name != "SIGHUP" or signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)
