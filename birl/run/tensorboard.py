"""TensorBoard event files. Only this file imports the tensorboard package."""

import time
from collections.abc import Mapping
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from birl.run.files import require_real_directory

QUEUED_EVENTS = 1000  # with the default of 10, a burst of writes waits for the disk
FLUSH_SECONDS = 5


class TensorBoardSink:
    """Writes scalars over environment steps. Each process of a run has its own event file."""

    def __init__(self, directory: Path, resume_at: int | None = None) -> None:
        self._writer = _open_writer(directory, resume_at)

    def write(self, env_steps: int, seconds: float, metrics: Mapping[str, float]) -> None:
        values = [Summary.Value(tag=name, simple_value=value) for name, value in metrics.items()]
        self._writer.add_event(Event(wall_time=time.time(), step=env_steps, summary=Summary(value=values)))

    def close(self) -> None:
        self._writer.close()


def _open_writer(directory: Path, resume_at: int | None) -> EventFileWriter:
    require_real_directory(directory)
    writer = EventFileWriter(str(directory), QUEUED_EVENTS, FLUSH_SECONDS)
    if resume_at is not None:
        # TensorBoard drops every earlier point with this step or a later one.
        start = SessionLog(status=SessionLog.START)
        writer.add_event(Event(wall_time=time.time(), step=resume_at + 1, session_log=start))
    return writer
