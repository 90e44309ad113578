"""Errors and warnings that a user can act on.

Each message says what was wrong, with the value, and what to do.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

LONGEST_VALUE = 200  # characters of a value in a message
TERMINAL_CODES = re.compile(r"\x1b\[[0-9;]*m")

_is_command: ContextVar[bool] = ContextVar("is_command", default=False)


class ConfigError(ValueError):
    """A setting cannot work; the message names the field, the value and what to use instead."""


class CheckpointError(RuntimeError):
    """A checkpoint or another file of a run is damaged, missing, or does not fit."""


class UnreadableError(CheckpointError):
    """A checkpoint that may be intact but cannot be read now.

    Another version of Birl wrote it, or the disk or the memory refused to read it.
    """


class RunDirectoryError(RuntimeError):
    """The directory of a run was removed, moved or replaced while the run was writing to it."""


class NonFiniteError(RuntimeError):
    """A NaN or infinity where a finite number is needed; training on it would ruin the network."""


class EnvError(ValueError):
    """An environment broke its spaces or Gymnasium's rules; restarting it would not help."""


class InexactResume(UserWarning):
    """A resumed run differs from the uninterrupted one: some environments start new episodes."""


def install_extra(extra: str) -> str:
    """How to install an extra. Birl is not on PyPI yet, so that is done in a clone."""
    return f"pip install '.[{extra}]' in a clone of Birl"


def cut(value: object) -> str:
    """A value for a message: its repr in one line, cut if it is long."""
    text = " ".join(repr(value).split())
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}..."


def printable(text: str) -> str:
    """The text without codes for the terminal: what is in a run's files may be a stranger's."""
    return "".join(character if character.isprintable() else "?" for character in text)


def printable_lines(text: str) -> str:
    """The text without codes for the terminal, in its lines."""
    return "\n".join(map(printable, text.split("\n")))


@contextmanager
def on_command_line() -> Iterator[None]:
    """Within it, messages name what the command line has."""
    before = _is_command.set(True)
    try:
        yield
    finally:
        _is_command.reset(before)


def by_use(python: str, command: str) -> str:
    """A remedy by its name in Python or on the command line, whichever is used."""
    return command if _is_command.get() else python


def require(condition: bool, message: str) -> None:
    """Raise ConfigError with this message unless the condition holds."""
    if not condition:
        raise ConfigError(message)


@contextmanager
def snapshot_errors() -> Iterator[None]:
    """Raise CheckpointError if a snapshot lacks a value that is read from it, or has a bad one."""
    try:
        yield
    except EnvError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as problem:
        raise CheckpointError(f"the checkpoint's snapshot does not fit this run: {problem!r}") from problem


def plain_warning(message: Warning | str) -> str:
    """The text of a warning, without the colours and the prefix that Gymnasium adds."""
    return TERMINAL_CODES.sub("", str(message)).removeprefix("WARN: ")
