"""One checkpoint: a directory that is written atomically and verified by SHA-256 when it is read.

checkpoints/000123456/
    manifest.json         format, algorithm, counters, versions, signature of the settings (see
                          trust.py), SHA-256 of each other file; written last
    config.json           the complete settings
    spaces.json           observation and action space: a policy loads without its environment
    state.safetensors     the algorithm's State, one tensor for each leaf, named by its path
    snapshot.safetensors  the snapshot's arrays: environments, memory, counters
    snapshot.json         the snapshot's other values

Only JSON and safetensors: nothing in these files can run code. Format 1 named the snapshot's files
world.safetensors and world.json.
"""

import hashlib
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from birl.config import to_json
from birl.envs.spaces import space_from_json, space_to_json
from birl.errors import CheckpointError, NonFiniteError, UnreadableError, require
from birl.nets.allowance import allowed_numbers
from birl.rollouts.replay import free_memory
from birl.run import files
from birl.run.manifest import FORMAT, MANIFEST, manifest_bytes, read_manifest, snapshot_files
from birl.run.state_tensors import non_finite_leaf, state_to_tensors, with_current_names
from birl.run.trust import sign
from birl.run.versions import versions
from birl.types import PyTree, Snapshot

LARGEST_JSON = 1 << 26  # bytes; config.json has a lower limit
NO_LIMIT = 1 << 62  # tensors may be as large as the free memory
DAMAGE = (
    ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError, SafetensorError,
)  # fmt: skip


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint; its tensors are not yet a State."""

    path: Path
    manifest: dict[str, Any]
    config: dict[str, Any]
    observation_space: gym.Space
    action_space: gym.Space
    tensors: dict[str, np.ndarray]
    snapshot: Snapshot

    @property
    def env_steps(self) -> int:
        return int(self.manifest["env_steps"])


def save(
    directory: Path,
    algorithm: str,
    config: Any,
    spaces: tuple[gym.Space, gym.Space],
    state: PyTree,
    snapshot: Snapshot,
    progress: dict[str, Any],
) -> Path:
    """Write a checkpoint; its path. It appears complete, by one rename, or not at all."""
    tensors = state_to_tensors(state)
    if problem := non_finite_leaf(tensors):  # saving it would push out the last good checkpoint
        raise NonFiniteError(f"{problem}, so this state was not saved; lower learning_rate")
    return write(directory, algorithm, config, spaces, int(state.env_steps), tensors, snapshot, progress)


def write(
    directory: Path,
    algorithm: str,
    config: Any,
    spaces: tuple[gym.Space, gym.Space],
    env_steps: int,
    tensors: dict[str, np.ndarray],
    snapshot: Snapshot,
    progress: dict[str, Any],
) -> Path:
    """As `save`, for a State that is tensors already."""
    settings = to_json(config)
    spaces_json = {"observation": space_to_json(spaces[0]), "action": space_to_json(spaces[1])}
    values_name, arrays_name = snapshot_files(FORMAT)
    contents = {
        "config.json": files.to_json_bytes(settings),
        "spaces.json": files.to_json_bytes(spaces_json),
        "state.safetensors": save_tensors(tensors),
        arrays_name: save_tensors({name: np.asarray(array, order="C") for name, array in snapshot.arrays.items()}),
        values_name: files.to_json_bytes(snapshot.values),
    }
    manifest = {
        "format": FORMAT,
        "algorithm": algorithm,
        "env_steps": env_steps,
        "exact": snapshot.exact,
        "reason": snapshot.reason,
        "progress": progress,
        "versions": versions(),
        "signature": sign(algorithm, settings),
        "sha256": {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()},
    }
    contents[MANIFEST] = manifest_bytes(manifest)
    path = files.make_directory(directory) / f"{env_steps:09d}"
    _write_directory(path, contents)
    return path


def load(path: Path) -> Checkpoint:
    """The checkpoint in this directory, with every file checked against the manifest's SHA-256.

    CheckpointError if it is damaged, UnreadableError if it cannot be read at the moment. No other
    file is opened.
    """
    try:
        return _load(path)
    except (FileNotFoundError, NotADirectoryError) as problem:
        raise CheckpointError(f"{path} is damaged: {problem}") from problem
    except (OSError, MemoryError) as problem:
        raise UnreadableError(f"{path} cannot be read: {str(problem) or 'not enough memory'}") from problem
    except DAMAGE as problem:
        raise CheckpointError(f"{path} is damaged: {problem}") from problem


def _load(path: Path) -> Checkpoint:
    manifest = read_manifest(files.read_bytes(path / MANIFEST), path)
    contents = {name: _read_verified(path / name, digest) for name, digest in manifest["sha256"].items()}
    values_name, arrays_name = snapshot_files(manifest["format"])
    config, spaces, values = (
        files.parse_json(contents[name], path / name) for name in ("config.json", "spaces.json", values_name)
    )
    objects = isinstance(values, dict) and isinstance(config, dict)
    require(objects, f"config.json and {values_name} must be objects")
    tensors = with_current_names(load_tensors(contents["state.safetensors"]), manifest["format"])
    if problem := non_finite_leaf(tensors):
        raise CheckpointError(f"{path} is damaged: {problem}; it cannot act")
    most = allowed_numbers(tensors)
    return Checkpoint(
        path=path,
        manifest=manifest,
        config=config,
        observation_space=space_from_json(spaces["observation"], most),
        action_space=space_from_json(spaces["action"], most),
        tensors=tensors,
        snapshot=Snapshot(load_tensors(contents[arrays_name]), values, manifest["exact"], manifest["reason"]),
    )


def _write_directory(path: Path, contents: dict[str, bytes]) -> None:
    """Write the files into a hidden directory, and rename it once they are on the disk."""
    partial = files.partial_beside(path)
    try:
        partial.mkdir()
        for name, content in contents.items():
            files.write_new(partial / name, content)
        files.sync_directory(partial)
        if path.exists():  # never the only good one: a run does not save the same step twice
            files.remove(path)
        partial.rename(path)
        files.sync_directory(path.parent)
    except OSError:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _read_verified(path: Path, digest: str) -> bytes:
    """The content of the file; CheckpointError if it does not have this SHA-256."""
    content = files.read_bytes(path, _size_limit(path))
    if hashlib.sha256(content).hexdigest() != digest:
        raise CheckpointError(f"{path} is damaged: its SHA-256 is not the manifest's")
    return content


def _size_limit(path: Path) -> int:
    if path.suffix == ".json":
        return files.JSON_BYTES if path.name == "config.json" else LARGEST_JSON
    return memory_limit(path)


def memory_limit(path: Path) -> int:
    """How many bytes of this file may be read; UnreadableError if it does not fit in the memory."""
    files.require_memory(path, 2, free_memory())  # for its bytes, and for the arrays in them
    return NO_LIMIT
