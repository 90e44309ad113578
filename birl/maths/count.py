"""Step counts of 64 bits, for runs of more than 2³¹ steps: JAX's integers have only 32."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Number = Any  # a scalar of Python, NumPy or JAX
WRAP_AT = 2**30  # `increment_wrapped` wraps to 0 here, or just below


@partial(jax.tree_util.register_dataclass, data_fields=["words"], meta_fields=[])
@dataclass(frozen=True, eq=False)
class Count:
    """A 64-bit count, stored as two 32-bit words.

    Inside jit: `count + more`, `count / total`, `count < limit`. Outside: `int(count)`.
    """

    words: Any  # [2] uint32: the high word and the low word; typed Any, for jax.tree.map may put anything here

    def __add__(self, more: Number) -> "Count":
        """The count plus `more`, which is at most 2³¹."""
        low = self.words[1] + jnp.asarray(more).astype(jnp.uint32)
        return Count(jnp.stack([self.words[0] + (low < self.words[1]), low]))  # a smaller low word has overflowed

    def __truediv__(self, total: "float | Count") -> Number:
        """The fraction count / total, in float32."""
        return self._rounded() / (total._rounded() if isinstance(total, Count) else np.float32(total))

    def __lt__(self, limit: "int | Count") -> Number:
        return self.is_below(limit if isinstance(limit, Count) else count_of(limit))

    def is_below(self, other: "Count") -> Number:
        """Whether the count is less than another one, which may be traced."""
        high, low = other.words
        return (self.words[0] < high) | ((self.words[0] == high) & (self.words[1] < low))

    def _rounded(self) -> Number:
        """The count in float32."""
        high, low = self.words.astype(np.float32)
        return high * np.float32(2**32) + low

    def __int__(self) -> int:
        high, low = np.asarray(self.words).tolist()
        return high << 32 | low

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """The count as one 64-bit integer, the form that checkpoints store."""
        return np.array(int(self), np.int64 if dtype is None else dtype)

    def __repr__(self) -> str:
        return f"Count({int(self)})" if not isinstance(self.words, jax.core.Tracer) else "Count(...)"


def count_of(number: int) -> Count:
    """The number as a Count."""
    return Count(np.array(divmod(number, 2**32), np.uint32))


def increment_wrapped(number: Number, period: int = 1) -> Number:
    """number + 1, wrapped to 0 before 32 bits overflow.

    It wraps at a multiple of `period`, so number % period still counts up by 1 each time.
    """
    return (number + 1) % (WRAP_AT // period * period or period)
