"""A traced function's operations as calls of NumPy."""

import operator
from collections.abc import Callable, Iterable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np

from birl.operations import Operation, Value
from birl.types import Array

# JAX's primitives in NumPy: of arrays of which kinds (b: bools, i and u: integers, f: float32) it
# gives what JAX gives, and how. What is not said here is left to JAX. Those of the first table work
# element by element; the second's need the equation's parameters.
ELEMENTWISE: dict[str, tuple[str, Callable[..., Array]]] = {
    "abs": ("iuf", np.abs),
    "add": ("iuf", operator.add),
    "and": ("biu", operator.and_),
    "cos": ("f", np.cos),
    "div": ("f", operator.truediv),  # JAX's quotient of integers is an integer
    "eq": ("biuf", operator.eq),
    "exp": ("f", np.exp),
    "expm1": ("f", np.expm1),
    "ge": ("biuf", operator.ge),
    "gt": ("biuf", operator.gt),
    "le": ("biuf", operator.le),
    "log": ("f", np.log),
    "log1p": ("f", np.log1p),
    "logistic": (
        "f",
        lambda x: 1 / (1 + np.exp(-x)),
    ),  # tanh would give 0 below -17, and log would give -inf
    "lt": ("biuf", operator.lt),
    "max": ("iuf", np.maximum),
    "min": ("iuf", np.minimum),
    "mul": ("iuf", operator.mul),
    "ne": ("biuf", operator.ne),
    "neg": ("iuf", operator.neg),
    "not": ("biu", operator.invert),
    "or": ("biu", operator.or_),
    "rsqrt": ("f", lambda x: 1 / np.sqrt(x)),
    "select_n": ("biuf", lambda which, first, second: np.where(which, second, first)),
    "sign": ("iuf", np.sign),
    "sqrt": ("f", np.sqrt),
    "square": ("iuf", np.square),
    "sub": ("iuf", operator.sub),
    "tanh": ("f", np.tanh),
}
OTHERS: dict[str, tuple[str, Callable[[Any], Callable[..., Array]]]] = {
    "argmax": ("biuf", lambda p: lambda x: x.argmax(p.axes[0]).astype(p.dtype)),
    "broadcast_in_dim": ("biuf", lambda p: lambda x: np.broadcast_to(x.reshape(p.placed), p.shape)),
    "concatenate": ("biuf", lambda p: lambda *arrays: np.concatenate(arrays, p.dimension)),
    "convert_element_type": ("biuf", lambda p: lambda x: x.astype(p.dtype)),
    "dot_general": ("f", lambda p: np.matmul),
    "integer_pow": ("f", lambda p: lambda x: x**p.y),
    "reduce_and": ("b", lambda p: lambda x: np.logical_and.reduce(x, p.axes)),  # on integers JAX's is bitwise
    "reduce_max": ("iuf", lambda p: lambda x: np.maximum.reduce(x, p.axes)),
    "reduce_min": ("iuf", lambda p: lambda x: np.minimum.reduce(x, p.axes)),
    "reduce_or": ("b", lambda p: lambda x: np.logical_or.reduce(x, p.axes)),
    "reduce_sum": ("iuf", lambda p: lambda x: np.add.reduce(x, p.axes, p.dtype)),
    "slice": ("biuf", lambda p: lambda x: x[p.window]),
    "stack": ("biuf", lambda p: lambda *arrays: np.stack(arrays, p.axis)),
    "transpose": ("biuf", lambda p: lambda x: x.transpose(p.permutation)),
}
RESHAPES = ("reshape", "squeeze", "stop_gradient", "copy")


class Program:
    """NumPy functions to call one after another.

    An array that is only reshaped keeps its shape until a function needs another.
    """

    def __init__(self, inputs: list[Value]) -> None:
        self.calls: list[
            tuple[Callable[..., Array], tuple[int, ...]]
        ] = []  # a function, and the places of its arguments
        self.size = len(inputs)  # places: first the inputs, then the result of each call
        self.places = {value: place for place, value in enumerate(inputs)}
        self.shapes = {value: value.shape for value in inputs}  # the shapes that users of the values expect
        self.held = dict(self.shapes)  # the shapes of the arrays at their places

    def reshape(self, output: Value, value: Value, shape: tuple[int, ...]) -> None:
        self.places[output], self.held[output], self.shapes[output] = self.places[value], self.held[value], shape

    def call(self, function: Callable[..., Array], inputs: list[Value], output: Value, elementwise: bool) -> None:
        same = {(self.held[value], self.shapes[value]) for value in inputs if value.shape != ()}
        as_held = elementwise and len(same) == 1  # all inputs are reshaped alike, and so is the result
        # A number may be held as an array of several axes: with these the result would have more
        # than it should.
        taken = [self.places[value] if as_held and value.shape != () else self.place_of(value) for value in inputs]
        self.calls.append((function, tuple(taken)))
        self.places[output], self.size = self.size, self.size + 1
        self.held[output], self.shapes[output] = same.pop() if as_held else (output.shape, output.shape)

    def place_of(self, value: Value) -> int:
        """The place of a value in its own shape."""
        if self.held[value] != self.shapes[value]:
            self.calls.append((operator.methodcaller("reshape", self.shapes[value]), (self.places[value],)))
            self.places[value], self.size, self.held[value] = self.size, self.size + 1, self.shapes[value]
        return self.places[value]

    def function(self, results: list[Value]) -> Callable[..., list[Array]]:
        """The results for these inputs."""
        wanted, calls = [self.place_of(value) for value in results], self.calls

        def step(*arrays: Array) -> list[Array]:
            values = list(arrays)
            for function, taken in calls:
                match taken:  # to unpack any number would double the time of this loop
                    case (one,):
                        values.append(function(values[one]))
                    case (one, two):
                        values.append(function(values[one], values[two]))
                    case _:
                        values.append(function(*[values[place] for place in taken]))
            return [values[place] for place in wanted]

        return step


def numpy_program(
    inputs: list[Value], operations: list[Operation], results: list[Value]
) -> Callable[..., list[Array]] | None:
    """A function from the inputs to the results; None if NumPy might compute something else."""
    users: dict[Value, list[Operation | None]] = {value: [None] for value in results}  # None: the caller
    for operation in operations:
        for value in operation.inputs:
            users.setdefault(value, []).append(operation)
    spread = {op.outputs[0] for op in operations if op.equation.primitive.name == "broadcast_in_dim"}
    program = Program(inputs)
    for operation in operations:
        name, values, output = operation.equation.primitive.name, operation.inputs, operation.outputs[0]
        if not _is_same_in_numpy(operation):
            return None
        if name == "broadcast_in_dim":
            placed = _placed(operation)
            if placed == output.shape or all(_brings(user, output.shape, spread) for user in users[output]):
                # next to an array of the whole shape NumPy broadcasts it
                program.reshape(output, values[0], placed)
                continue
        if name in RESHAPES:
            program.reshape(output, values[0], output.shape)
            continue
        for function, output in zip(_in_numpy(operation), operation.outputs, strict=True):
            program.call(function, values, output, name in ELEMENTWISE)
    return program.function(results)


def _is_same_in_numpy(operation: Operation) -> bool:
    """Whether NumPy and JAX compute the same, rounding aside."""
    equation, shapes = operation.equation, [value.shape for value in (*operation.inputs, *operation.outputs)]
    name, params = equation.primitive.name, equation.params
    given, results = ([np.dtype(atom.aval.dtype) for atom in atoms] for atoms in (equation.invars, equation.outvars))
    if not is_known([*given, *results]) or any(0 in shape for shape in shapes):
        return False
    if name in RESHAPES:
        return params.get("dimensions") is None or name == "squeeze"  # a reshape may contain a transposition
    kinds = "biuf" if name == "split" else (ELEMENTWISE.get(name) or OTHERS.get(name) or ("", None))[0]
    if any(dtype.kind not in kinds for dtype in given):
        return False
    match name:
        case "select_n":  # an integer selects one of many cases
            return given[0].kind == "b" and len(given) == 3
        case "convert_element_type":  # beyond an integer's range JAX gives its largest number
            return given[0].kind != "f" or results[0].kind in "bf"
        case "dot_general":
            return _is_matrix_product(params["dimension_numbers"], shapes[:2])
        case "slice":
            return not params["strides"]
    return True


def is_known(dtypes: Iterable[np.dtype]) -> bool:
    """Whether NumPy's arithmetic with these types is JAX's; among floats only float32's is."""
    return all(dtype == np.float32 or (dtype.kind in "biu" and dtype.itemsize <= 4) for dtype in dtypes)


def _in_numpy(operation: Operation) -> list[Callable[..., Array]]:
    """A function from the operation's inputs to each of its outputs."""
    name = operation.equation.primitive.name
    known = {"shape": operation.outputs[0].shape, "dtype": np.dtype(operation.equation.outvars[0].aval.dtype)}
    params = SimpleNamespace(**operation.equation.params | known)
    if name == "split":
        bounds = pairwise([0, *np.cumsum(params.sizes).tolist()])
        return [operator.itemgetter((slice(None),) * params.axis + (slice(*bound),)) for bound in bounds]
    if name == "slice":
        params.window = tuple(map(slice, params.start_indices, params.limit_indices))
    if name == "broadcast_in_dim":
        params.placed = _placed(operation)
    return [ELEMENTWISE[name][1] if name in ELEMENTWISE else OTHERS[name][1](params)]


def _placed(operation: Operation) -> tuple[int, ...]:
    """The input's shape, with axes of 1 where it is broadcast."""
    placed = [1] * len(operation.outputs[0].shape)
    for axis, size in zip(operation.equation.params["broadcast_dimensions"], operation.inputs[0].shape, strict=True):
        placed[axis] = size
    return tuple(placed)


def _is_matrix_product(dimension_numbers: Any, shapes: list[tuple[int, ...]]) -> bool:
    """Whether it is x @ y for a matrix y, or for two stacks of matrices."""
    first, second = map(len, shapes)
    stacked = tuple(range(second - 2))
    fits = second == 2 or first == second > 2
    return fits and dimension_numbers == (((first - 1,), (second - 2,)), (stacked, stacked))


def _brings(user: Operation | None, shape: tuple[int, ...], spread: set[Value]) -> bool:
    """Whether an input has this shape without being broadcast to it."""
    if user is None or user.equation.primitive.name not in ELEMENTWISE:
        return False
    return any(value.shape == shape and value not in spread for value in user.inputs)
