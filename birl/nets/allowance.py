"""How large a network may be that a file describes: not much larger than the file.

Without it, a forged file of a few kB could ask for a network that fills the memory.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np

from birl.errors import require

ALLOWANCE = "BIRL_MOST_NUMBERS"  # the environment variable that replaces FREE
FREE = 1 << 22  # numbers that every file may ask for, about 16 MB
COPIES = 8  # of each number in a file: critics are as large as the actor, and not in its file
# An array, a part of a space and a component of a MultiDiscrete count as at least so many numbers:
# compiling them takes time.
PART, COMPONENT = 10_000, 1_000
_left: ContextVar[int | None] = ContextVar("left", default=None)  # None: no file asks


def allowed_numbers(tensors: Mapping[str, np.ndarray]) -> int:
    """How many numbers a file may ask for that holds these tensors."""
    given = os.environ.get(ALLOWANCE, str(FREE))
    require(given.isdecimal(), f"{ALLOWANCE} {given!r} must be a whole number, such as {10 * FREE}")
    return max(COPIES * sum(tensor.size for tensor in tensors.values()), int(given))


@contextmanager
def limited_by(tensors: Mapping[str, np.ndarray]) -> Iterator[None]:
    """Make a network for a file that holds these tensors; ConfigError if it is too large for it."""
    token = _left.set(allowed_numbers(tensors))
    try:
        yield
    finally:
        _left.reset(token)


def spend(numbers: int) -> None:
    """Count an array before it is allocated; ConfigError if a file asks for more than it may."""
    left = _left.get()
    if left is not None:
        require_allowed(numbers, left)
        _left.set(left - max(numbers, PART))


def require_allowed(numbers: int, most: int) -> None:
    """Raise ConfigError if a file asks for more numbers than it may."""
    counted = max(numbers, PART)
    wrong = f"it asks for {counted:,} numbers (each part counts as {PART:,} or more)"
    remedy = f"if you trust it, set the environment variable {ALLOWANCE} to a larger number"
    require(counted <= most, f"{wrong}, and a file of this size may ask for {most:,}; {remedy}")
