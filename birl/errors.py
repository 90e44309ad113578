"""What can go wrong that a person can mend. The message says what was wrong, with the value, and
what to do.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager

TERMINAL_CODES = re.compile(r"\x1b\[[0-9;]*m")


class CheckpointError(RuntimeError):
    """A checkpoint or another file of a run is damaged, missing, or does not fit."""


class RunDirectoryError(RuntimeError):
    """The directory of a run was removed, moved or replaced while the run was writing there."""


class NonFiniteError(RuntimeError):
    """A NaN or infinity where a number belongs; training on it would destroy the network without a
    word.
    """


class EnvError(ValueError):
    """An environment returned what its spaces or Gymnasium's rules do not allow; starting it again
    is of no use.
    """


class InexactResume(UserWarning):
    """A resumed run goes on otherwise than it would have: in new episodes, or from what could not
    be restored to the bit.
    """


@contextmanager
def snapshot_errors() -> Iterator[None]:
    """CheckpointError where a snapshot does not hold what is asked of it: it is another task's, or
    not Birl's.
    """
    try:
        yield
    except EnvError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as problem:
        raise CheckpointError(
            f"the checkpoint's snapshot of environments and counters does not fit: {problem!r}"
        ) from problem


def plain_warning(message: Warning | str) -> str:
    """A warning's text without the colours and the mark that Gymnasium gives to its own."""
    return TERMINAL_CODES.sub("", str(message)).removeprefix("WARN: ")
