"""Moving a run's directory aside for another run."""

import itertools
import os
from pathlib import Path

from birl.config import require
from birl.run.lock import LOCK, locked


def move_aside(path: Path) -> Path:
    """Rename a run's directory to PATH.1, or the next number that is free; its new path.

    ConfigError while another process uses the run.
    """
    require(path.name not in ("", ".."), f"run_dir {path} cannot be moved aside; write its whole name")
    with locked(path):
        for n in itertools.count(1):
            aside = path.with_name(f"{path.name}.{n}")
            if not os.path.lexists(aside):
                path.rename(aside)
                break
        (aside / LOCK).unlink(missing_ok=True)  # it moved too, and is not needed there
    return aside
