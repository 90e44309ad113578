"""The manifest of a checkpoint: its schema, its seal, and the files that it may name.

The manifest stores the SHA-256 of every other file, and as `seal` that of its own content.
"""

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from birl.config import from_json, to_json
from birl.errors import CheckpointError, UnreadableError, require
from birl.run import files
from birl.run.changes import Change

FORMAT = 2
MANIFEST = "manifest.json"
SNAPSHOT_NAMES = {1: "world", 2: "snapshot"}  # the snapshot's two files, without their endings, by format
CHECKPOINT_NAME = re.compile("[0-9]{9,19}")


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
    changes: tuple[Change, ...] = ()  # of the settings, by resumes so far


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


def snapshot_files(format: int) -> tuple[str, str]:
    """The names of the snapshot's JSON file and of its tensor file."""
    return f"{SNAPSHOT_NAMES[format]}.json", f"{SNAPSHOT_NAMES[format]}.safetensors"


def files_of(format: int) -> set[str]:
    """The names of a checkpoint's files, without the manifest."""
    return {"config.json", "spaces.json", "state.safetensors", *snapshot_files(format)}


def manifest_bytes(manifest: dict[str, Any]) -> bytes:
    """The content of manifest.json, with its seal; ConfigError if it breaks the schema."""
    from_json(Manifest, manifest, "manifest")
    return files.to_json_bytes(manifest | {"seal": _sha256(manifest)})


def read_manifest(content: bytes, path: Path) -> dict[str, Any]:
    """The manifest of the checkpoint at `path`, checked against its seal and its schema."""
    manifest = files.parse_json(content, path / MANIFEST)
    seal = manifest.pop("seal")
    if content != files.to_json_bytes(manifest | {"seal": seal}) or seal != _sha256(manifest):
        raise CheckpointError(f"{path / MANIFEST} is damaged: its SHA-256 is not its seal")
    _require_known_format(manifest["format"], path)
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


def check_best(best: Any) -> None:
    """Raise ConfigError unless this is what best.json may hold."""
    name = from_json(Best, best, "best").checkpoint
    require(is_checkpoint_name(name), f"best.checkpoint {name!r} is not the name of a checkpoint, such as 000050000")


def is_checkpoint_name(name: str) -> bool:
    """Whether a checkpoint may have this name: its environment steps, at least nine digits."""
    return CHECKPOINT_NAME.fullmatch(name) is not None and name == f"{int(name):09d}"


def _require_known_format(format: Any, path: Path) -> None:
    if format not in tuple(SNAPSHOT_NAMES):
        known = " and ".join(map(str, SNAPSHOT_NAMES))
        raise UnreadableError(
            f"{path} has format {format!r}; this version of Birl reads {known}: install the version that wrote it"
        )


def _sha256(manifest: dict[str, Any]) -> str:
    return hashlib.sha256(files.to_json_bytes(manifest)).hexdigest()
