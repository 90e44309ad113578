"""TensorBoard event files. Only this file imports the tensorboard package."""

import json
import re
import time
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.hparams.summary_v2 import hparams_pb
from tensorboard.plugins.text.summary_v2 import text_pb
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from birl.config import from_json, is_atari
from birl.maths import schedules
from birl.maths.schedules import Schedule
from birl.run.directory import flatten
from birl.run.files import require_real_directory

QUEUED_EVENTS = 1000  # with the default of 10, a burst of writes waits for the disk
FLUSH_SECONDS = 5
LONGEST_TEXT = 100  # characters of a hyperparameter that is a list
OF_THE_RUN = ("run.seed", "run.total_steps")  # the other run settings change no result


class TensorBoardSink:
    """Writes scalars over environment steps. Each process of a run has its own event file.

    The settings of the run are a text, and hyperparameters to compare runs by.
    """

    def __init__(self, directory: Path, settings: dict[str, Any], resume_at: int | None = None) -> None:
        self._writer = _open_writer(directory, resume_at)
        # A resumed run may have other settings: TensorBoard shows both texts.
        self._add(resume_at or 0, text_pb("config", f"```json\n{json.dumps(settings, indent=2)}\n```"))
        # Without a list of columns, TensorBoard finds those of all runs that it compares.
        self._add(resume_at or 0, hparams_pb(hyperparameters(settings)))

    def write(self, env_steps: int, seconds: float, metrics: Mapping[str, float]) -> None:
        values = [Summary.Value(tag=name, simple_value=value) for name, value in metrics.items()]
        self._add(env_steps, Summary(value=values))

    def close(self) -> None:
        self._writer.close()

    def _add(self, env_steps: int, summary: Summary) -> None:
        self._writer.add_event(Event(wall_time=time.time(), step=env_steps, summary=summary))


def hyperparameters(settings: dict[str, Any]) -> dict[str, bool | int | float | str]:
    """The settings of a run that can change its result, by dotted name; None is left out."""
    flat = flatten({name: _as_one_value(value) for name, value in settings.items()})
    uses_atari = is_atari(flat.get("env.id", ""))
    return {
        name: json.dumps(value)[:LONGEST_TEXT] if isinstance(value, list) else value
        for name, value in flat.items()
        if value is not None
        and (name in OF_THE_RUN or not name.startswith("run."))
        and (uses_atari or not name.startswith("env.atari."))
    }


def _as_one_value(value: Any) -> Any:
    """A schedule as the command line writes it; any other setting as it is."""
    if not isinstance(value, dict) or value.keys() != {field.name for field in fields(Schedule)}:
        return value
    return schedules.shown(from_json(Schedule, value))


def _open_writer(directory: Path, resume_at: int | None) -> EventFileWriter:
    require_real_directory(directory)
    _wait_for_a_later_name(directory)
    writer = EventFileWriter(str(directory), QUEUED_EVENTS, FLUSH_SECONDS)
    if resume_at is not None:
        # TensorBoard drops every earlier point with this step or a later one.
        start = SessionLog(status=SessionLog.START)
        writer.add_event(Event(wall_time=time.time(), step=resume_at + 1, session_log=start))
    return writer


def _wait_for_a_later_name(directory: Path) -> None:
    """Wait until a new event file will be read after those that are there: at most a second.

    TensorBoard reads them by name, which begins with the second. The rest of the name does not
    increase with time.
    """
    names = [path.name for path in directory.glob("events.*")]
    seconds = [int(found[1]) for name in names if (found := re.match(r"events\.\D+\.(\d+)\.", name))]
    while int(time.time()) in seconds:
        time.sleep(0.05)
