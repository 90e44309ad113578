"""State and World <-> a directory: written atomically, verified by SHA-256 when read. JSON and
safetensors: nothing can run code.

checkpoints/000123456/
    manifest.json      format, algorithm, counters, versions, the settings' signature (see trust.py), the SHA-256 of each other file and,
                       as "seal", its own; written last
    config.json        the settings, complete
    spaces.json        observation and action space: a policy loads without its environment
    state.safetensors  the algorithm's State, one tensor for each leaf, named by its path
    world.safetensors  environments, memory, counters: arrays
    world.json         environments, counters: everything else
"""

import hashlib
import re
import shutil
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import jax
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from birl.accel.devices import is_on_several
from birl.config import from_json, require, to_json
from birl.envs.space_json import space_from_json, space_to_json
from birl.errors import CheckpointError, NonFiniteError
from birl.maths.count import Count, count_of
from birl.rollouts.replay import free_memory
from birl.run import files
from birl.run.trust import sign
from birl.run.versions import versions
from birl.types import PyTree, Snapshot

FORMAT = 1
MANIFEST = "manifest.json"
BEST = "best.json"
JSON_BYTES = {
    "config.json": files.JSON_BYTES,
    "spaces.json": 1 << 26,
    "world.json": 1 << 26,
}  # the most that is read of each
TENSORS = ("state.safetensors", "world.safetensors")  # as large as memory allows
NO_LIMIT = 1 << 62
NUMBER = re.compile("[0-9]{9,19}")
NEW_LEAVES = {".owed"}  # of States that older checkpoints lack: there they begin as in a fresh State


class UnreadableError(CheckpointError):
    """Perhaps whole, but not to be read here and now: another version of Birl wrote it, or the disk
    or the memory refused.
    """


@dataclass(frozen=True)
class Best:
    """The schema of best.json."""

    checkpoint: str
    return_mean: float


@dataclass(frozen=True)
class Inexact:
    """A resume after which the run went on otherwise than it would have."""

    env_steps: int  # when it was resumed
    reason: str


@dataclass(frozen=True)
class Progress:
    """The schema of a manifest's progress."""

    wall_seconds: float = 0.0
    cpu_seconds: float = 0.0
    best: Best | None = None
    evaluation_due: bool = False  # it was saved before it was evaluated
    inexact_resumes: tuple[Inexact, ...] = ()  # so far; "exact" of the manifest is of the next one


@dataclass(frozen=True)
class Manifest:
    """The schema of manifest.json. What is not in here is refused."""

    format: int
    algorithm: str
    env_steps: int
    exact: bool
    reason: str
    progress: Progress
    versions: dict[str, str]
    sha256: dict[str, str]
    signature: str | None = None  # of the settings; see trust.py


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint, read but not yet fitted to a State."""

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
    """Write checkpoints/NUMBER in one rename, so that it is there whole or not at all."""
    tensors = state_to_tensors(state)
    _check_finite(tensors)
    settings = to_json(config)
    contents = {
        "config.json": files.to_json_bytes(settings),
        "spaces.json": files.to_json_bytes(
            {"observation": space_to_json(spaces[0]), "action": space_to_json(spaces[1])}
        ),
        "state.safetensors": save_tensors(tensors),
        "world.safetensors": save_tensors({name: np.asarray(a, order="C") for name, a in snapshot.arrays.items()}),
        "world.json": files.to_json_bytes(snapshot.values),
    }
    manifest = {
        "format": FORMAT,
        "algorithm": algorithm,
        "env_steps": int(state.env_steps),
        "exact": snapshot.exact,
        "reason": snapshot.reason,
        "progress": progress,
        "versions": versions(),
        "signature": sign(algorithm, settings),
        "sha256": {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()},
    }
    from_json(Manifest, manifest, "manifest")  # what cannot be read again is not written
    final = files.own_directory(directory) / f"{int(state.env_steps):09d}"
    partial = files.partial_beside(final)
    try:
        partial.mkdir()
        for name, content in (contents | {MANIFEST: _sealed(manifest)}).items():
            files.write_new(partial / name, content)
        files.sync_directory(partial)
        if final.exists():  # never the only good one: a run does not save the same step twice
            files.remove(final)
        partial.rename(final)
        files.sync_directory(directory)
    except OSError:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return final


def load(path: Path) -> Checkpoint:
    """The checkpoint in this directory, every file checked against the manifest's SHA-256. No other
    file is opened.
    """
    try:
        manifest = _unsealed(files.read_bytes(path / MANIFEST), path)
        contents = {name: _verified(path / name, digest) for name, digest in manifest["sha256"].items()}
        spaces, config, values = (
            files.parse_json(contents[name], path / name) for name in ("spaces.json", "config.json", "world.json")
        )
        tensors, arrays = (load_tensors(contents[name]) for name in TENSORS)
        require(isinstance(values, dict) and isinstance(config, dict), "config.json and world.json must be objects")
        if fault := _not_finite(tensors):
            raise CheckpointError(f"{path} is damaged: {fault}; it cannot act")
        return Checkpoint(
            path=path,
            manifest=manifest,
            config=config,
            observation_space=space_from_json(spaces["observation"]),
            action_space=space_from_json(spaces["action"]),
            tensors=tensors,
            snapshot=Snapshot(arrays, values, manifest["exact"], manifest["reason"]),
        )
    except (FileNotFoundError, NotADirectoryError) as problem:
        raise CheckpointError(f"{path} is damaged: {problem}") from problem
    except (OSError, MemoryError) as problem:
        raise UnreadableError(f"{path} cannot be read: {str(problem) or 'not enough memory'}") from problem
    except (
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        ArithmeticError,
        RecursionError,
        SafetensorError,
    ) as problem:
        raise CheckpointError(f"{path} is damaged: {problem}") from problem


def load_newest(directory: Path, report: Callable[[str], object]) -> Checkpoint | None:
    """The newest checkpoint that is whole; damaged ones are reported and passed over. None if there
    is none at all.
    """
    return load_first(reversed(numbered(directory)), directory, report)


def load_first(paths: Iterable[Path], directory: Path, report: Callable[[str], object]) -> Checkpoint | None:
    """The first of these checkpoints that is whole; damaged ones are reported and passed over. None
    if there is none at all.
    """
    problems: list[str] = []
    for path in paths:
        try:
            saved = load(path)
        except UnreadableError:
            raise  # taking another one would throw away what was learned after it
        except CheckpointError as problem:
            problems.append(str(problem))
            continue
        for text in problems:
            report(f"{text}; going on from {path.name} instead")
        return saved
    if problems:
        remedy = "restore one from a backup, or train again in another run_dir"
        raise CheckpointError(f"no checkpoint in {directory} can be read: {'; '.join(problems)}; {remedy}")
    return None


def set_aside(directory: Path, after: int) -> None:
    """Take what is newer than the checkpoint in use, all of it damaged, out of the way: pruning
    would count it as the newest.
    """
    for path in numbered(directory):
        if int(path.name) > after:
            path.rename(files.partial_beside(path))


def prune(directory: Path, keep: int) -> None:
    """Remove all but the newest `keep` checkpoints and the best one, and what a killed process left
    half written.
    """
    best = read_best(directory)
    for path in numbered(directory)[: -max(keep, 1)]:
        if best is None or path.name != best["checkpoint"]:
            with suppress(OSError):
                files.remove(path)
    files.remove_partial(directory)


def mark_best(directory: Path, best: dict[str, Any] | None) -> None:
    """Remember {"checkpoint": name, "return_mean": score} as the best: it is not pruned, and `load`
    takes it. None forgets.
    """
    if best is None:
        (directory / BEST).unlink(missing_ok=True)
    else:
        files.write_json(directory / BEST, best)


def read_best(directory: Path, report: Callable[[str], object] = bool) -> dict[str, Any] | None:
    """What `mark_best` wrote, if evaluations chose a best checkpoint and it is still there. A
    damaged file is reported.
    """
    path = directory / BEST
    try:
        best = files.read_json(path)
        _check_best(best)
    except FileNotFoundError:
        return None
    except (CheckpointError, ValueError) as problem:
        report(f"{path} is not used: {problem}")
        return None
    return best if (directory / best["checkpoint"]).is_dir() else None


def numbered(directory: Path) -> list[Path]:
    """The checkpoints, whole or not, oldest first. Links are not among them: a run's checkpoints
    are its own.
    """
    files.refuse_others(directory)
    found = [
        path for path in directory.glob("[0-9]*") if _is_number(path.name) and path.is_dir() and not path.is_symlink()
    ]
    return sorted(found, key=lambda path: int(path.name))  # as numbers: 1000000000 comes after 999999999


def _is_number(name: str) -> bool:
    return NUMBER.fullmatch(name) is not None and name == f"{int(name):09d}"


def state_to_tensors(state: PyTree) -> dict[str, np.ndarray]:
    """One array for each leaf of a State, named by its path."""
    paths = jax.tree_util.tree_flatten_with_path(state, is_leaf=_is_count)[0]
    return {jax.tree_util.keystr(path): np.asarray(leaf, order="C") for path, leaf in paths}


def tensors_to_state(template: PyTree, tensors: dict[str, np.ndarray]) -> PyTree:
    """A State like the template with the saved leaves; every name, shape and type must match."""
    paths, structure = jax.tree_util.tree_flatten_with_path(template, is_leaf=_is_count)
    expected = {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in paths}
    tensors = {name: expected[name] for name in NEW_LEAVES & expected.keys()} | tensors
    missing, unknown = sorted(set(expected) - set(tensors)), sorted(set(tensors) - set(expected))
    if missing or unknown:
        raise CheckpointError(f"the checkpoint does not fit this network: missing {missing}, not expected {unknown}")
    tensors = {name: _widened(tensors[name], leaf) for name, leaf in expected.items()}
    for name, leaf in expected.items():
        saved = tensors[name]
        if (saved.shape, saved.dtype) != (leaf.shape, leaf.dtype):
            raise CheckpointError(
                f"{name} is {saved.dtype}{saved.shape} in the checkpoint but {leaf.dtype}{leaf.shape} in this network"
            )
        if saved.dtype == np.int64 and saved < 0:
            raise CheckpointError(f"{name} is {saved} in the checkpoint: there is no such number of steps")
    return jax.tree.unflatten(
        structure, [_placed_like(leaf, tensors[name]) for (_, leaf), name in zip(paths, expected, strict=True)]
    )


def _widened(saved: np.ndarray, like: np.ndarray) -> np.ndarray:
    """A counter as it is now: it had 32 bits once."""
    return saved.astype(np.int64) if (saved.dtype, like.dtype) == (np.int32, np.int64) else saved


def _is_count(node: Any) -> bool:
    """Whether this is one number of a State, though it has two words: in a file it is one 64-bit
    integer.
    """
    return isinstance(node, Count)


def _placed_like(leaf: Any, array: np.ndarray) -> Any:
    """The array where the leaf is, if that is on several devices: left here, it would be moved
    there at each step.
    """
    if isinstance(leaf, Count):
        return Count(_placed_like(leaf.words, np.asarray(count_of(int(array)).words)))
    return jax.device_put(array, leaf.sharding) if is_on_several(leaf) else array


def _check_finite(tensors: dict[str, np.ndarray]) -> None:
    """Raise NonFiniteError rather than write weights that are lost: they would push out the last
    good checkpoint.
    """
    if fault := _not_finite(tensors):
        raise NonFiniteError(f"{fault}, so this state was not saved; lower learning_rate")


def _not_finite(tensors: dict[str, np.ndarray]) -> str:
    """Which weight or statistic makes a policy useless; "" if none does."""
    for name, tensor in tensors.items():
        if tensor.dtype.kind != "f":
            continue
        if name.startswith(".network") and not np.isfinite(tensor).all():
            return f"the network's {name.removeprefix('.network')} holds NaN or infinity"
        if name.startswith(".normalizer") and np.isnan(tensor).any():
            return f"the normaliser's {name.removeprefix('.normalizer')} holds NaN"
    return ""


def _verified(path: Path, digest: str) -> bytes:
    """What the file holds, checked against its SHA-256."""
    limit = JSON_BYTES.get(path.name, NO_LIMIT)
    if path.name in TENSORS and (size := path.lstat().st_size) > (free := free_memory() or NO_LIMIT):
        raise UnreadableError(
            f"{path} has {size / 1e9:.1f} GB and {free / 1e9:.1f} GB of memory are free; free some, or use a larger machine"
        )
    content = files.read_bytes(path, limit)
    if hashlib.sha256(content).hexdigest() != digest:
        raise CheckpointError(f"{path} is damaged: its SHA-256 is not the manifest's")
    return content


def _sealed(manifest: dict[str, Any]) -> bytes:
    """The manifest's bytes, with their own SHA-256 inside."""
    return files.to_json_bytes(manifest | {"seal": hashlib.sha256(files.to_json_bytes(manifest)).hexdigest()})


def _unsealed(content: bytes, path: Path) -> dict[str, Any]:
    """The manifest in these bytes, checked against its seal, which every format has, and against
    its schema.
    """
    manifest = files.parse_json(content, path / MANIFEST)
    seal = manifest.pop("seal")
    sealed = files.to_json_bytes(manifest | {"seal": seal})
    if content != sealed or seal != hashlib.sha256(files.to_json_bytes(manifest)).hexdigest():
        raise CheckpointError(f"{path / MANIFEST} is damaged: its SHA-256 is not its seal")
    if manifest["format"] != FORMAT:
        raise UnreadableError(
            f"{path} has format {manifest['format']!r}; this Birl reads format {FORMAT}: install the version that wrote it"
        )
    manifest = to_json(from_json(Manifest, manifest, "manifest"))
    steps, named, best = manifest["env_steps"], manifest["sha256"], manifest["progress"].get("best")
    require(0 <= steps < 2**63, f"manifest.env_steps {steps} must lie between 0 and {2**63 - 1:,}")
    require(
        set(named) == {*JSON_BYTES, *TENSORS},
        f"manifest.sha256 names {', '.join(sorted(named))}; not the files of a checkpoint",
    )
    require(
        not _is_number(path.name) or int(path.name) == steps,
        f"manifest.env_steps is {steps}, the directory is another's",
    )
    if best is not None:
        _check_best(best)
    return manifest


def _check_best(best: Any) -> None:
    """ConfigError unless this is what best.json may hold."""
    name = from_json(Best, best, "best").checkpoint
    require(_is_number(name), f"best.checkpoint {name!r} is not the name of a checkpoint, such as 000050000")
