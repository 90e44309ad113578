"""Random keys for separate purposes, which never collide."""

from typing import Literal, get_args

import jax
import numpy as np
from jaxtyping import Array, UInt32

Key = UInt32[Array, "2"] | UInt32[np.ndarray, "2"]
Purpose = Literal["next", "steps", "learning", "exploration", "others", "replay", "sequences"]

FIRST_STREAM = 2**31  # no split gives this many keys


def stream(key: Key, purpose: Purpose) -> UInt32[Array, "2"]:
    """A key for one purpose, different from every key that a split of `key` gives.

    In JAX, fold_in(key, i) equals split(key, n)[i], so purposes are numbered from 2³¹. If you use a
    key for its streams, neither draw from it nor split it.
    """
    return jax.random.fold_in(key, np.uint32(FIRST_STREAM + get_args(Purpose).index(purpose)))


def numbered(key: Key, number: int) -> np.ndarray:
    """The key for user `number` of a shared `key`; number 0 gets a copy of the key itself."""
    return np.array(key if number == 0 else jax.random.fold_in(stream(key, "others"), np.uint32(number)))


def step_keys(key: Array, length: int) -> Array:
    """A random key for each step of a rollout."""
    return jax.random.split(stream(key, "steps"), length)
