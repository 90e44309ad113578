"""Reading and writing the files of a run, safely.

A run directory may come from somebody else, or from a failing disk. So only regular files of a
limited size are read: nothing here waits for a pipe or reads a device. Files are written completely
or not at all, and never through a symbolic link. What is half written or half removed has a random
name that begins with PARTIAL; the next start of the run deletes it.
"""

import contextlib
import errno
import json
import math
import os
import secrets
import shutil
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from birl.errors import CheckpointError, UnreadableError

PARTIAL = ".partial-"
NO_FOLLOW, NO_WAIT = (0, 0) if sys.platform == "win32" else (os.O_NOFOLLOW, os.O_NONBLOCK)
JSON_BYTES = 1 << 20  # the default limit; settings and summaries are a few kB
JSON_DEPTH = 100  # objects within objects
JSON_DIGITS = 40  # a random generator's state has 128 bits


def open_to_read(path: Path) -> BinaryIO:
    """The file, open for reading; CheckpointError unless it is a regular file. Never blocks."""
    try:
        descriptor = os.open(path, os.O_RDONLY | NO_FOLLOW | NO_WAIT)
    except OSError as problem:
        if problem.errno == errno.ELOOP:
            raise CheckpointError(f"{path} is a symbolic link; put the file itself there") from problem
        if problem.errno == errno.ENXIO:
            raise CheckpointError(f"{path} is a socket or a device; put a regular file there") from problem
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise CheckpointError(f"{path} is not a regular file; put one there")
    return os.fdopen(descriptor, "rb")


def open_to_append(path: Path) -> BinaryIO:
    """The file, open for writing at its end, made if it does not exist; as `open_to_read`."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | NO_FOLLOW | NO_WAIT, 0o666)
    except OSError as problem:
        if problem.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
            raise CheckpointError(f"{path} is not a regular file; remove it") from problem
        raise
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
        os.close(descriptor)
        raise CheckpointError(f"{path} is not a regular file with one name; remove it")
    return os.fdopen(descriptor, "ab", buffering=0)


def read_bytes(path: Path, limit: int = JSON_BYTES) -> bytes:
    """The content of the file; CheckpointError if it has more than `limit` bytes."""
    with open_to_read(path) as file:
        return file.read(require_size(file, path, limit))


def require_size(file: BinaryIO, path: Path, limit: int) -> int:
    """The size of the file in bytes; CheckpointError if it is more than `limit`."""
    size = os.fstat(file.fileno()).st_size
    if size > limit:
        raise CheckpointError(f"{path} has {size:,} bytes; at most {limit:,} are read")
    return size


def require_memory(path: Path, times: int, free: int | None) -> None:
    """Raise UnreadableError unless so many times the file's size are free; None: it is unknown."""
    needed = times * path.lstat().st_size
    if free is not None and needed > free:
        raise UnreadableError(
            f"{path} needs {needed / 1e9:.1f} GB and {free / 1e9:.1f} GB of memory are free; "
            "free some, or use a larger machine"
        )


def read_json(path: Path, limit: int = JSON_BYTES) -> Any:
    """The value in a JSON file; CheckpointError if it is not valid JSON."""
    return parse_json(read_bytes(path, limit), path)


def parse_json(content: bytes, path: Path) -> Any:
    """The value in the content of this file; CheckpointError unless it is strict JSON.

    Numbers must be finite and values nested at most JSON_DEPTH deep.
    """
    try:
        value = json.loads(content.decode(), parse_int=_to_int, parse_float=_to_float, parse_constant=_to_float)
        _require_shallow(value)
    except (ValueError, RecursionError) as problem:
        raise CheckpointError(f"{path} is damaged: {problem}") from problem
    return value


def to_json_bytes(value: Any) -> bytes:
    """The value as strict JSON."""
    return (json.dumps(value, indent=1, allow_nan=False) + "\n").encode()


def strict_json(value: Any) -> Any:
    """The value as strict JSON: tuples are lists, paths are text, what is not finite is null."""
    match value:
        case dict():
            return {str(name): strict_json(one) for name, one in value.items()}
        case list() | tuple():
            return [strict_json(one) for one in value]
        case Path():
            return str(value)
        case float() if not math.isfinite(value):
            return None
    return value


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write to; it replaces the one at `path` once all of it is on the disk."""
    partial = partial_beside(path)
    try:
        with os.fdopen(_create(partial), "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file completely or not at all."""
    content = to_json_bytes(value)
    with replacing(path) as file:
        file.write(content)


def write_new(path: Path, content: bytes) -> None:
    """Write a file that must not exist yet, and wait until it is on the disk."""
    with os.fdopen(_create(path), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync_directory(path: Path) -> None:
    """Wait until the names in this directory are on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directory(path: Path) -> Path:
    """This directory, made if it does not exist, without its parents."""
    with contextlib.suppress(FileExistsError):
        path.mkdir()
    require_real_directory(path)
    return path


def require_real_directory(path: Path) -> None:
    """Raise CheckpointError if this exists and is a symbolic link, or not a directory.

    Behind a link, other people's files would be written or removed.
    """
    if path.is_symlink():
        raise CheckpointError(
            f"{path} is a symbolic link; put the directory itself there, or make the whole run directory a link"
        )
    if path.exists() and not path.is_dir():
        raise CheckpointError(f"{path} is not a directory; move it away")


def remove(path: Path) -> None:
    """Delete a directory. It is renamed first, so that no one reads half of it."""
    aside = partial_beside(path)
    path.rename(aside)
    delete(aside)


def remove_partial(directory: Path) -> None:
    """Delete what killed processes left half written or half removed."""
    for path in directory.glob(f"{PARTIAL}*"):
        delete(path)


def partial_beside(path: Path) -> Path:
    """A random hidden name in the same directory, with the same ending."""
    return path.with_name(f"{PARTIAL}{secrets.token_hex(8)}{path.suffix}")


def delete(path: Path) -> None:
    """Delete a file or a directory, as far as that can be done."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()


def _create(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | NO_FOLLOW, 0o666)


def _to_int(digits: str) -> int:
    if len(digits) > JSON_DIGITS:
        raise ValueError(f"a number of {len(digits)} digits")
    return int(digits)


def _to_float(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"{text} is not a finite number")
    return value


def _require_shallow(value: Any) -> None:
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(JSON_DEPTH):
        parts = (part for one in level for part in (one.values() if isinstance(one, dict) else one))
        level = [part for part in parts if isinstance(part, dict | list)]
        if not level:
            return
    raise ValueError(f"it is nested more than {JSON_DEPTH} deep")
