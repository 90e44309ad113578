"""ONNX files: the operations of a policy in ONNX. The only module that imports onnx."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import helper, numpy_helper

from birl import __version__
from birl.config import ConfigError
from birl.errors import CheckpointError
from birl.lab.exporting.graph import KIND, PRODUCER, Graph, Port
from birl.lab.exporting.nodes import ELEMENTWISE, Node, placed, unknown_operation
from birl.operations import Value
from birl.run import files

TYPES = {np.dtype(t) for t in ["bool", "int8", "uint8", "int16", "uint16", "int32", "int64", "float32", "float64"]}
SMALL = {np.dtype(t) for t in (np.int8, np.uint8, np.int16, np.uint16)}  # few operators take them
# JAX's primitives in ONNX, opset 17. The first table works element by element on its inputs.
SIMPLE = {
    "abs": "Abs", "acos": "Acos", "acosh": "Acosh", "add": "Add", "and": "And", "asin": "Asin", "asinh": "Asinh",
    "atan": "Atan", "atanh": "Atanh", "ceil": "Ceil", "cos": "Cos", "cosh": "Cosh", "div": "Div",
    "dot_general": "MatMul", "eq": "Equal", "erf": "Erf", "exp": "Exp", "floor": "Floor", "ge": "GreaterOrEqual",
    "gt": "Greater", "le": "LessOrEqual", "log": "Log", "logistic": "Sigmoid", "lt": "Less", "max": "Max", "min": "Min",
    "mul": "Mul", "neg": "Neg", "not": "Not", "or": "Or", "pow": "Pow", "sign": "Sign", "sin": "Sin", "sinh": "Sinh",
    "sqrt": "Sqrt", "sub": "Sub", "tan": "Tan", "tanh": "Tanh", "xor": "Xor",
}  # fmt: skip
OPSET, IR_VERSION = 17, 8  # runtimes of 2022 and later read them


class OnnxWriter:
    """ONNX nodes and constants, in order."""

    def __init__(self, graph: Graph) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, np.ndarray] = {}
        self.labels = graph.names
        self.names: dict[Value, str] = {port.value: port.name for port in graph.inputs}
        self.taken = {port.name for port in (*graph.inputs, *graph.outputs)}

    def call(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """The name of the result of an operator."""
        output = self.unused("x")
        self.nodes.append(helper.make_node(operator, inputs, [output], **attributes))
        return output

    def array(self, array: Any, dtype: Any, label: str = "constant") -> str:
        """The name of a constant; equal numbers are stored once."""
        array = np.asarray(array, dtype)
        if array.size <= 8:
            for name, other in self.constants.items():
                if other.dtype == array.dtype and other.shape == array.shape and other.tobytes() == array.tobytes():
                    return name
        name = self.unused(label)
        self.constants[name] = array
        return name

    def input_name(self, value: Value) -> str:
        if value not in self.names:
            assert value.constant is not None
            self.names[value] = self.array(value.constant, value.dtype, self.labels.get(value, "constant"))
        return self.names[value]

    def unused(self, label: str) -> str:
        number, name = 1, label if label not in ("x", "constant") else f"{label}1"
        while name in self.taken:
            number += 1
            name = f"{label}{number}" if label in ("x", "constant") else f"{label}.{number}"
        self.taken.add(name)
        return name

    def write(self, node: Node) -> None:
        """Append the nodes that compute this one."""
        make = TABLE.get(node.name)
        if make is None:
            raise ConfigError(unknown_operation(node.name))
        for value in (*node.inputs, node.output):
            if np.dtype(value.dtype) not in TYPES:
                raise ConfigError(f"the network computes with {value.dtype}, which export has no form of; use float32")
        names = [self.input_name(value) for value in node.inputs]
        if node.name in ELEMENTWISE:
            pairs = zip(names, node.inputs, strict=True)
            names = [self.cast(name, np.int32) if _is_small(value) else name for name, value in pairs]
        result = make(self, node, names)
        cast_back = node.name in ELEMENTWISE and any(map(_is_small, node.inputs)) and _is_small(node.output)
        self.names[node.output] = self.cast(result, node.output.dtype) if cast_back else result

    def cast(self, name: str, dtype: Any) -> str:
        return self.call("Cast", name, to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))

    def reshape(self, name: str, shape: tuple[int, ...]) -> str:
        return self.call("Reshape", name, self.array(shape, np.int64))


def _is_small(value: Value) -> bool:
    return np.dtype(value.dtype) in SMALL


Make = Callable[[OnnxWriter, Node, list[str]], str]


def _plain(operator: str) -> Make:
    return lambda writer, node, names: writer.call(operator, *names)


def _number(writer: OnnxWriter, node: Node, number: float) -> str:
    return writer.array(number, node.inputs[0].dtype)


def _select(writer: OnnxWriter, node: Node, names: list[str]) -> str:
    if len(names) > 3:
        raise ConfigError(unknown_operation("select_n of many cases"))
    which, no, yes = names
    if np.dtype(node.inputs[0].dtype) != bool:
        which = writer.cast(which, bool)
    if np.dtype(node.output.dtype) != bool:
        return writer.call("Where", which, yes, no)
    other = writer.call("And", writer.call("Not", which), no)  # Where takes no bools everywhere
    return writer.call("Or", writer.call("And", which, yes), other)


def _power(writer: OnnxWriter, node: Node, names: list[str]) -> str:
    power = node.params["y"]
    if power == 2:
        return writer.call("Mul", names[0], names[0])
    return writer.call("Pow", names[0], _number(writer, node, power))


def _reduce(operator: str) -> Make:
    def make(writer: OnnxWriter, node: Node, names: list[str]) -> str:
        axes = list(node.params["axes"])
        if operator == "ReduceSum":  # since opset 13 its axes are an input
            return writer.call(operator, names[0], writer.array(axes, np.int64), keepdims=0)
        return writer.call(operator, names[0], axes=axes, keepdims=0)

    return make


def _reduce_bools(operator: str) -> Make:
    def make(writer: OnnxWriter, node: Node, names: list[str]) -> str:
        return writer.cast(_reduce(operator)(writer, node, [writer.cast(names[0], np.int32)]), bool)

    return make


def _arg(operator: str) -> Make:
    def make(writer: OnnxWriter, node: Node, names: list[str]) -> str:
        given = names[0] if np.dtype(node.inputs[0].dtype) != bool else writer.cast(names[0], np.int32)
        found = writer.call(operator, given, axis=int(node.params["axes"][0]), keepdims=0)
        return writer.cast(found, node.output.dtype)

    return make


def _broadcast(writer: OnnxWriter, node: Node, names: list[str]) -> str:
    name = names[0] if placed(node) == node.inputs[0].shape else writer.reshape(names[0], placed(node))
    return writer.call("Expand", name, writer.array(node.output.shape, np.int64))


def _slice(writer: OnnxWriter, node: Node, names: list[str]) -> str:
    starts, ends = node.params["start_indices"], node.params["limit_indices"]
    steps = node.params["strides"] or (1,) * len(starts)
    cut = [a for a, size in enumerate(node.inputs[0].shape) if (starts[a], ends[a], steps[a]) != (0, size, 1)]
    indices = [[values[axis] for axis in cut] for values in (starts, ends)] + [cut, [steps[axis] for axis in cut]]
    return writer.call("Slice", names[0], *[writer.array(numbers, np.int64) for numbers in indices])


def _reverse(writer: OnnxWriter, node: Node, names: list[str]) -> str:
    axes = node.params["dimensions"]
    indices = [[-1] * len(axes), [-(2**31)] * len(axes), list(axes), [-1] * len(axes)]
    return writer.call("Slice", names[0], *[writer.array(numbers, np.int64) for numbers in indices])


def _pad(writer: OnnxWriter, node: Node, names: list[str]) -> str:
    low, high, inner = zip(*node.params["padding_config"], strict=True)
    if any(inner) or min(*low, *high) < 0:
        raise ConfigError(unknown_operation("pad with gaps or with negative widths"))
    return writer.call("Pad", names[0], writer.array([*low, *high], np.int64), names[1])


def _take(writer: OnnxWriter, node: Node, names: list[str]) -> str:
    operand, indices = node.inputs
    axis = node.params["axis"]
    along = node.name == "take_along_axis"
    shape = node.output.shape if along else indices.shape[:-1]
    limits = [writer.array(number, indices.dtype) for number in (0, operand.shape[axis] - 1)]
    within = writer.call("Min", writer.call("Max", writer.reshape(names[1], shape), limits[0]), limits[1])
    return writer.call("GatherElements" if along else "Gather", names[0], within, axis=axis)


def _convolve(writer: OnnxWriter, node: Node, names: list[str]) -> str:
    params = node.params
    low, high = zip(*params["padding"], strict=True)
    sizes = {"strides": list(params["window_strides"]), "dilations": list(params["rhs_dilation"])}
    return writer.call("Conv", *names, **sizes, pads=[*low, *high], group=params["feature_group_count"])


def _cumulate(writer: OnnxWriter, node: Node, names: list[str]) -> str:
    axis, reverse = writer.array(node.params["axis"], np.int64), int(node.params["reverse"])
    return writer.call("CumSum", names[0], axis, reverse=reverse)


def _round(writer: OnnxWriter, node: Node, names: list[str]) -> str:
    if int(node.params["rounding_method"]) != 1:  # 1: ties to even
        raise ConfigError(unknown_operation("round away from zero"))
    return writer.call("Round", *names)


REDUCTIONS = {
    "reduce_max": "ReduceMax", "reduce_min": "ReduceMin", "reduce_prod": "ReduceProd", "reduce_sum": "ReduceSum",
}  # fmt: skip
TABLE: dict[str, Make] = {
    **{name: _plain(operator) for name, operator in SIMPLE.items()},
    **{name: _reduce(operator) for name, operator in REDUCTIONS.items()},
    "argmax": _arg("ArgMax"),
    "argmin": _arg("ArgMin"),
    "broadcast_in_dim": _broadcast,
    "concatenate": lambda w, node, xs: w.call("Concat", *xs, axis=node.params["dimension"]),
    "conv_general_dilated": _convolve,
    "convert_element_type": lambda w, node, xs: w.cast(xs[0], node.output.dtype),
    "cumsum": _cumulate,
    "expm1": lambda w, node, xs: w.call("Sub", w.call("Exp", xs[0]), _number(w, node, 1)),
    "integer_pow": _power,
    "is_finite": lambda w, node, xs: w.call("Not", w.call("Or", w.call("IsInf", *xs), w.call("IsNaN", *xs))),
    "log1p": lambda w, node, xs: w.call("Log", w.call("Add", xs[0], _number(w, node, 1))),
    "ne": lambda w, node, xs: w.call("Not", w.call("Equal", *xs)),
    "pad": _pad,
    "reduce_and": _reduce_bools("ReduceMin"),
    "reduce_or": _reduce_bools("ReduceMax"),
    "rem": lambda w, node, xs: w.call("Mod", *xs, fmod=1),
    "reshape": lambda w, node, xs: w.reshape(xs[0], node.output.shape),
    "rev": _reverse,
    "round": _round,
    "rsqrt": lambda w, node, xs: w.call("Reciprocal", w.call("Sqrt", xs[0])),
    "select_n": _select,
    "slice": _slice,
    "square": lambda w, node, xs: w.call("Mul", xs[0], xs[0]),
    "take": _take,
    "take_along_axis": _take,
    "transpose": lambda w, node, xs: w.call("Transpose", xs[0], perm=list(node.params["permutation"])),
}


def onnx_bytes(graph: Graph, description: dict[str, Any]) -> bytes:
    """The content of an ONNX file with this description in its metadata."""
    writer = OnnxWriter(graph)
    for node in graph.nodes:
        writer.write(node)
    for port in graph.outputs:  # the last nodes give the outputs their names
        writer.nodes.append(helper.make_node("Identity", [writer.input_name(port.value)], [port.name]))
    inputs, outputs = ([_port(port) for port in side] for side in (graph.inputs, graph.outputs))
    constants = [numpy_helper.from_array(array, name) for name, array in writer.constants.items()]
    made = helper.make_graph(writer.nodes, "policy", inputs, outputs, constants)
    opset = [helper.make_opsetid("", OPSET)]
    model = helper.make_model(
        made, opset_imports=opset, ir_version=IR_VERSION, producer_name=PRODUCER, producer_version=__version__
    )
    helper.set_model_props(model, {KIND: files.to_json_bytes(description).decode()})
    onnx.checker.check_model(model, full_check=True)
    return model.SerializeToString()


def is_exported(path: Path) -> bool:
    """True if this is a file that `onnx_bytes` made."""
    try:
        with files.open_to_read(path) as file:
            content = file.read()
        model = onnx.ModelProto.FromString(content)
    except (CheckpointError, OSError, ValueError, RuntimeError, DecodeError):
        return False
    return model.producer_name == PRODUCER and any(entry.key == KIND for entry in model.metadata_props)


def _port(port: Port) -> Any:
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(port.value.dtype))
    return helper.make_tensor_value_info(port.name, kind, port.value.shape, doc_string=port.meaning)
