"""The files of a shared run: which names they may have, and how large they may be.

Nothing else is uploaded or downloaded: no pickle, no module, no link.
"""

import re
from pathlib import Path, PurePosixPath

from birl.config import require
from birl.run.checkpoint import LARGEST_JSON, MANIFEST, SNAPSHOT_NAMES, files_of
from birl.run.directory import CHECKPOINTS, CONFIG, METRICS, POLICY, SUMMARY, is_checkpoint_name
from birl.run.files import JSON_BYTES

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


def size_limit(name: str) -> int | None:
    """How many bytes a file of this name may have; None if no shared run has such a file."""
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
    """Whether this path would lead out of the directory that it is below."""
    path = PurePosixPath(name.replace("\\", "/"))
    return path.is_absolute() or ".." in path.parts or re.match("[A-Za-z]:", name) is not None


def require_repository(repository: str) -> None:
    """Raise ConfigError unless this may be the name of a repository."""
    known = OWNER_AND_NAME.fullmatch(repository) and not re.search(r"--|\.\.", repository)
    remedy = "write OWNER/NAME, with letters, digits, -, _ and . (not doubled)"
    require(bool(known), f"repository {repository!r} is not one of the Hub; {remedy}")


def pulled_directory(repository: str) -> Path:
    """Where a repository is pulled to by default."""
    return Path("runs") / repository.replace("/", "--")


def size_text(size: int) -> str:
    """A number of bytes in words."""
    for unit, name in ((GIGABYTE, "GB"), (MEGABYTE, "MB"), (1 << 10, "kB")):
        if size >= unit:
            return f"{size / unit:.1f} {name}"
    return f"{size} bytes"
