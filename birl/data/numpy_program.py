"""A traced function's operations as calls of NumPy."""

import operator
from collections.abc import Callable
from enum import IntEnum
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from birl.types import Array


class WaitsFor(IntEnum):
    """The last thing that must be there before a value can be computed."""

    POLICY = 0
    KEY = 1
    STEP = 2


class Value:
    """An argument, a constant, or the result of an operation."""

    def __init__(self, waits_for: WaitsFor, shape: tuple[int, ...], constant: Array | None = None) -> None:
        self.waits_for, self.shape, self.constant = waits_for, shape, constant


class Operation(NamedTuple):
    """One equation of the traced function."""

    equation: Any
    inputs: list[Value]
    outputs: list[Value]

    @property
    def waits_for(self) -> WaitsFor:
        return self.outputs[0].waits_for


# JAX's primitives in NumPy. Those of the first table work element by element; the second's need to know the equation's parameters.
ELEMENTWISE: dict[str, Callable[..., Array]] = {
    "abs": np.abs,
    "add": operator.add,
    "and": operator.and_,
    "cos": np.cos,
    "div": operator.truediv,
    "eq": operator.eq,
    "exp": np.exp,
    "expm1": np.expm1,
    "ge": operator.ge,
    "gt": operator.gt,
    "le": operator.le,
    "log": np.log,
    "log1p": np.log1p,
    "logistic": lambda x: 0.5 * np.tanh(0.5 * x) + 0.5,
    "lt": operator.lt,
    "max": np.maximum,
    "min": np.minimum,
    "mul": operator.mul,
    "ne": operator.ne,
    "neg": operator.neg,
    "not": operator.invert,
    "or": operator.or_,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "select_n": lambda which, first, second: np.where(which, second, first),
    "sign": np.sign,
    "sqrt": np.sqrt,
    "square": np.square,
    "sub": operator.sub,
    "tanh": np.tanh,
}
OTHERS: dict[str, Callable[[Any], Callable[..., Array]]] = {
    "argmax": lambda p: lambda x: x.argmax(p.axes[0]).astype(p.dtype),
    "broadcast_in_dim": lambda p: lambda x: np.broadcast_to(x.reshape(p.placed), p.shape),
    "concatenate": lambda p: lambda *arrays: np.concatenate(arrays, p.dimension),
    "convert_element_type": lambda p: lambda x: x.astype(p.dtype),
    "dot_general": lambda p: np.matmul,
    "integer_pow": lambda p: lambda x: x**p.y,
    "reduce_and": lambda p: lambda x: np.logical_and.reduce(x, p.axes),
    "reduce_max": lambda p: lambda x: np.maximum.reduce(x, p.axes),
    "reduce_min": lambda p: lambda x: np.minimum.reduce(x, p.axes),
    "reduce_or": lambda p: lambda x: np.logical_or.reduce(x, p.axes),
    "reduce_sum": lambda p: lambda x: np.add.reduce(x, p.axes, p.dtype),
    "slice": lambda p: lambda x: x[p.window],
    "stack": lambda p: lambda *arrays: np.stack(arrays, p.axis),
    "transpose": lambda p: lambda x: x.transpose(p.permutation),
}


class Program:
    """NumPy functions to call one after another. What is only reshaped keeps its shape until somebody needs the other one."""

    def __init__(self, inputs: list[Value]) -> None:
        self.calls: list[tuple[Callable[..., Array], tuple[int, ...]]] = []  # a function, and the places of its arguments
        self.size = len(inputs)  # places: the inputs come first, then what each call gives
        self.places = {value: place for place, value in enumerate(inputs)}
        self.shapes = {value: value.shape for value in inputs}  # to be seen by whoever uses the value
        self.held = dict(self.shapes)  # of the array at its place

    def reshape(self, output: Value, value: Value, shape: tuple[int, ...]) -> None:
        self.places[output], self.held[output], self.shapes[output] = self.places[value], self.held[value], shape

    def call(self, function: Callable[..., Array], inputs: list[Value], output: Value, elementwise: bool) -> None:
        same = {(self.held[value], self.shapes[value]) for value in inputs if value.shape != ()}
        as_held = elementwise and len(same) == 1  # all are reshaped in the same way, and so is what comes of them
        self.calls.append((function, tuple(self.places[value] if as_held else self.place_of(value) for value in inputs)))
        self.places[output], self.size = self.size, self.size + 1
        self.held[output], self.shapes[output] = same.pop() if as_held else (output.shape, output.shape)

    def place_of(self, value: Value) -> int:
        """Where it is in the shape that it should have."""
        if self.held[value] != self.shapes[value]:
            self.calls.append((operator.methodcaller("reshape", self.shapes[value]), (self.places[value],)))
            self.places[value], self.size, self.held[value] = self.size, self.size + 1, self.shapes[value]
        return self.places[value]

    def function(self, results: list[Value]) -> Callable[..., list[Array]]:
        """Inputs to results."""
        wanted, calls = [self.place_of(value) for value in results], self.calls

        def step(*arrays: Array) -> list[Array]:
            values = list(arrays)
            for function, taken in calls:
                match taken:  # unpacking any number of them would double this loop's own time
                    case (one,):
                        values.append(function(values[one]))
                    case (one, two):
                        values.append(function(values[one], values[two]))
                    case _:
                        values.append(function(*[values[place] for place in taken]))
            return [values[place] for place in wanted]

        return step


def numpy_program(inputs: list[Value], operations: list[Operation], results: list[Value]) -> Callable[..., list[Array]] | None:
    """A function of the inputs that gives the results; None if an operation is in neither table."""
    users: dict[Value, list[Operation | None]] = {value: [None] for value in results}  # None: whoever takes the results
    for operation in operations:
        for value in operation.inputs:
            users.setdefault(value, []).append(operation)
    spread = {op.outputs[0] for op in operations if op.equation.primitive.name == "broadcast_in_dim"}
    program = Program(inputs)
    for operation in operations:
        name, values, output = operation.equation.primitive.name, operation.inputs, operation.outputs[0]
        if name == "broadcast_in_dim":
            placed = _placed(operation)
            if placed == output.shape or all(_brings(user, output.shape, spread) for user in users[output]):
                program.reshape(output, values[0], placed)  # where it meets an array of the whole shape, NumPy does the rest
                continue
        if name in ("reshape", "squeeze", "stop_gradient", "copy"):
            program.reshape(output, values[0], output.shape)
            continue
        functions = _in_numpy(operation)
        if functions is None:
            return None
        for function, output in zip(functions, operation.outputs, strict=True):
            program.call(function, values, output, name in ELEMENTWISE)
    return program.function(results)


def _in_numpy(operation: Operation) -> list[Callable[..., Array]] | None:
    """A function of the operation's inputs for each of its outputs; None if there is none in NumPy."""
    name, shapes = operation.equation.primitive.name, [value.shape for value in operation.inputs]
    known = {"shape": operation.outputs[0].shape, "dtype": np.dtype(operation.equation.outvars[0].aval.dtype)}
    params = SimpleNamespace(**operation.equation.params | known)
    if name == "split":
        bounds = pairwise([0, *np.cumsum(params.sizes).tolist()])
        return [operator.itemgetter((slice(None),) * params.axis + (slice(*bound),)) for bound in bounds]
    if (name == "dot_general" and not _is_matrix_product(params.dimension_numbers, shapes)) or (name == "slice" and params.strides):
        return None
    if name == "slice":
        params.window = tuple(map(slice, params.start_indices, params.limit_indices))
    if name == "broadcast_in_dim":
        params.placed = _placed(operation)
    if name in ELEMENTWISE:
        return [ELEMENTWISE[name]]
    return [OTHERS[name](params)] if name in OTHERS else None


def _placed(operation: Operation) -> tuple[int, ...]:
    """The shape of what is broadcast, with axes of 1 where it is spread."""
    placed = [1] * len(operation.outputs[0].shape)
    for axis, size in zip(operation.equation.params["broadcast_dimensions"], operation.inputs[0].shape, strict=True):
        placed[axis] = size
    return tuple(placed)


def _is_matrix_product(dimension_numbers: Any, shapes: list[tuple[int, ...]]) -> bool:
    """Whether it is x @ y for a matrix y, or for two stacks of as many matrices."""
    first, second = map(len, shapes)
    stacked = tuple(range(second - 2))
    fits = second == 2 or first == second > 2
    return fits and dimension_numbers == (((first - 1,), (second - 2,)), (stacked, stacked))


def _brings(user: Operation | None, shape: tuple[int, ...], spread: set[Value]) -> bool:
    """Whether an operation has an input that is of this shape without being spread to it."""
    if user is None or user.equation.primitive.name not in ELEMENTWISE:
        return False
    return any(value.shape == shape and value not in spread for value in user.inputs)
