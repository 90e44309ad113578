"""A traced function as a list of operations, without the functions that it calls.

Acting in NumPy (`birl/accel`) and export (`birl/lab/exporting`) both take `act` apart here.
"""

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from jax.extend.core import Literal

from birl.types import Array


class WaitsFor(IntEnum):
    """The last input that must be known before a value can be computed."""

    POLICY = 0
    KEY = 1
    STEP = 2


class Value:
    """An argument, a constant, or the result of an operation."""

    def __init__(
        self, waits_for: WaitsFor, shape: tuple[int, ...], dtype: Any, constant: np.ndarray | None = None
    ) -> None:
        self.waits_for, self.shape, self.dtype, self.constant = waits_for, shape, dtype, constant


class Operation(NamedTuple):
    """One equation of the traced function."""

    equation: Any
    inputs: list[Value]
    outputs: list[Value]

    @property
    def waits_for(self) -> WaitsFor:
        return self.outputs[0].waits_for


# an equation and its inputs -> its outputs; None: the equation is inlined or appended as usual
Replace = Callable[[Any, list[Value]], list[Value] | None]


def inline(
    jaxpr: Any,
    constants: Sequence[Array],
    inputs: Sequence[Value],
    operations: list[Operation],
    replace: Replace | None = None,
) -> list[Value]:
    """Append the equations of a traced function and of the functions that it calls; its results."""
    known: dict[Any, Value] = dict(zip(jaxpr.invars, inputs, strict=True))
    known |= {
        variable: constant_value(array, variable.aval)
        for variable, array in zip(jaxpr.constvars, constants, strict=True)
    }

    def value_of(atom: Any) -> Value:
        return constant_value(atom.val, atom.aval) if isinstance(atom, Literal) else known[atom]

    for equation in jaxpr.eqns:
        values = [value_of(atom) for atom in equation.invars]
        outputs = None if replace is None else replace(equation, values)
        if outputs is None:
            inner = called_function(equation)
            if inner is None:
                waits_for = max((value.waits_for for value in values), default=WaitsFor.POLICY)
                outputs = [Value(waits_for, variable.aval.shape, variable.aval.dtype) for variable in equation.outvars]
                operations.append(Operation(equation, values, outputs))
            else:
                outputs = inline(inner.jaxpr, inner.consts, values, operations, replace)
        known |= dict(zip(equation.outvars, outputs, strict=True))
    return [value_of(atom) for atom in jaxpr.outvars]


def called_function(equation: Any) -> Any:
    """The traced function that an equation only calls; None for an operation."""
    return equation.params.get("jaxpr" if equation.primitive.name == "jit" else "call_jaxpr")


def constant_value(array: Any, aval: Any) -> Value:
    return Value(WaitsFor.POLICY, aval.shape, aval.dtype, np.asarray(array, aval.dtype))


def needed(operations: list[Operation], results: Sequence[Value]) -> list[Operation]:
    """The operations that the results depend on, in order."""
    wanted, kept = set(results), []
    for operation in reversed(operations):
        if wanted & set(operation.outputs):
            wanted |= set(operation.inputs)
            kept.append(operation)
    return kept[::-1]


def evaluate(operations: list[Operation], known: dict[Value, Array]) -> dict[Value, Array]:
    """The results of these operations, computed by JAX."""
    known = dict(known)
    for equation, inputs, outputs in operations:
        arrays = [known[value] if value.constant is None else value.constant for value in inputs]
        found = equation.primitive.bind(*arrays, **equation.params)
        known |= zip(outputs, found if equation.primitive.multiple_results else [found], strict=True)
    return known
