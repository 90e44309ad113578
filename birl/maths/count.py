"""Numbers of steps that outgrow 32 bits, which is all that JAX's integers have: a run may be longer
than 2³¹ steps.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Number = Any  # a scalar of Python's, NumPy's or JAX's
TURNS = 2**30  # where `next_turn` begins anew, or a little before


@partial(jax.tree_util.register_dataclass, data_fields=["words"], meta_fields=[])
@dataclass(frozen=True, eq=False)
class Count:
    """A count in two words. Inside jit: `count + more`, `count / total`, `count < limit`; outside:
    int(count).
    """

    words: Any  # [2] uint32, the high one and the low one; of JAX or NumPy, or whatever a function makes of them in jax.tree.map

    def __add__(self, more: Number) -> "Count":
        """So many more, at most 2³¹."""
        low = self.words[1] + jnp.asarray(more).astype(jnp.uint32)
        return Count(jnp.stack([self.words[0] + (low < self.words[1]), low]))  # smaller than before: it went round

    def __truediv__(self, total: float) -> Number:
        """The share of a total, to float32's precision."""
        high, low = self.words.astype(np.float32)
        return (high * np.float32(2**32) + low) / np.float32(total)

    def __lt__(self, limit: int) -> Number:
        high, low = divmod(limit, 2**32)
        return (self.words[0] < np.uint32(high)) | (
            (self.words[0] == np.uint32(high)) & (self.words[1] < np.uint32(low))
        )

    def __int__(self) -> int:
        high, low = np.asarray(self.words).tolist()
        return high << 32 | low

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """As one 64-bit integer: what a checkpoint holds."""
        return np.array(int(self), np.int64 if dtype is None else dtype)

    def __repr__(self) -> str:
        return f"Count({int(self)})" if not isinstance(self.words, jax.core.Tracer) else "Count(...)"


def count_of(number: int) -> Count:
    """This number as a Count."""
    return Count(np.array(divmod(number, 2**32), np.uint32))


def next_turn(turn: Number, period: int = 1) -> Number:
    """turn + 1, begun anew at a multiple of `period` before 32 bits are full: what happens each
    `period` turns goes on as before.
    """
    return (turn + 1) % (TURNS // period * period or period)
