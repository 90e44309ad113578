"""The operations of an exported policy: few kinds, each with one result.

What JAX has many names for becomes one kind here: a squeeze is a reshape. What only changes a shape
that broadcasting would change anyway is left out.
"""

from typing import Any, NamedTuple

import numpy as np

from birl.config import ConfigError, require
from birl.lab.exporting.inlining import RESHAPES, one_value
from birl.operations import Operation, Value, WaitsFor

# fmt: off
ELEMENTWISE = {
    "abs", "acos", "acosh", "add", "and", "asin", "asinh", "atan", "atanh", "ceil", "cos", "cosh", "div", "eq", "erf",
    "exp", "expm1", "floor", "ge", "gt", "is_finite", "le", "log", "log1p", "logistic", "lt", "max", "min", "mul", "ne",
    "neg", "not", "or", "pow", "rem", "round", "rsqrt", "select_n", "sign", "sin", "sinh", "sqrt", "square", "sub",
    "tan", "tanh", "xor",
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
    """Whether another input of an elementwise node has this shape without being broadcast."""
    if user is None or user.name not in ELEMENTWISE:
        return False
    return any(other.shape == user.output.shape and other not in spread for other in user.inputs)


def placed(node: Node) -> tuple[int, ...]:
    """The input's shape, with axes of 1 where it is broadcast."""
    shape = [1] * len(node.output.shape)
    for axis, size in zip(node.params["broadcast_dimensions"], node.inputs[0].shape, strict=True):
        shape[axis] = size
    return tuple(shape)
