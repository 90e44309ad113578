"""A lock on a run directory: one process trains there at a time.

The lock is flock on an open file, which names its holder. The kernel releases it when the process
ends, in whatever way. On NFS, Linux passes it to the server, so that other machines see it. Child
programs do not inherit the file, and forked children close it at once.

What takes long to write outside of a locked directory has a lock of its own (`own_partial`): so the
next process knows what was abandoned.

On a filesystem without locks, the existence of the file is the lock. A file that a dead process of
this machine left is taken over. Whether a process of another machine is dead cannot be known, so
the user is asked to remove the file.
"""

import errno
import json
import os
import secrets
import socket
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from birl.config import ConfigError
from birl.errors import CheckpointError
from birl.run.files import NO_FOLLOW, NO_WAIT, PARTIAL, delete, partial_beside

if sys.platform != "win32":
    import fcntl

LOCK = "run.lock"
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL)  # of filesystems without locks
_held: set[int] = set()  # descriptors of this process's locks


@contextmanager
def locked(run_dir: Path) -> Iterator[None]:
    """Lock this run directory; ConfigError that names the holder if it is locked already."""
    path = run_dir / LOCK
    descriptor = _lock(path)
    if descriptor is None:
        yield from _locked_by_existence(path)
        return
    _hold(descriptor)
    try:
        yield
    finally:
        if descriptor in _held:  # not in a forked child
            with suppress(OSError):
                if _is_at(path, descriptor):  # the directory may have been replaced
                    path.unlink()  # before it is released: a process that comes later makes a new file
            _release(descriptor)


@contextmanager
def own_partial(path: Path, make: Callable[[Path], None] = Path.touch) -> Iterator[Path]:
    """A new hidden file beside `path`, or what `make` makes, for what takes long to write.

    It is locked as long as this process writes it, and deleted at the end unless it was renamed.
    """
    partial = partial_beside(path)
    make(partial)
    descriptor = _try_lock(partial)
    try:
        yield partial
    finally:
        delete(partial)
        if descriptor in _held:
            _release(descriptor)


def remove_abandoned(directory: Path, *endings: str) -> None:
    """Delete what `own_partial` made with these endings, if its process has ended.

    Without locks nobody knows that, and everything is left.
    """
    for path in directory.glob(f"{PARTIAL}*"):
        if path.suffix in endings and (descriptor := _try_lock(path)) is not None:
            delete(path)
            _release(descriptor)


def _try_lock(path: Path) -> int | None:
    """The descriptor of this file or directory, locked; None if that cannot be."""
    if sys.platform == "win32":
        return None
    with suppress(OSError):
        access = os.O_RDONLY if path.is_dir() else os.O_RDWR  # NFS locks only what may be written
        descriptor = os.open(path, access | NO_FOLLOW | NO_WAIT)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            raise
        _hold(descriptor)
        return descriptor
    return None


def _hold(descriptor: int) -> None:
    _close_in_children()
    _held.add(descriptor)


def _release(descriptor: int) -> None:
    _held.remove(descriptor)
    os.close(descriptor)


def _lock(path: Path) -> int | None:
    """The descriptor of the locked file; None if this filesystem has no locks."""
    if sys.platform == "win32":
        return None
    while True:
        descriptor = _open(path)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(path, descriptor):
                os.ftruncate(descriptor, 0)
                with suppress(OSError):  # a full disk: then the holder has no name
                    os.pwrite(descriptor, _this_process(), 0)
                return descriptor
        except BlockingIOError:
            holder = _parse_holder(os.pread(descriptor, 1000, 0))
            os.close(descriptor)
            raise _in_use_error(path, holder) from None
        except OSError as problem:
            os.close(descriptor)
            if problem.errno in NO_LOCKS:
                return None
            raise
        os.close(descriptor)  # its holder removed the file after we opened it: try again


def _open(path: Path) -> int:
    """The lock file, made if it does not exist; CheckpointError unless it is a plain file.

    A run that somebody else made may have a link or a device in its place.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | NO_FOLLOW | NO_WAIT, 0o666)
    except OSError as problem:
        if problem.errno not in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
            raise
        raise CheckpointError(f"{path} is not a file; remove it") from problem
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
        os.close(descriptor)
        raise CheckpointError(f"{path} is not a regular file with one name; remove it")
    return descriptor


def _is_at(path: Path, descriptor: int) -> bool:
    """True if the open file is still the one at this path."""
    try:
        return os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _locked_by_existence(path: Path) -> Iterator[None]:
    """Hold the lock as long as the file exists, on a filesystem without locks.

    The file is complete when it appears, so an empty one was left by `_open`.
    """
    own = path.with_name(f".{LOCK}-{secrets.token_hex(8)}")
    own.write_bytes(_this_process())
    try:
        while True:
            try:
                os.link(own, path)
                break
            except FileExistsError:
                with open(_open(path), "rb") as file:
                    holder = _parse_holder(file.read(1000))
                    empty = file.tell() == 0
                if not empty and not _is_dead(holder):
                    raise _in_use_error(path, holder, f"; if it is dead, remove {path}") from None
                path.unlink(missing_ok=True)
    finally:
        own.unlink()
    try:
        yield
    finally:
        with suppress(OSError):
            if path.read_bytes() == _this_process():
                path.unlink()


def _this_process() -> bytes:
    """The content of a lock file that this process holds."""
    return json.dumps({"pid": os.getpid(), "machine": socket.gethostname()}).encode()


def _parse_holder(content: bytes) -> tuple[int, str] | None:
    """The process and the machine that a lock file names; None if it names none."""
    try:
        match json.loads(content):
            case {"pid": int(pid), "machine": str(machine)} if machine.isprintable():
                return pid, machine
    except (ValueError, RecursionError):
        pass
    return None


def _is_dead(holder: tuple[int, str] | None) -> bool:
    """True if the holder was a process of this machine and does not exist any more."""
    if sys.platform == "win32" or holder is None or holder[1] != socket.gethostname() or holder[0] <= 0:
        return False
    try:
        os.kill(holder[0], 0)
    except (ProcessLookupError, OverflowError):
        return True
    except PermissionError:
        pass
    return False


def _in_use_error(path: Path, holder: tuple[int, str] | None, remedy: str = "") -> ConfigError:
    who = "another process" if holder is None else f"process {holder[0]} on {holder[1]}"
    return ConfigError(f"{path.parent} is in use by {who}; wait until it has ended, or stop it{remedy}")


@cache
def _close_in_children() -> None:
    """Let forked children close this process's locks; else they would hold them after its end."""
    os.register_at_fork(after_in_child=_close_all)


def _close_all() -> None:
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()
