"""Exporting a policy: one ONNX file, or a folder of NumPy code."""

import importlib.util
import io
import os
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from birl.config import ConfigError, require
from birl.errors import CheckpointError, install_extra
from birl.lab.exporting import numpy_code
from birl.lab.exporting.graph import describe, graph_of
from birl.run import files
from birl.run.loading import load
from birl.run.policy import Policy

Format = Literal["onnx", "numpy"]
DEFAULT = {"onnx": Path("policy.onnx"), "numpy": Path("policy_numpy")}


class Exported(NamedTuple):
    """The result of `export`."""

    path: Path
    description: dict[str, Any]  # inputs, outputs, spaces: what is in the file, too


def export(
    source: Policy | str | Path,
    out: str | Path | None = None,
    format: Format = "onnx",
    sample: bool = False,
    masks: bool = False,
    batch_size: int = 1,
    trust: bool = False,
    make_network: Any = None,
    make_encoder: Any = None,
) -> Exported:
    """Write a policy as a file that acts without Birl; where it is, and what it says of itself.

    The source is what `birl.load` takes, or a policy. `format` "onnx" is one file, "numpy" a folder
    with Python code. Actions are the most likely ones, or with `sample` they are sampled from noise
    that is an input. With `masks`, and always if it learned with action masks, which actions are
    allowed is an input. Only what `export` wrote itself is replaced. ConfigError if an operation of
    your own network has no form there.
    """
    require(format in DEFAULT, f"format {format!r} is unknown; use {' or '.join(DEFAULT)}")
    path = Path(DEFAULT[format] if out is None else out)
    if format == "onnx" and importlib.util.find_spec("onnx") is None:
        remedy = f"{install_extra('onnx')}, or use format numpy"
        raise ConfigError(f"format {format!r} needs the package onnx; {remedy}")
    policy = source if isinstance(source, Policy) else load(source, make_network, trust, make_encoder)
    graph = graph_of(policy, batch_size, sample, masks or policy.masks)
    description = describe(policy, graph, batch_size, sample)
    path.parent.mkdir(parents=True, exist_ok=True)
    if format == "onnx":
        from birl.lab.exporting import onnx_file

        content = onnx_file.onnx_bytes(graph, description)
        _require_free(path, onnx_file.is_exported(path))
        with files.replacing(path) as file:
            file.write(content)
    else:
        texts, weights = numpy_code.numpy_files(graph, description, (policy.observation_space, policy.action_space))
        _require_free(path, numpy_code.is_exported(path))
        _write_folder(path, texts | {numpy_code.WEIGHTS: _npz(weights)})
    return Exported(path, description)


def _require_free(path: Path, is_ours: bool) -> None:
    if os.path.lexists(path) and not is_ours:
        raise CheckpointError(
            f"{path} is there already and was not exported by Birl; move it away, or use another name"
        )


def _write_folder(path: Path, contents: dict[str, bytes]) -> None:
    """Write a folder completely or not at all; it replaces an exported one."""
    partial = files.partial_beside(path)
    partial.mkdir()
    try:
        for name, content in contents.items():
            files.write_new(partial / name, content)
        if path.exists():
            files.remove(path)
        partial.rename(path)
    except BaseException:
        if partial.exists():
            files.remove(partial)
        raise


def _npz(weights: dict[str, Any]) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **weights)
    return buffer.getvalue()
