"""ONNX files: the only module that imports onnx."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import helper, numpy_helper

from birl import __version__
from birl.errors import CheckpointError
from birl.lab.exporting.description import KEY, PRODUCER
from birl.lab.exporting.graph import Graph, Port
from birl.lab.exporting.onnx_nodes import OnnxNode, onnx_nodes
from birl.run import files

OPSET, IR_VERSION = 17, 8  # runtimes of 2022 and later read them


def onnx_bytes(graph: Graph, description: dict[str, Any]) -> bytes:
    """The content of an ONNX file with this description in its metadata."""
    writer = onnx_nodes(graph)
    made = helper.make_graph(
        [_node(node) for node in writer.nodes],
        "policy",
        [_port(port) for port in graph.inputs],
        [_port(port) for port in graph.outputs],
        [numpy_helper.from_array(array, name) for name, array in writer.constants.items()],
    )
    opset = [helper.make_opsetid("", OPSET)]
    model = helper.make_model(
        made, opset_imports=opset, ir_version=IR_VERSION, producer_name=PRODUCER, producer_version=__version__
    )
    helper.set_model_props(model, {KEY: files.to_json_bytes(description).decode()})
    onnx.checker.check_model(model, full_check=True)
    return model.SerializeToString()


def is_exported(path: Path) -> bool:
    """Whether this is a file that `onnx_bytes` made."""
    try:
        with files.open_to_read(path) as file:
            content = file.read()
        model = onnx.ModelProto.FromString(content)
    except (CheckpointError, OSError, ValueError, RuntimeError, DecodeError):
        return False
    return model.producer_name == PRODUCER and any(entry.key == KEY for entry in model.metadata_props)


def _node(node: OnnxNode) -> Any:
    attributes: dict[str, Any] = {
        name: helper.np_dtype_to_tensor_dtype(value) if isinstance(value, np.dtype) else value
        for name, value in node.attributes.items()
    }
    return helper.make_node(node.operator, node.inputs, [node.output], **attributes)


def _port(port: Port) -> Any:
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(port.value.dtype))
    return helper.make_tensor_value_info(port.name, kind, port.value.shape, doc_string=port.meaning)
