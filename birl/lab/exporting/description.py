"""What an exported policy says about itself: in the metadata of ONNX, or as policy.json."""

from typing import Any

import numpy as np

from birl import __version__
from birl.envs.spaces import space_to_json
from birl.errors import printable
from birl.lab.exporting.graph import Graph, Port
from birl.registry import name_of
from birl.run.policy import Policy

PRODUCER = "birl"
KEY = "birl policy"  # of the description in the metadata
FORMAT = 1


def describe(policy: Policy, graph: Graph, batch_size: int, sample: bool) -> dict[str, Any]:
    """The description, as plain JSON values."""
    return {
        "format": FORMAT,
        "birl": __version__,
        "algorithm": name_of(policy.config),
        "actions": "sampled" if sample else "most likely",
        "batch_size": batch_size,
        "inputs": [_port(port) for port in graph.inputs],
        "outputs": [_port(port) for port in graph.outputs],
        "observation_space": space_to_json(policy.observation_space),
        "action_space": space_to_json(policy.action_space),
    }


def table(description: dict[str, Any]) -> str:
    """The inputs and outputs as text, a line each."""
    rows = [
        [side, printable(port["name"]), f"{port['dtype']}{port['shape']}", printable(port["meaning"])]
        for side, ports in (("input", description["inputs"]), ("output", description["outputs"]))
        for port in ports
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return "\n".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]]) for row in rows
    )


def _port(port: Port) -> dict[str, Any]:
    shape = {"name": port.name, "dtype": str(np.dtype(port.value.dtype)), "shape": list(port.value.shape)}
    return shape | {"meaning": port.meaning} | ({"distribution": port.distribution} if port.distribution else {})
