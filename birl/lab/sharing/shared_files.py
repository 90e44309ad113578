"""The files of a shared run: their names, their sizes, and the parts that may leave this machine.

Nothing else is uploaded or downloaded: no pickle, no module, no link. No signature is uploaded, for
it would make a run its maker's own when it comes back, and no path, for paths tell the names of a
machine's users and folders.
"""

import dataclasses
import hashlib
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from birl.config import require, to_json
from birl.errors import CheckpointError
from birl.run.checkpoint import LARGEST_JSON, MANIFEST, SNAPSHOT_NAMES, files_of, load_checkpoint, manifest_bytes
from birl.run.directory import (
    CHECKPOINTS,
    CONFIG,
    METRICS,
    POLICY,
    SUMMARY,
    Fork,
    SettingsChange,
    flatten,
    is_checkpoint_name,
)
from birl.run.files import JSON_BYTES, open_to_read, read_bytes, to_json_bytes, write_new
from birl.run.history import FORK_BEFORE, FORKED, RESUMED, RunHistory, comparable_settings

CARD = "README.md"
VIDEO = "replay.mp4"  # the Hub shows a video of this name beside the card
MEGABYTE, GIGABYTE = 1 << 20, 1 << 30
LIMITS = {
    CARD: JSON_BYTES,
    POLICY: 4 * GIGABYTE,
    CONFIG: JSON_BYTES,
    SUMMARY: JSON_BYTES,
    METRICS: GIGABYTE,
    VIDEO: 256 * MEGABYTE,
}
CHECKPOINT_FILES = {MANIFEST}.union(*map(files_of, SNAPSHOT_NAMES))
CHECKPOINT_TENSORS = 16 * GIGABYTE  # a replay of a million Atari frames takes 7
OWNER_AND_NAME = re.compile(r"(?!-)[A-Za-z0-9-]{1,96}/[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9_])?")
OF_THIS_MACHINE = {"run": ("run_dir", "wandb", "trackio"), "env": ("ray_address",)}  # set to None
HISTORY = (FORKED, FORK_BEFORE, RESUMED)
CHUNK = 1 << 20


def size_limit(name: str) -> int | None:
    """The largest size of a file of this name; None if no shared run has such a file."""
    if name in LIMITS:
        return LIMITS[name]
    match name.split("/"):
        case [folder, checkpoint, file] if folder == CHECKPOINTS and is_checkpoint_name(checkpoint):
            if file not in CHECKPOINT_FILES:
                return None
            if file.endswith(".safetensors"):
                return CHECKPOINT_TENSORS
            return JSON_BYTES if file in (CONFIG, MANIFEST) else LARGEST_JSON
    return None


def leaves_directory(name: str) -> bool:
    """True if this path would lead out of the directory that it is below."""
    path = PurePosixPath(name.replace("\\", "/"))
    return path.is_absolute() or ".." in path.parts or re.match("[A-Za-z]:", name) is not None


def require_repository(repository: str) -> None:
    """Raise ConfigError unless this may be the name of a repository."""
    known = OWNER_AND_NAME.fullmatch(repository) and not re.search(r"--|\.\.", repository)
    remedy = "write OWNER/NAME, with letters, digits, -, _ and . (not doubled)"
    require(bool(known), f"repository {repository!r} is not one of the Hub; {remedy}")


def pulled_directory(repository: str) -> Path:
    """The default directory of a repository that is pulled."""
    return Path("runs") / repository.replace("/", "--")


def size_text(size: int) -> str:
    """A number of bytes in words."""
    for unit, name in ((GIGABYTE, "GB"), (MEGABYTE, "MB"), (1 << 10, "kB")):
        if size >= unit:
            return f"{size / unit:.1f} {name}"
    return f"{size} bytes"


def public_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """A run's settings, as JSON, without what belongs to this machine; paths become file names."""
    found: dict[str, Any] = without_paths(settings)
    for part, names in OF_THIS_MACHINE.items():
        values = found.get(part)
        if isinstance(values, dict):
            found[part] = values | {name: None for name in names if name in values}
    return found


def changed_on_upload(settings: dict[str, Any]) -> list[str]:
    """The settings that are uploaded otherwise than they are, as sentences; not run_dir."""
    before, after = flatten(settings), flatten(public_settings(settings))
    return [
        f"{name} {before[name]!r} is uploaded as {value!r}"
        for name, value in after.items()
        if value != before[name] and name != "run.run_dir"
    ]


def public_history(run: RunHistory, directory: Path) -> RunHistory:
    """The run as others may see it, for the text of a card; `directory` is what is shared."""
    below = run.run_dir.resolve().relative_to(directory.resolve())
    config = public_settings(run.config)
    forked = {name: without_paths(run.settings[name]) for name in HISTORY if name in run.settings}
    return dataclasses.replace(
        run,
        run_dir=below if below.parts else Path(directory.resolve().name),
        settings=comparable_settings(str(run.settings["algorithm"]), config) | forked,
        summary=None if run.summary is None else public_summary(run.summary),
        config=config,
        fork=None if run.fork is None else _public_fork(run.fork),
        changes=public_changes(run.changes),
    )


def public_summary(summary: dict[str, Any]) -> dict[str, Any]:
    """The content of summary.json without the run's directory."""
    return without_paths({name: value for name, value in summary.items() if name != "run_dir"})


def public_changes(changes: Sequence[SettingsChange]) -> tuple[SettingsChange, ...]:
    """The changes of a run's settings without paths."""
    return tuple(dataclasses.replace(change, changed=without_paths(change.changed)) for change in changes)


def unsigned_config(algorithm: str, settings: dict[str, Any], changes: Sequence[SettingsChange]) -> bytes:
    """The content of a config.json that nobody has signed."""
    return to_json_bytes({"algorithm": algorithm, "config": settings, "changes": to_json(changes), "signature": None})


def write_unsigned_checkpoint(path: Path, out: Path, change: Callable[[dict[str, Any]], dict[str, Any]] = dict) -> None:
    """Write a copy of a checkpoint, which is verified first, without its signature.

    `change` makes its settings. CheckpointError if it is damaged.
    """
    saved = load_checkpoint(path)
    config = to_json_bytes(change(saved.config))
    progress = saved.manifest["progress"]
    progress = progress | {"changes": without_paths(progress["changes"])}
    manifest = saved.manifest | {"signature": None, "progress": progress}
    manifest["sha256"] = manifest["sha256"] | {CONFIG: hashlib.sha256(config).hexdigest()}
    out.mkdir(parents=True)
    for name in manifest["sha256"]:
        if name != CONFIG:
            copy_file(path / name, out / name)
    write_new(out / CONFIG, config)
    write_new(out / MANIFEST, manifest_bytes(manifest))


def require_no_home(path: Path) -> None:
    """Raise CheckpointError if a text file names the user's home directory."""
    home = os.path.expanduser("~")
    if len(home) > 1 and home.encode() in read_bytes(path, 1 << 30):
        raise CheckpointError(f"{path} names the directory {home} of this machine; push without --checkpoint")


def copy_file(source: Path, out: Path) -> None:
    """Copy a regular file to a new one."""
    with open_to_read(source) as file, out.open("xb") as copy:
        while part := file.read(CHUNK):
            copy.write(part)


def without_paths(value: Any) -> Any:
    """A JSON value in which every path of this machine is only the name of its file."""
    match value:
        case dict():
            return {name: without_paths(one) for name, one in value.items()}
        case list() | tuple():
            return [without_paths(one) for one in value]
        case str():
            return _without_path(value)
    return value


def _without_path(text: str) -> str:
    if PurePosixPath(text).is_absolute() or text.startswith("~"):
        return PurePosixPath(text).name
    if PureWindowsPath(text).is_absolute():
        return PureWindowsPath(text).name
    home = os.path.expanduser("~")
    return text.replace(home, "~") if len(home) > 1 else text


def _public_fork(fork: Fork) -> Fork:
    changed = {name: (without_paths(old), without_paths(new)) for name, (old, new) in fork.changed.items()}
    return dataclasses.replace(fork, parent=Path(fork.parent.name), changed=changed)
