"""A policy's act function taken apart, so that a step costs little where the network is small.

Between two steps of Python environments a call of a compiled program costs about 80 µs, and the environments are slower after it: more
than the arithmetic of a small network. So act is traced once, and its operations are sorted by what they wait for. Those that wait for the
policy alone are computed once in a rollout; those that wait for the random key, for all its steps at once; both by JAX. What waits for the
observations is left for each step, and runs in NumPy. A large network, or one with an operation that is not listed here, is not taken
apart: it is called as one compiled program.
"""

import math
import operator
from collections.abc import Callable, Sequence
from enum import IntEnum
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import numpy as np

from birl.types import Action, Array, PyTree

MOST_PRODUCTS = 2_000_000  # multiplications in a step: with more, XLA's arithmetic is worth its call
MOST_OPERATIONS = 64  # in a step, of about 1 µs each

ActAt = Callable[[int, PyTree, PyTree, Array, Array | None], Action]  # step of the rollout, observations, memory, resets, action masks
Start = Callable[[PyTree, Array], ActAt]  # policy, key: how to act in the next rollout


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


def take_apart(act: Callable[..., Action], policy: PyTree, inputs: PyTree, key: Array, length: int) -> Start | None:
    """How to begin rollouts of this length with policies and inputs of these shapes; None if act is better called as a whole."""
    leaves, structure = jax.tree.flatten(policy)
    closed, action = jax.make_jaxpr(
        lambda leaves, key, inputs: act(jax.tree.unflatten(structure, leaves), *inputs, key), return_shape=True
    )(leaves, key, inputs)
    kinds = [WaitsFor.POLICY] * len(leaves) + [WaitsFor.KEY] + [WaitsFor.STEP] * len(jax.tree.leaves(inputs))
    arguments = [Value(kind, variable.aval.shape) for kind, variable in zip(kinds, closed.jaxpr.invars, strict=True)]
    operations: list[Operation] = []
    results = _inline(closed.jaxpr, closed.consts, arguments, operations)
    operations = _needed(operations, results)
    in_step = [operation for operation in operations if operation.waits_for == WaitsFor.STEP]
    if len(in_step) > MOST_OPERATIONS or sum(map(_products, in_step)) > MOST_PRODUCTS:
        return None
    wanted = list(dict.fromkeys([value for operation in in_step for value in operation.inputs] + results))
    constants = [value for value in wanted if value.constant is not None]
    from_policy, from_key = (
        [value for value in wanted if value.constant is None and value.waits_for == kind] for kind in (WaitsFor.POLICY, WaitsFor.KEY)
    )
    given = [value for value in arguments if value.waits_for == WaitsFor.STEP]
    step = _numpy_program([*constants, *from_policy, *from_key, *given], in_step, results)
    if step is None:
        return None
    action_structure = jax.tree.structure(action)

    @jax.jit
    def prepare(leaves: Sequence[Array], key: Array) -> tuple[list[Array], list[Array]]:
        once = _evaluate([op for op in operations if op.waits_for == WaitsFor.POLICY], dict(zip(arguments, leaves, strict=False)))

        def at_one_step(step_key: Array) -> list[Array]:
            known = once | {arguments[len(leaves)]: step_key}
            found = _evaluate([op for op in operations if op.waits_for == WaitsFor.KEY], known)
            return [found[value] for value in from_key]

        return [once[value] for value in from_policy], jax.vmap(at_one_step)(step_keys(key, length))

    def start(policy: PyTree, key: Array) -> ActAt:
        once, each = prepare(jax.tree.leaves(policy), key)
        known = [value.constant for value in constants] + [np.asarray(array) for array in once]
        prepared = [np.asarray(array) for array in each]

        def act_at(t: int, *inputs: PyTree) -> Action:
            with np.errstate(all="ignore"):  # what is not finite is looked for in the rollout
                results = step(*known, *[array[t] for array in prepared], *jax.tree.leaves(inputs))
            return jax.tree.unflatten(action_structure, results)

        return act_at

    return start


def compiled(act: Callable[..., Action], policy: PyTree, length: int) -> Start:
    """The same for an act function that is called as a whole."""
    structure = jax.tree.structure(policy)
    # A policy of Equinox modules is taken apart in Python at each call; its bare arrays are not (94 against 50 µs a call).
    whole = jax.jit(lambda leaves, *inputs: act(jax.tree.unflatten(structure, leaves), *inputs))
    keys_of = jax.jit(step_keys, static_argnames="length")

    def start(policy: PyTree, key: Array) -> ActAt:
        leaves, keys = jax.tree.leaves(policy), np.asarray(keys_of(key, length=length))
        return lambda t, *inputs: whole(leaves, *inputs, keys[t])

    return start


def step_keys(key: Array, length: int) -> Array:
    """A random key for each step of a rollout; no split of the key itself gives one of these."""
    return jax.random.split(jax.random.fold_in(key, length), length)


def _inline(jaxpr: Any, constants: Sequence[Array], inputs: Sequence[Value], operations: list[Operation]) -> list[Value]:
    """Append the equations of a traced function, and in their place those of the functions that it calls; its results."""
    known: dict[Any, Value] = dict(zip(jaxpr.invars, inputs, strict=True))
    known |= {variable: _constant(array, variable.aval) for variable, array in zip(jaxpr.constvars, constants, strict=True)}

    def value_of(atom: Any) -> Value:
        return _constant(atom.val, atom.aval) if hasattr(atom, "val") else known[atom]

    for equation in jaxpr.eqns:
        values = [value_of(atom) for atom in equation.invars]
        inner = equation.params.get("jaxpr" if equation.primitive.name == "jit" else "call_jaxpr")
        if inner is None:
            waits_for = max((value.waits_for for value in values), default=WaitsFor.POLICY)
            outputs = [Value(waits_for, variable.aval.shape) for variable in equation.outvars]
            operations.append(Operation(equation, values, outputs))
        else:
            outputs = _inline(inner.jaxpr, inner.consts, values, operations)
        known |= dict(zip(equation.outvars, outputs, strict=True))
    return [value_of(atom) for atom in jaxpr.outvars]


def _constant(array: Any, aval: Any) -> Value:
    return Value(WaitsFor.POLICY, aval.shape, np.asarray(array, aval.dtype))


def _needed(operations: list[Operation], results: list[Value]) -> list[Operation]:
    """The operations on which the results depend, in order."""
    wanted, kept = set(results), []
    for operation in reversed(operations):
        if wanted & set(operation.outputs):
            wanted |= set(operation.inputs)
            kept.append(operation)
    return kept[::-1]


def _evaluate(operations: list[Operation], known: dict[Value, Array]) -> dict[Value, Array]:
    """The operations' results, by JAX."""
    known = dict(known)
    for equation, inputs, outputs in operations:
        arrays = [known[value] if value.constant is None else value.constant for value in inputs]
        found = equation.primitive.bind(*arrays, **equation.params)
        known |= zip(outputs, found if equation.primitive.multiple_results else [found], strict=True)
    return known


def _products(operation: Operation) -> int:
    """Multiplications of a matrix product."""
    if operation.equation.primitive.name != "dot_general":
        return 0
    (contracted, _), _ = operation.equation.params["dimension_numbers"]
    return math.prod(operation.outputs[0].shape) * math.prod(operation.inputs[0].shape[axis] for axis in contracted)


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


def _numpy_program(inputs: list[Value], operations: list[Operation], results: list[Value]) -> Callable[..., list[Array]] | None:
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
