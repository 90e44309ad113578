"""One process at a time in a run directory: a lock that names its holder, is held as long as the
run, and dies with its process.

flock on an open file. The kernel lets go of it when the process ends, however it ends; on NFS,
Linux passes it on to the server, so that other machines see it. Children that are started as
programs do not inherit the file, and those that are forked close it at once. Where a filesystem has
no locks, the file itself is the lock: it is made if it is not there, and one that a dead process of
this machine left is taken over. Whether a process of another machine is dead cannot be seen then,
so the person is asked to remove it.
"""

import errno
import json
import os
import secrets
import socket
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from birl.config import ConfigError
from birl.errors import CheckpointError
from birl.run.files import NO_FOLLOW, NO_WAIT

if sys.platform != "win32":
    import fcntl

LOCK = "run.lock"
NO_LOCKS = (
    errno.ENOLCK,
    errno.ENOSYS,
    errno.ENOTSUP,
    errno.EOPNOTSUPP,
    errno.EINVAL,
)  # what filesystems without locks answer
_held: set[int] = set()  # descriptors of this process's locks


@contextmanager
def locked(run_dir: Path) -> Iterator[None]:
    """Hold this run directory; ConfigError that names the holder if another run does."""
    path = run_dir / LOCK
    descriptor = _lock(path)
    if descriptor is None:
        yield from _held_by_name(path)
        return
    _close_in_children()
    _held.add(descriptor)
    try:
        yield
    finally:
        if descriptor in _held:  # not in a forked copy of the holder
            _held.remove(descriptor)
            with suppress(OSError):
                if _is_at(path, descriptor):  # the directory may be another one by now
                    path.unlink()  # before it is let go: whoever opens it after that makes a new one
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
                with suppress(OSError):  # a full disk: then it is held by somebody without a name
                    os.pwrite(descriptor, _me(), 0)
                return descriptor
        except BlockingIOError:
            holder = _holder_in(os.pread(descriptor, 1000, 0))
            os.close(descriptor)
            raise _in_use(path, holder) from None
        except OSError as problem:
            os.close(descriptor)
            if problem.errno in NO_LOCKS:
                return None
            raise
        os.close(descriptor)  # its holder removed it between our opening and locking it


def _open(path: Path) -> int:
    """The lock file, made if it is not there, and nothing else: a run of a stranger may have put a
    link or a device in its place.
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
        raise CheckpointError(f"{path} is not a file of its own; remove it")
    return descriptor


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _held_by_name(path: Path) -> Iterator[None]:
    """Hold the lock by the file's being there. It appears whole, so an empty one is what `_open`
    left.
    """
    own = path.with_name(f".{LOCK}-{secrets.token_hex(8)}")
    own.write_bytes(_me())
    try:
        while True:
            try:
                os.link(own, path)
                break
            except FileExistsError:
                with open(_open(path), "rb") as file:
                    holder, empty = _holder_in(file.read(1000)), file.tell() == 0
                if not empty and not _is_dead(holder):
                    raise _in_use(path, holder, f"; if it is dead, remove {path}") from None
                path.unlink(missing_ok=True)
    finally:
        own.unlink()
    try:
        yield
    finally:
        with suppress(OSError):
            if path.read_bytes() == _me():
                path.unlink()


def _me() -> bytes:
    return json.dumps({"pid": os.getpid(), "machine": socket.gethostname()}).encode()


def _holder_in(content: bytes) -> tuple[int, str] | None:
    """Process and machine that a lock file names."""
    try:
        match json.loads(content):
            case {"pid": int(pid), "machine": str(machine)} if machine.isprintable():
                return pid, machine
    except (ValueError, RecursionError):
        pass
    return None


def _is_dead(holder: tuple[int, str] | None) -> bool:
    """Whether the holder is known to be gone: a process of this machine that is not there."""
    if sys.platform == "win32" or holder is None or holder[1] != socket.gethostname() or holder[0] <= 0:
        return False
    try:
        os.kill(holder[0], 0)
    except (ProcessLookupError, OverflowError):
        return True
    except PermissionError:
        pass
    return False


def _in_use(path: Path, holder: tuple[int, str] | None, remedy: str = "") -> ConfigError:
    who = "another process" if holder is None else f"process {holder[0]} on {holder[1]}"
    return ConfigError(f"{path.parent} is in use by {who}; wait until it has ended, or stop it{remedy}")


@cache
def _close_in_children() -> None:
    """Have forked copies of this process close its locks, or they would keep them after its
    death.
    """
    os.register_at_fork(after_in_child=_close_all)


def _close_all() -> None:
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()
