"""The id that a run has at a tracker, made once, so that a resumed run keeps its curves."""

import os
import re
import secrets
from pathlib import Path

from birl.errors import CheckpointError
from birl.run import files


def tracker_id(path: Path) -> str:
    """The id in this file of the run directory; it is made if there is none."""
    if not os.path.lexists(path):
        files.write_new(path, f"{secrets.token_hex(6)}\n".encode())
    written = files.read_bytes(path).strip()
    if not re.fullmatch(b"[0-9a-f]{12}", written):
        raise CheckpointError(f"{path} is damaged: it must hold 12 hexadecimal digits; remove it to start new curves")
    return written.decode()
