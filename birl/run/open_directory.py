"""A run directory held open while the run trains."""

import os
from contextlib import suppress
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
        with suppress(FileNotFoundError, NotADirectoryError):
            if os.path.samestat(os.stat(self.path), os.fstat(self._descriptor)):
                return
        raise RunDirectoryError(
            f"{self.path} was removed, moved or replaced while the run was writing there; what was learned in "
            f"{steps:,} steps is not saved. Train again, in a directory that stays in place"
        )

    def close(self) -> None:
        os.close(self._descriptor)
