"""A run directory held open while the run trains."""

import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from birl.errors import RunDirectoryError


class OpenDirectory:
    """A run directory held open, so that its removal or replacement is noticed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # While it is open, no other directory can get its inode number.
        self._descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)

    def require_in_place(self, steps: int) -> None:
        """Raise RunDirectoryError if this is no longer the directory that the run began in."""
        if not self.is_in_place():
            raise RunDirectoryError(
                f"{self.path} was removed, moved or replaced while the run was writing there; what was learned in "
                f"{steps:,} steps is not saved. Train again, in a directory that stays in place"
            )

    def is_in_place(self) -> bool:
        """Whether this is still the directory that was opened."""
        with suppress(FileNotFoundError, NotADirectoryError):
            return os.path.samestat(os.stat(self.path), os.fstat(self._descriptor))
        return False

    def close(self) -> None:
        os.close(self._descriptor)


@contextmanager
def staying_in_place(path: Path) -> Iterator[Callable[[], None]]:
    """Work on the runs in this directory; gives a function that checks whether it is still there.

    If it is not, RunDirectoryError is raised, also instead of the error that follows from that.
    """

    def require_in_place() -> None:
        wrong = f"{path} was removed, moved or replaced while its runs were training; what they learned is not there"
        if not directory.is_in_place():
            raise RunDirectoryError(f"{wrong}. Train again, in a directory that stays in place")

    with closing(OpenDirectory(path)) as directory:
        try:
            yield require_in_place
        except Exception:
            require_in_place()
            raise
