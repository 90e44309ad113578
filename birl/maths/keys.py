"""Random keys for several purposes, of which none can meet another."""

from typing import Literal, get_args

import jax
import numpy as np
from jaxtyping import Array, UInt32

Key = UInt32[Array, "2"] | UInt32[np.ndarray, "2"]
Purpose = Literal["next", "steps", "learning", "exploration", "others"]

BEYOND = 2**31  # more keys than any split gives


def stream(key: Key, purpose: Purpose) -> UInt32[Array, "2"]:
    """A key for one purpose, which no split of `key` gives.

    To JAX, fold_in(key, i) is split(key, n)[i]: so purposes are numbered from where no split comes
    to. A key whose streams are used is used for nothing else: neither drawn from nor split.
    """
    return jax.random.fold_in(key, np.uint32(BEYOND + get_args(Purpose).index(purpose)))


def numbered(key: Key, number: int) -> np.ndarray:
    """The key of one of several who were given the same: the first has a copy of the key itself."""
    return np.array(key if number == 0 else jax.random.fold_in(stream(key, "others"), np.uint32(number)))
