"""The checkpoints of a run: writing them atomically, verifying them, and which are kept.

checkpoints/best.json     which checkpoint is the best, and its score
checkpoints/000123456/
    manifest.json         format, algorithm, counters, versions, signature of the settings (see
                          trust.py), SHA-256 of each other file, and as `seal` of its own content
    config.json           the complete settings
    spaces.json           observation and action space: a policy loads without its environment
    state.safetensors     the algorithm's State, one tensor for each leaf, named by its path
    snapshot.safetensors  the snapshot's arrays: environments, memory, counters
    snapshot.json         the snapshot's other values

Only JSON and safetensors: nothing in these files can run code. The manifest is written last. Format
1 named the snapshot's files world.safetensors and world.json.
"""

import hashlib
import shutil
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from birl.config import from_json, to_json
from birl.envs.spaces import space_from_json, space_to_json
from birl.errors import CheckpointError, NonFiniteError, UnreadableError, require
from birl.nets.allowance import allowed_numbers
from birl.run import files
from birl.run.directory import SettingsChange, is_checkpoint_name
from birl.run.state_tensors import non_finite_leaf, state_to_tensors, with_current_names
from birl.run.trust import sign
from birl.run.versions import versions
from birl.types import PyTree, Snapshot
from birl.workers.child import free_memory

FORMAT = 2
MANIFEST = "manifest.json"
SNAPSHOT_NAMES = {1: "world", 2: "snapshot"}  # the snapshot's two files, without their endings, by format
LARGEST_JSON = 1 << 26  # bytes; config.json has a lower limit
NO_LIMIT = 1 << 62  # tensors may be as large as the free memory
DAMAGE = (
    ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError, SafetensorError,
)  # fmt: skip
BEST = "best.json"


@dataclass(frozen=True)
class Best:
    """The schema of best.json."""

    checkpoint: str
    return_mean: float


@dataclass(frozen=True)
class InexactResumeEntry:
    """A resume after which the run was no longer the uninterrupted one."""

    env_steps: int  # where the run was resumed
    reason: str


@dataclass(frozen=True)
class Progress:
    """The schema of a manifest's `progress`: what a run keeps besides its State and snapshot."""

    wall_seconds: float = 0.0
    cpu_seconds: float = 0.0
    best: Best | None = None
    evaluation_due: bool = False  # a signal came before the evaluation of this update was finished
    inexact_resumes: tuple[InexactResumeEntry, ...] = ()  # so far; the manifest's `exact` is about the next resume
    masks: bool = False  # the environments gave action masks
    changes: tuple[SettingsChange, ...] = ()  # of the settings, by resumes so far


@dataclass(frozen=True)
class Manifest:
    """The schema of manifest.json. Other fields are refused."""

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


def save_checkpoint(
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
    return write_checkpoint(directory, algorithm, config, spaces, int(state.env_steps), tensors, snapshot, progress)


def write_checkpoint(
    directory: Path,
    algorithm: str,
    config: Any,
    spaces: tuple[gym.Space, gym.Space],
    env_steps: int,
    tensors: dict[str, np.ndarray],
    snapshot: Snapshot,
    progress: dict[str, Any],
) -> Path:
    """Write a checkpoint of a State that was converted to tensors; its path."""
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


def load_checkpoint(path: Path) -> Checkpoint:
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


def checkpoints_in(directory: Path) -> list[Path]:
    """The checkpoints, damaged ones too, oldest first. Symbolic links are left out."""
    files.require_real_directory(directory)
    found = (path for path in directory.glob("[0-9]*") if is_checkpoint_name(path.name))
    real = [path for path in found if path.is_dir() and not path.is_symlink()]
    return sorted(real, key=lambda path: int(path.name))  # as numbers: 1000000000 comes after 999999999


def load_newest(directory: Path, report: Callable[[str], object]) -> Checkpoint | None:
    """The newest undamaged checkpoint; None if there are none. Damaged ones are reported."""
    return load_first(reversed(checkpoints_in(directory)), directory, report)


def load_first(paths: Iterable[Path], directory: Path, report: Callable[[str], object]) -> Checkpoint | None:
    """The first of these checkpoints that is undamaged; None if there are none.

    Damaged ones are reported and skipped; CheckpointError if all are damaged.
    """
    problems: list[str] = []
    for path in paths:
        try:
            saved = load_checkpoint(path)
        except UnreadableError:
            raise  # skipping it would throw away what was learned since the one before
        except CheckpointError as problem:
            problems.append(str(problem))
            continue
        for text in problems:
            report(f"{text}; using {path.name} instead")
        return saved
    if problems:
        remedy = "restore one from a backup, or train again in another run_dir"
        raise CheckpointError(f"no checkpoint in {directory} can be read: {'; '.join(problems)}; {remedy}")
    return None


def set_aside(directory: Path, after: int) -> None:
    """Hide damaged checkpoints beyond this step: `prune` would keep them as the newest."""
    for path in checkpoints_in(directory):
        if int(path.name) > after:
            path.rename(files.partial_beside(path))


def prune(directory: Path, keep: int, keep_every: int = 0) -> None:
    """Remove all checkpoints but those to keep, and what a killed process left.

    Kept are the newest `keep`, the best, and the first after every `keep_every` steps.
    """
    best = read_best(directory)
    found = checkpoints_in(directory)
    for_good = kept_for_good(found, keep_every)
    for path in found[: -max(keep, 1)]:
        if path not in for_good and (best is None or path.name != best["checkpoint"]):
            with suppress(OSError):
                files.remove(path)
    files.remove_partial(directory)


def kept_for_good(paths: Sequence[Path], every: int) -> list[Path]:
    """The checkpoints that are the first at or after a multiple of `every` steps; none for 0.

    `paths` are in the order of their steps. Their names alone decide, so it does not matter which
    processes wrote them.
    """
    if every == 0:
        return []
    first: dict[int, Path] = {}
    for path in paths:
        first.setdefault(int(path.name) // every, path)
    return [path for multiple, path in first.items() if multiple > 0]


def mark_best(directory: Path, best: dict[str, Any] | None) -> None:
    """Store {"checkpoint": name, "return_mean": score} as the best checkpoint; None: there is none.

    The best is never pruned, and a run's policy is loaded from it.
    """
    if best is None:
        (directory / BEST).unlink(missing_ok=True)
    else:
        files.write_json(directory / BEST, best)


def read_best(directory: Path, report: Callable[[str], object] = bool) -> dict[str, Any] | None:
    """The best checkpoint and its score; None if there is none. A damaged file is reported."""
    path = directory / BEST
    try:
        best = files.read_json(path)
        check_best(best)
    except FileNotFoundError:
        return None
    except (CheckpointError, ValueError) as problem:
        report(f"{path} is not used: {problem}")
        return None
    return best if (directory / best["checkpoint"]).is_dir() else None


def snapshot_files(format: int) -> tuple[str, str]:
    """The names of the snapshot's JSON file and of its tensor file."""
    return f"{SNAPSHOT_NAMES[format]}.json", f"{SNAPSHOT_NAMES[format]}.safetensors"


def files_of(format: int) -> set[str]:
    """The names of a checkpoint's files, without the manifest."""
    return {"config.json", "spaces.json", "state.safetensors", *snapshot_files(format)}


def read_manifest(content: bytes, path: Path) -> dict[str, Any]:
    """The manifest of the checkpoint at `path`, checked against its seal and its schema."""
    manifest = files.parse_json(content, path / MANIFEST)
    seal = manifest.pop("seal")
    if content != files.to_json_bytes(manifest | {"seal": seal}) or seal != _sha256(manifest):
        raise CheckpointError(f"{path / MANIFEST} is damaged: its SHA-256 is not its seal")
    if (format := manifest["format"]) not in tuple(SNAPSHOT_NAMES):
        known = " and ".join(map(str, SNAPSHOT_NAMES))
        raise UnreadableError(
            f"{path} has format {format!r}; this version of Birl reads {known}: install the version that wrote it"
        )
    manifest = to_json(from_json(Manifest, manifest, "manifest"))
    steps = manifest["env_steps"]
    require(0 <= steps < 2**63, f"manifest.env_steps {steps} must lie between 0 and {2**63 - 1:,}")
    named = manifest["sha256"]
    wrong = f"manifest.sha256 names {', '.join(sorted(named))}"
    require(set(named) == files_of(manifest["format"]), f"{wrong}; these are not the files of a checkpoint")
    same = not is_checkpoint_name(path.name) or int(path.name) == steps
    require(same, f"manifest.env_steps is {steps}, but the directory is {path.name}")
    if (best := manifest["progress"].get("best")) is not None:
        check_best(best)
    return manifest


def memory_limit(path: Path) -> int:
    """The number of bytes of this file that may be read; UnreadableError if memory is short."""
    files.require_memory(path, 2, free_memory())  # for its bytes, and for the arrays in them
    return NO_LIMIT


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


def manifest_bytes(manifest: dict[str, Any]) -> bytes:
    """The content of manifest.json, with its seal; ConfigError if it breaks the schema."""
    from_json(Manifest, manifest, "manifest")
    return files.to_json_bytes(manifest | {"seal": _sha256(manifest)})


def check_best(best: Any) -> None:
    """Raise ConfigError unless this is what best.json may hold."""
    name = from_json(Best, best, "best").checkpoint
    require(is_checkpoint_name(name), f"best.checkpoint {name!r} is not the name of a checkpoint, such as 000050000")


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
    is_json = path.suffix == ".json"
    json_limit = files.JSON_BYTES if path.name == "config.json" else LARGEST_JSON
    content = files.read_bytes(path, json_limit if is_json else memory_limit(path))
    if hashlib.sha256(content).hexdigest() != digest:
        raise CheckpointError(f"{path} is damaged: its SHA-256 is not the manifest's")
    return content


def _sha256(manifest: dict[str, Any]) -> str:
    return hashlib.sha256(files.to_json_bytes(manifest)).hexdigest()
