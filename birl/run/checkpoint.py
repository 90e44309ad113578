"""State and World <-> a directory: written atomically, verified by SHA-256 when read. JSON and safetensors: nothing can run code.

checkpoints/000123456/
    manifest.json      format, algorithm, counters, versions, and the SHA-256 of each other file; written last
    config.json        the settings, complete
    spaces.json        observation and action space: a policy loads without its environment
    state.safetensors  the algorithm's State, one tensor for each leaf, named by its path
    world.safetensors  environments, memory, counters: arrays
    world.json         environments, counters: everything else
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import jax
import numpy as np
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from birl.config import to_json
from birl.envs.space_json import space_from_json, space_to_json
from birl.errors import CheckpointError
from birl.run.versions import versions
from birl.types import PyTree, World

FORMAT = 1
MANIFEST = "manifest.json"
BEST = "best.json"


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint, read but not yet fitted to a State."""

    path: Path
    manifest: dict[str, Any]
    config: dict[str, Any]
    observation_space: gym.Space
    action_space: gym.Space
    tensors: dict[str, np.ndarray]
    world: World

    @property
    def env_steps(self) -> int:
        return int(self.manifest["env_steps"])


def save(
    directory: Path,
    algorithm: str,
    config: Any,
    spaces: tuple[gym.Space, gym.Space],
    state: PyTree,
    world: World,
    progress: dict[str, Any],
) -> Path:
    """Write checkpoints/NUMBER in one rename, so that it is there whole or not at all."""
    files = {
        "config.json": _json(to_json(config)),
        "spaces.json": _json({"observation": space_to_json(spaces[0]), "action": space_to_json(spaces[1])}),
        "state.safetensors": save_tensors(state_to_tensors(state)),
        "world.safetensors": save_tensors({name: np.asarray(a, order="C") for name, a in world.arrays.items()}),
        "world.json": _json(world.values),
    }
    manifest = {
        "format": FORMAT,
        "algorithm": algorithm,
        "env_steps": int(state.env_steps),
        "exact": world.exact,
        "reason": world.reason,
        "progress": progress,
        "versions": versions(),
        "sha256": {name: hashlib.sha256(content).hexdigest() for name, content in files.items()},
    }
    final = directory / f"{int(state.env_steps):09d}"
    partial = directory / f".partial-{final.name}-{os.getpid()}"
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        for name, content in (files | {MANIFEST: _json(manifest)}).items():
            _write_through(partial / name, content)
        _sync_directory(partial)
        if final.exists():  # the same step again, after a resume: the content is the same
            shutil.rmtree(final)
        partial.rename(final)
        _sync_directory(directory)
    except OSError:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return final


def load(path: Path) -> Checkpoint:
    """The checkpoint in this directory, every file checked against the manifest's SHA-256."""
    try:
        manifest = json.loads((path / MANIFEST).read_text())
        if manifest["format"] != FORMAT:
            raise CheckpointError(f"{path} has format {manifest['format']}; this version of Birl reads format {FORMAT}: install the one that wrote it")
        contents = {name: (path / name).read_bytes() for name in manifest["sha256"]}
        for name, content in contents.items():
            if hashlib.sha256(content).hexdigest() != manifest["sha256"][name]:
                raise CheckpointError(f"{path / name} is damaged: its SHA-256 is not the manifest's")
        spaces = json.loads(contents["spaces.json"])
        world = World(load_tensors(contents["world.safetensors"]), json.loads(contents["world.json"]), manifest["exact"], manifest["reason"])
        return Checkpoint(
            path=path,
            manifest=manifest,
            config=json.loads(contents["config.json"]),
            observation_space=space_from_json(spaces["observation"]),
            action_space=space_from_json(spaces["action"]),
            tensors=load_tensors(contents["state.safetensors"]),
            world=world,
        )
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise CheckpointError(f"{path} is damaged: {problem}") from problem


def load_newest(directory: Path, report: Callable[[str], None]) -> Checkpoint | None:
    """The newest checkpoint that is whole; damaged ones are reported and passed over. None if there is none at all."""
    paths = sorted(numbered(directory), reverse=True)
    for path in paths:
        try:
            return load(path)
        except CheckpointError as problem:
            report(f"{problem}; using the one before it")
    if paths:
        raise CheckpointError(f"none of the {len(paths)} checkpoints in {directory} can be read")
    return None


def prune(directory: Path, keep: int) -> None:
    """Remove all but the newest `keep` checkpoints and the best one, and what a killed process left half written."""
    best = read_best(directory)
    for path in sorted(numbered(directory))[: -max(keep, 1)]:
        if path.name != best:
            shutil.rmtree(path, ignore_errors=True)
    for path in directory.glob(".partial-*"):
        shutil.rmtree(path, ignore_errors=True)


def mark_best(directory: Path, path: Path, return_mean: float) -> None:
    """Remember this checkpoint as the best: it is not pruned, and `load` takes it."""
    write_json(directory / BEST, {"checkpoint": path.name, "return_mean": return_mean})


def read_best(directory: Path) -> str | None:
    """The name of the best checkpoint, if evaluations chose one."""
    path = directory / BEST
    return json.loads(path.read_text())["checkpoint"] if path.exists() else None


def numbered(directory: Path) -> list[Path]:
    return [path for path in directory.glob("[0-9]*") if path.is_dir()]


def state_to_tensors(state: PyTree) -> dict[str, np.ndarray]:
    """One array for each leaf of a State, named by its path."""
    paths = jax.tree_util.tree_flatten_with_path(state)[0]
    return {jax.tree_util.keystr(path): np.asarray(leaf, order="C") for path, leaf in paths}


def tensors_to_state(template: PyTree, tensors: dict[str, np.ndarray]) -> PyTree:
    """A State like the template with the saved leaves; every name, shape and type must match."""
    paths, structure = jax.tree_util.tree_flatten_with_path(template)
    expected = {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in paths}
    missing, unknown = sorted(set(expected) - set(tensors)), sorted(set(tensors) - set(expected))
    if missing or unknown:
        raise CheckpointError(f"the checkpoint does not fit this network: missing {missing or 'nothing'}, not expected {unknown or 'nothing'}")
    for name, leaf in expected.items():
        saved = tensors[name]
        if (saved.shape, saved.dtype) != (leaf.shape, leaf.dtype):
            raise CheckpointError(f"{name} is {saved.dtype}{saved.shape} in the checkpoint but {leaf.dtype}{leaf.shape} in this network")
    return jax.tree.unflatten(structure, [tensors[name] for name in expected])


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file whole or not at all."""
    partial = path.with_name(f".{path.name}.partial")
    _write_through(partial, _json(value))
    partial.replace(path)


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=1, allow_nan=False) + "\n").encode()


def _write_through(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
