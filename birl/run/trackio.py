"""Trackio, a local tracker. Only this file imports trackio, and only if a run asks for it."""

import contextlib
import io
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from birl.config import ConfigError
from birl.errors import install_extra
from birl.run.directory import flatten
from birl.run.tracker_id import tracker_id


class TrackioSink:
    """Logs metrics over environment steps. A run directory has one Trackio run.

    Trackio keeps them in its own directory on this machine: `trackio show` shows them.
    """

    def __init__(self, project: str, run_dir: Path, config_json: dict[str, Any], logged_steps: int) -> None:
        self._run = _start(project, run_dir, config_json)
        self._logged_steps = logged_steps  # up to here an earlier process has logged

    def write(self, env_steps: int, seconds: float, metrics: Mapping[str, float]) -> None:
        # A resumed run repeats the steps after its checkpoint; those are logged already.
        if env_steps >= self._logged_steps:
            self._run.log({**metrics, "seconds": seconds}, step=env_steps)

    def close(self) -> None:
        import trackio

        # RuntimeError: a Trackio run that the user began in this process has ended ours already.
        with _without_output(), contextlib.suppress(RuntimeError):
            trackio.finish()


def _start(project: str, run_dir: Path, config_json: dict[str, Any]) -> Any:
    try:
        import trackio
    except ImportError as problem:
        wrong = f"run.trackio {project!r} needs the trackio package"
        raise ConfigError(f"{wrong}: {install_extra('trackio')}") from problem
    # Trackio finds a run again by its name: runs of one name in two directories must differ.
    name = f"{run_dir.name}-{tracker_id(run_dir / 'trackio_id.txt')}"
    try:
        with _without_output():
            return trackio.init(
                project=project,
                name=name,
                config=flatten(config_json),
                resume="allow",
                embed=False,
                auto_log_gpu=False,  # a run is tracked, not the machine
                auto_log_cpu=False,
            )
    except ValueError as problem:  # a project name that it cannot use
        raise ConfigError(f"run.trackio {project!r}: {problem}") from problem


@contextlib.contextmanager
def _without_output() -> Iterator[None]:
    """Hide what Trackio prints, which would break the progress bar."""
    with contextlib.redirect_stdout(io.StringIO()):
        yield
