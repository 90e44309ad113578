"""State and World <-> a directory: written atomically, verified by SHA-256 when read. JSON and safetensors: nothing can run code.

checkpoints/000123456/
    manifest.json      format, algorithm, counters, versions, the SHA-256 of each other file and, as "seal", its own; written last
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
from birl.device import is_on_several
from birl.envs.space_json import space_from_json, space_to_json
from birl.errors import CheckpointError, NonFiniteError
from birl.run.versions import versions
from birl.types import PyTree, World

FORMAT = 1
MANIFEST = "manifest.json"
BEST = "best.json"


class FormatError(CheckpointError):
    """Another version of Birl wrote this: not damaged, but not to be read here."""


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
    tensors = state_to_tensors(state)
    _check_finite(tensors)
    files = {
        "config.json": _json(to_json(config)),
        "spaces.json": _json({"observation": space_to_json(spaces[0]), "action": space_to_json(spaces[1])}),
        "state.safetensors": save_tensors(tensors),
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
        for name, content in (files | {MANIFEST: _sealed(manifest)}).items():
            _write_through(partial / name, content)
        _sync_directory(partial)
        if final.exists():  # never the only good one: a run does not save the same step twice
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
        manifest = _unsealed((path / MANIFEST).read_bytes(), path)
        contents = {name: (path / name).read_bytes() for name in manifest["sha256"]}
        for name, content in contents.items():
            if hashlib.sha256(content).hexdigest() != manifest["sha256"][name]:
                raise CheckpointError(f"{path / name} is damaged: its SHA-256 is not the manifest's")
        spaces = json.loads(contents["spaces.json"])
        world = load_tensors(contents["world.safetensors"]), json.loads(contents["world.json"])
        return Checkpoint(
            path=path,
            manifest=manifest,
            config=json.loads(contents["config.json"]),
            observation_space=space_from_json(spaces["observation"]),
            action_space=space_from_json(spaces["action"]),
            tensors=load_tensors(contents["state.safetensors"]),
            world=World(*world, manifest["exact"], manifest["reason"]),
        )
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise CheckpointError(f"{path} is damaged: {problem}") from problem


def load_newest(directory: Path, report: Callable[[str], None]) -> Checkpoint | None:
    """The newest checkpoint that is whole; damaged ones are reported and passed over. None if there is none at all."""
    problems: list[str] = []
    for path in reversed(numbered(directory)):
        try:
            saved = load(path)
        except FormatError:
            raise  # going on from an older one would throw away what the newer Birl learned
        except CheckpointError as problem:
            problems.append(str(problem))
            continue
        for text in problems:
            report(f"{text}; going on from {path.name} before it")
        return saved
    if problems:
        remedy = "restore one from a backup, or train again in another run_dir"
        raise CheckpointError(f"no checkpoint in {directory} can be read: {'; '.join(problems)}; {remedy}")
    return None


def set_aside(directory: Path, after: int) -> None:
    """Take what is newer than the checkpoint in use, all of it damaged, out of the way: pruning would count it as the newest."""
    for path in numbered(directory):
        if int(path.name) > after:
            path.rename(directory / f".partial-damaged-{path.name}-{os.getpid()}")


def prune(directory: Path, keep: int) -> None:
    """Remove all but the newest `keep` checkpoints and the best one, and what a killed process left half written."""
    best = read_best(directory)
    for path in numbered(directory)[: -max(keep, 1)]:
        if best is None or path.name != best["checkpoint"]:
            shutil.rmtree(path, ignore_errors=True)
    for path in directory.glob(".partial-*"):
        shutil.rmtree(path, ignore_errors=True)


def mark_best(directory: Path, best: dict[str, Any] | None) -> None:
    """Remember {"checkpoint": name, "return_mean": score} as the best: it is not pruned, and `load` takes it. None forgets."""
    if best is None:
        (directory / BEST).unlink(missing_ok=True)
    else:
        write_json(directory / BEST, best)


def read_best(directory: Path) -> dict[str, Any] | None:
    """What `mark_best` wrote, if evaluations chose a best checkpoint and it is still there."""
    try:
        best = json.loads((directory / BEST).read_text())
        return best if (directory / best["checkpoint"]).is_dir() else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def numbered(directory: Path) -> list[Path]:
    """The checkpoints, whole or not, oldest first."""
    found = [path for path in directory.glob("[0-9]*") if path.name.isdigit() and path.is_dir()]
    return sorted(found, key=lambda path: int(path.name))  # as numbers: 1000000000 comes after 999999999


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
        raise CheckpointError(f"the checkpoint does not fit this network: missing {missing}, not expected {unknown}")
    for name, leaf in expected.items():
        saved = tensors[name]
        if (saved.shape, saved.dtype) != (leaf.shape, leaf.dtype):
            raise CheckpointError(f"{name} is {saved.dtype}{saved.shape} in the checkpoint but {leaf.dtype}{leaf.shape} in this network")
    return jax.tree.unflatten(structure, [_placed_like(leaf, tensors[name]) for (_, leaf), name in zip(paths, expected, strict=True)])


def _placed_like(leaf: Any, array: np.ndarray) -> Any:
    """The array where the leaf is, if that is on several devices: left here, it would be moved there at each step."""
    return jax.device_put(array, leaf.sharding) if is_on_several(leaf) else array


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file whole or not at all."""
    partial = path.with_name(f".{path.name}.partial")
    _write_through(partial, _json(value))
    partial.replace(path)


def _check_finite(tensors: dict[str, np.ndarray]) -> None:
    """Raise NonFiniteError rather than write weights that are lost: they would push out the last good checkpoint."""
    for name, tensor in tensors.items():
        if tensor.dtype.kind == "f" and name.startswith(".network") and not np.isfinite(tensor).all():
            name = name.removeprefix(".network")
            raise NonFiniteError(f"the network's {name} holds NaN or infinity, so this state was not saved; lower learning_rate")


def _sealed(manifest: dict[str, Any]) -> bytes:
    """The manifest's bytes, with their own SHA-256 inside."""
    return _json(manifest | {"seal": hashlib.sha256(_json(manifest)).hexdigest()})


def _unsealed(content: bytes, path: Path) -> dict[str, Any]:
    """The manifest in these bytes, checked against its seal, which every format has."""
    manifest = json.loads(content)
    seal = manifest.pop("seal")
    if content != _json(manifest | {"seal": seal}) or seal != hashlib.sha256(_json(manifest)).hexdigest():
        raise CheckpointError(f"{path / MANIFEST} is damaged: its SHA-256 is not its seal")
    if manifest["format"] != FORMAT:
        raise FormatError(f"{path} has format {manifest['format']}; this Birl reads format {FORMAT}: install the version that wrote it")
    return manifest


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
