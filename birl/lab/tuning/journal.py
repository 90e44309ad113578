"""The journal of a search: what has happened, a JSON object a line, which all workers append to.

Who writes holds the lock of the directory, so that machines on one file system share a journal. A
line that a killed process left half written is skipped.
"""

import json
import os
import random
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from birl.config import ConfigError
from birl.errors import CheckpointError
from birl.run.files import open_to_append, open_to_read, parse_json
from birl.run.lock import locked

JOURNAL = "journal.jsonl"
MOST_BYTES = 1 << 28
LINE_BYTES = 1 << 16
LOCK_SECONDS = 120.0  # how long to wait for another worker, which holds the lock for a moment
Event = dict[str, Any]


class Journal:
    """The events of a search. `read` gives those that are new since the last call."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._path = directory / JOURNAL
        self._offset = 0

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the search's lock; waits for it."""
        with waiting_for(self.directory):
            yield

    def read(self) -> list[Event]:
        """The events that were appended since the last call."""
        try:
            with open_to_read(self._path) as file:
                if os.fstat(file.fileno()).st_size > MOST_BYTES:
                    raise CheckpointError(f"{self._path} has more than {MOST_BYTES:,} bytes")
                file.seek(self._offset)
                content = file.read()
        except FileNotFoundError:
            return []
        whole, newline, _ = content.rpartition(b"\n")
        self._offset += len(whole) + len(newline)
        return [event for line in whole.splitlines() if (event := self._parse(line)) is not None]

    def append(self, *events: Event) -> None:
        """Add events, in one write; call it with the lock."""
        lines = [json.dumps(event | {"at": time.time()}, allow_nan=False) + "\n" for event in events]
        with open_to_append(self._path) as file:
            start = "\n" if self._is_cut() else ""
            file.write((start + "".join(lines)).encode())
            os.fsync(file.fileno())

    def _is_cut(self) -> bool:
        """Whether the last line has no end, because its writer was killed."""
        with open_to_read(self._path) as file:
            size = os.fstat(file.fileno()).st_size
            if size == 0:
                return False
            file.seek(size - 1)
            return file.read(1) != b"\n"

    def _parse(self, line: bytes) -> Event | None:
        if len(line) > LINE_BYTES:
            return None
        try:
            event = parse_json(line, self._path)
        except CheckpointError:
            return None
        return event if isinstance(event, dict) and isinstance(event.get("event"), str) else None


def process_name(pid: int) -> str:
    """The beginning of the name of the worker in this process of this machine."""
    return f"{socket.gethostname()}-{pid}-"


@contextmanager
def waiting_for(directory: Path) -> Iterator[None]:
    """Hold the lock of a directory; waits until its holder lets go of it."""
    last = time.monotonic() + LOCK_SECONDS
    while True:
        held = locked(directory)
        try:
            held.__enter__()
        except ConfigError:  # in use
            if time.monotonic() > last:
                raise
            time.sleep(random.uniform(0.01, 0.05))
            continue
        break
    try:
        yield
    finally:
        held.__exit__(None, None, None)
