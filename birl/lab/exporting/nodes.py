"""`act` of a policy, taken apart for export: few kinds of operations, each with one result.

Every function that it calls is inlined, operations that depend on the parameters only are computed,
and standard noise that is drawn from the random key becomes an input. Operations that have simpler
forms are traced again in those. What JAX has many names for becomes one kind: a squeeze is a
reshape. A change of shape that broadcasting would make anyway is left out.
"""

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import jaxpr_as_fun

from birl.config import ConfigError, require
from birl.operations import Operation, Value, WaitsFor, called_function, evaluate, inline

LONGEST_LOOP = 64  # steps of a loop: each is written out
SAME = {"stop_gradient", "copy", "copy_p", "optimization_barrier", "reduce_precision"}
RESHAPES = {"reshape", "squeeze", "expand_dims"}
KEEP_NAMES = {*SAME, *RESHAPES, "broadcast_in_dim", "convert_element_type", "transpose"}  # of a parameter
# JAX's functions that draw standard noise, by the names of their traced forms
NOISES = {"_normal": "standard normal", "_normal_real": "standard normal", "_gumbel": "standard Gumbel"}
# fmt: off
ELEMENTWISE = {
    "abs", "acos", "acosh", "add", "and", "asin", "asinh", "atan", "atanh", "ceil", "cos", "cosh", "div", "eq", "erf",
    "exp", "expm1", "floor", "ge", "gt", "is_finite", "le", "log", "log1p", "logistic", "lt", "max", "min", "mul", "ne",
    "neg", "not", "or", "pow", "rem", "round", "rsqrt", "select_n", "sign", "sin", "sinh", "sqrt", "square", "sub",
    "tan", "tanh", "xor",
}


class Noise(NamedTuple):
    """Random numbers that an exported policy takes as an input."""

    value: Value
    distribution: str  # the whole of it: "standard normal"
    operation: Operation  # how JAX draws them from a key


class Inliner:
    """Takes a traced `act` apart: operations for each step, and the noise that they take."""

    def __init__(self, names: dict[Value, str]) -> None:
        self.names = names  # of parameters, and of what is a parameter in another shape
        self.operations: list[Operation] = []
        self.noises: list[Noise] = []

    def inline(self, closed: Any, inputs: list[Value]) -> list[Value]:
        return inline(closed.jaxpr, closed.consts, inputs, self.operations, self.replace)

    def replace(self, equation: Any, values: list[Value]) -> list[Value] | None:
        """The outputs of an equation that is not kept as it is."""
        name = equation.primitive.name
        if noise := _standard_noise(equation, values):
            variable = equation.outvars[0].aval
            output = Value(WaitsFor.STEP, variable.shape, variable.dtype)
            self.noises.append(Noise(output, noise, Operation(equation, values, [output])))
            return [output]
        if called_function(equation) is not None:
            return None
        if all(value.constant is not None for value in values):
            return self._folded(equation, values)
        if name in SAME:
            return values
        if name == "select_n" and (which := one_value(values[0])) is not None:
            return [values[1 + int(which)]]
        if name in ("remat", "checkpoint", "remat2"):
            return inline(equation.params["jaxpr"], (), values, self.operations, self.replace)
        if name == "cond" and (which := one_value(values[0])) is not None:
            branches = equation.params["branches"]
            return self.inline(branches[min(max(int(which), 0), len(branches) - 1)], values[1:])
        return self._rewritten(equation, values)

    def _rewritten(self, equation: Any, values: list[Value]) -> list[Value] | None:
        """The outputs of an equation that has a simpler form; None if it has none."""
        rewrite = REWRITES.get(equation.primitive.name)
        if rewrite is None or max(value.waits_for for value in values) != WaitsFor.STEP:
            return None
        simpler = rewrite(equation.params, [value.shape for value in values])
        if simpler is None:
            return None
        given = [jax.ShapeDtypeStruct(value.shape, value.dtype) for value in values]
        return self.inline(jax.make_jaxpr(simpler)(*given), values)

    def _folded(self, equation: Any, values: list[Value]) -> list[Value] | None:
        """The results of an equation of constants, computed now."""
        if any(jnp.issubdtype(variable.aval.dtype, jax.dtypes.extended) for variable in equation.outvars):
            return None
        outputs = [Value(WaitsFor.POLICY, variable.aval.shape, variable.aval.dtype) for variable in equation.outvars]
        if equation.primitive.name in SHAPES:  # not by JAX, which would compile each
            outputs[0].constant = SHAPES[equation.primitive.name](values[0].constant, equation.params, outputs[0])
        else:
            found = evaluate([Operation(equation, values, outputs)], {})
            for output in outputs:
                output.constant = np.asarray(found[output])
        if equation.primitive.name in KEEP_NAMES and values[0] in self.names:
            self.names[outputs[0]] = self.names[values[0]]
        return outputs


def _broadcast(array: Any, params: dict[str, Any], output: Value) -> np.ndarray:
    shape = [1] * len(output.shape)
    for axis, size in zip(params["broadcast_dimensions"], array.shape, strict=True):
        shape[axis] = size
    return np.broadcast_to(array.reshape(shape), output.shape)


# how NumPy changes the shape of a constant
SHAPES: dict[str, Callable[[Any, dict[str, Any], Value], np.ndarray]] = {
    "broadcast_in_dim": _broadcast,
    "copy": lambda array, params, output: array,
    "squeeze": lambda array, params, output: array.reshape(output.shape),
    "transpose": lambda array, params, output: array.transpose(params["permutation"]),
}


def _standard_noise(equation: Any, values: list[Value]) -> str:
    """The distribution that this equation draws from; "" if it draws no standard noise."""
    if equation.primitive.name != "jit" or not values or values[0].waits_for != WaitsFor.KEY:
        return ""
    name = equation.params["name"]
    if name == "_uniform":
        low, high = (one_value(value) for value in values[1:3])
        return "" if low is None or high is None else f"uniform in [{float(low):g}, {float(high):g})"
    return NOISES.get(name, "")


def one_value(value: Value) -> Any:
    """The number that all elements of a constant are; None if they differ or depend on inputs."""
    array = value.constant
    if array is None or array.size == 0 or not (array == array.flat[0]).all():
        return None
    return array.flat[0]


def _unrolled(params: dict[str, Any]) -> Callable[..., Any]:
    """A `lax.scan` written out."""
    length, carried, constants = params["length"], params["num_carry"], params["num_consts"]
    if length > LONGEST_LOOP:
        raise ConfigError(f"the network has a loop of {length} steps; export writes out at most {LONGEST_LOOP}")
    step, order = jaxpr_as_fun(params["jaxpr"]), range(length)

    def run(*arguments: Any) -> list[Any]:
        fixed, carry = arguments[:constants], list(arguments[constants : constants + carried])
        rows: dict[int, list[Any]] = {}
        for t in reversed(order) if params["reverse"] else order:
            results = step(*fixed, *carry, *[x[t] for x in arguments[constants + carried :]])
            carry, rows[t] = list(results[:carried]), list(results[carried:])
        return carry + [jnp.stack(parts) for parts in zip(*[rows[t] for t in order], strict=True)]

    return run


def _chosen(params: dict[str, Any]) -> Callable[..., Any]:
    """A `lax.cond` or `lax.switch` whose branches are all computed."""

    def run(index: Any, *arguments: Any) -> list[Any]:
        first, *others = [jaxpr_as_fun(branch)(*arguments) for branch in params["branches"]]
        for number, results in enumerate(others, 1):
            is_it = index >= number
            first = [jnp.where(is_it, new, old) for new, old in zip(results, first, strict=True)]
        return first

    return run


def _slices(params: dict[str, Any]) -> Callable[..., Any]:
    """A split as slices."""
    ends, axis = [0, *np.cumsum(params["sizes"]).tolist()], params["axis"]
    return lambda x: [jax.lax.slice_in_dim(x, low, high, axis=axis) for low, high in pairwise(ends)]


def _repeated(x: Any, counts: tuple[int, ...]) -> Any:
    """The array beside itself, along each axis."""
    for axis, count in enumerate(counts):
        x = x if count == 1 else jnp.concatenate([x] * count, axis)
    return x


def _product(params: dict[str, Any], shapes: list[tuple[int, ...]]) -> Callable[..., Any] | None:
    """A general product as x @ y of matrices, or of two stacks of matrices."""
    (left, right), (left_stack, right_stack) = params["dimension_numbers"]
    first, second = shapes
    stacked = tuple(range(len(second) - 2))
    fits = len(second) == 2 or len(first) == len(second) > 2
    if fits and (left, right) == ((len(first) - 1,), (len(second) - 2,)) and left_stack == right_stack == stacked:
        return None
    left_free = [axis for axis in range(len(first)) if axis not in (*left, *left_stack)]
    right_free = [axis for axis in range(len(second)) if axis not in (*right, *right_stack)]
    stack, inner = [first[axis] for axis in left_stack], math.prod(first[axis] for axis in left)
    shape = [*stack, *(first[axis] for axis in left_free), *(second[axis] for axis in right_free)]
    front = [math.prod(stack)] if stack else []

    def multiply(x: Any, y: Any) -> Any:
        x = x.transpose(*left_stack, *left_free, *left).reshape(*front, -1, inner)
        y = y.transpose(*right_stack, *right, *right_free).reshape(*front, inner, -1)
        return jnp.matmul(x, y).reshape(shape)

    return multiply


def _convolution(params: dict[str, Any], shapes: list[tuple[int, ...]]) -> Callable[..., Any] | None:
    """A convolution of [N, channels, ...] with weights [outputs, inputs, ...]."""
    dilated = any(size != 1 for size in params["lhs_dilation"]) or params["batch_group_count"] != 1
    require(not dilated, "the network has a transposed or grouped-batch convolution; export has no form of it")
    images, weights, results = params["dimension_numbers"]
    usual = tuple(range(len(shapes[0])))
    if images == weights == results == usual:
        return None
    return lambda x, weight: jax.lax.conv_general_dilated(
        x.transpose(images),
        weight.transpose(weights),
        params["window_strides"],
        params["padding"],
        rhs_dilation=params["rhs_dilation"],
        dimension_numbers=jax.lax.ConvDimensionNumbers(usual, usual, usual),
        feature_group_count=params["feature_group_count"],
    ).transpose(np.argsort(results))


# primitive: parameters and shapes of the inputs -> a function in simpler operations, if any
REWRITES: dict[str, Callable[[dict[str, Any], list[tuple[int, ...]]], Callable[..., Any] | None]] = {
    "clamp": lambda params, _: lambda low, x, high: jnp.minimum(jnp.maximum(x, low), high),
    "cond": lambda params, _: _chosen(params),
    "conv_general_dilated": _convolution,
    "dot_general": _product,
    "erfc": lambda params, _: lambda x: 1.0 - jax.lax.erf(x),
    "exp2": lambda params, _: lambda x: jnp.exp(x * np.float32(math.log(2))),
    "scan": lambda params, _: _unrolled(params),
    "split": lambda params, _: _slices(params),
    "stack": lambda params, _: (
        lambda *xs: jnp.concatenate([jnp.expand_dims(x, params["axis"]) for x in xs], params["axis"])
    ),
    "tile": lambda params, _: lambda x: _repeated(x, params["reps"]),
}


# fmt: on


class Node(NamedTuple):
    """One operation of the exported policy."""

    name: str  # JAX's name of the primitive, or "take"
    inputs: list[Value]
    output: Value
    params: dict[str, Any]


def nodes_of(
    operations: list[Operation], results: list[Value], names: dict[Value, str]
) -> tuple[list[Node], list[Value]]:
    """These operations as nodes, and their results; what changes nothing is left out.

    `names` are those of parameters; it gets the names of those that are reshaped.
    """
    alias: dict[Value, Value] = {}
    sources: dict[Value, Value] = {}  # what was reshaped
    nodes: list[Node] = []
    for operation in operations:
        node = _node(operation, [alias.get(value, value) for value in operation.inputs], sources)
        if (moved := _before_reshape(node, sources, names)) is not None:
            nodes.append(moved)
            node = Node("reshape", [moved.output], node.output, {})
        if _changes_nothing(node):
            alias[node.output] = node.inputs[0]
            continue
        if node.name == "reshape":
            sources[node.output] = node.inputs[0]
        nodes.append(node)
    wanted = [alias.get(value, value) for value in results]
    nodes = _without_spreading([_with_numbers(node, _spread(nodes)) for node in nodes], wanted)
    return needed_nodes(nodes, wanted), wanted


def needed_nodes(nodes: list[Node], results: list[Value]) -> list[Node]:
    """The nodes that the results depend on, in order."""
    wanted, kept = set(results), []
    for node in reversed(nodes):
        if node.output in wanted:
            wanted |= set(node.inputs)
            kept.append(node)
    return kept[::-1]


def _node(operation: Operation, values: list[Value], sources: dict[Value, Value]) -> Node:
    name, params, output = operation.equation.primitive.name, operation.equation.params, operation.outputs[0]
    node = Node(name, values, output, params)
    if name in RESHAPES:
        remedy = "write jnp.transpose before it"
        transposes = name == "reshape" and params.get("dimensions") is not None
        require(not transposes, f"the network has a reshape that transposes; {remedy}")
    if name in RESHAPES or (name == "broadcast_in_dim" and placed(node) == output.shape):
        return Node("reshape", [sources.get(values[0], values[0])], output, {})
    if name == "gather":
        return _take(values, output, params)
    return node


def _before_reshape(node: Node, sources: dict[Value, Value], names: dict[Value, str]) -> Node | None:
    """The same elementwise operation on arrays before their reshape; None if they differ."""
    shape = node.output.shape
    variable = [value for value in node.inputs if value.constant is None]
    before = {sources[value].shape if value in sources and value.shape == shape else None for value in variable}
    fixed = [value for value in node.inputs if value.constant is not None and value.shape not in ((), shape)]
    if node.name not in ELEMENTWISE or fixed or len(before) != 1 or None in before:
        return None
    inner = sources[variable[0]].shape
    inputs = [sources.get(value) or _reshaped(value, inner, names) for value in node.inputs]
    return Node(node.name, inputs, Value(WaitsFor.STEP, inner, node.output.dtype), node.params)


def _reshaped(value: Value, shape: tuple[int, ...], names: dict[Value, str]) -> Value:
    """A constant of this shape, with its name; a number as it is."""
    if value.constant is None or value.shape == ():
        return value
    reshaped = Value(value.waits_for, shape, value.dtype, value.constant.reshape(shape))
    if value in names:
        names[reshaped] = names[value]
    return reshaped


def _take(values: list[Value], output: Value, params: dict[str, Any]) -> Node:
    """Rows of an array, or one element of each row; ConfigError for any other gather."""
    numbers, (operand, indices) = params["dimension_numbers"], values
    others = tuple(range(len(operand.shape) - 1))
    if len(numbers.start_index_map) == 1 and numbers.collapsed_slice_dims == numbers.start_index_map:
        (axis,) = numbers.start_index_map
        rest = operand.shape[:axis] + operand.shape[axis + 1 :]
        shape = indices.shape[:-1]
        whole = params["slice_sizes"] == (*operand.shape[:axis], 1, *operand.shape[axis + 1 :])
        in_place = (*range(axis), *range(axis + len(shape), len(rest) + len(shape)))
        if whole and numbers.offset_dims == in_place and not numbers.operand_batching_dims:
            return Node("take", values, output, {"axis": axis})
        if axis == len(others) and numbers.operand_batching_dims == numbers.start_indices_batching_dims == others:
            return Node("take_along_axis", values, output, {"axis": axis})
    raise ConfigError(
        "the network has a gather that export has no form of; use jnp.take with an axis, or jnp.take_along_axis"
    )


def _changes_nothing(node: Node) -> bool:
    first, output = node.inputs[0] if node.inputs else None, node.output
    if first is None or first.shape != output.shape or first.dtype != output.dtype:
        return False
    whole = node.name == "slice" and not any(step < 0 for step in node.params["strides"] or ())
    return whole or node.name in ("reshape", "convert_element_type", "broadcast_in_dim")


def _spread(nodes: list[Node]) -> set[Value]:
    return {node.output for node in nodes if node.name == "broadcast_in_dim"}


def _with_numbers(node: Node, spread: set[Value]) -> Node:
    """The node with one number in place of a constant array of equal numbers."""
    brought = [v for v in node.inputs if v.constant is None and v.shape == node.output.shape and v not in spread]
    if node.name not in ELEMENTWISE or not brought:
        return node
    return node._replace(inputs=[_number(value) for value in node.inputs])


def _number(value: Value) -> Value:
    number = one_value(value)
    if number is None or value.shape == ():
        return value
    return Value(WaitsFor.POLICY, (), value.dtype, np.asarray(number, value.dtype))


def _without_spreading(nodes: list[Node], results: list[Value]) -> list[Node]:
    """The nodes with reshapes in place of broadcasts that happen by themselves."""
    users: dict[Value, list[Node | None]] = {value: [None] for value in results}
    for node in nodes:
        for value in node.inputs:
            users.setdefault(value, []).append(node)
    spread = _spread(nodes)
    kept: list[Node] = []
    alias: dict[Value, Value] = {}
    for node in nodes:
        inputs = [alias.get(value, value) for value in node.inputs]
        if node.name == "broadcast_in_dim" and all(_brings(u, spread) for u in users.get(node.output, [])):
            node.output.shape = placed(node)
            if node.output.shape == inputs[0].shape:
                alias[node.output] = inputs[0]
                continue
            node = Node("reshape", inputs, node.output, {})
        kept.append(node._replace(inputs=inputs))
    return kept


def _brings(user: Node | None, spread: set[Value]) -> bool:
    """True if another input of an elementwise node has this shape without being broadcast."""
    if user is None or user.name not in ELEMENTWISE:
        return False
    return any(other.shape == user.output.shape and other not in spread for other in user.inputs)


def placed(node: Node) -> tuple[int, ...]:
    """The input's shape, with axes of 1 where it is broadcast."""
    shape = [1] * len(node.output.shape)
    for axis, size in zip(node.params["broadcast_dimensions"], node.inputs[0].shape, strict=True):
        shape[axis] = size
    return tuple(shape)


def unknown_operation(name: str) -> str:
    """The sentence for an operation that cannot be exported."""
    return (
        f"the network has the operation {name!r} of JAX, which export has no form of; write that part of your network "
        "in other operations, or act with birl.load"
    )
