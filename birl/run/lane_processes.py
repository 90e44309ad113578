"""Lanes as processes of this machine, some at a time: each is `birl resume` of its directory.

What a lane prints goes to console.log in its directory.
"""

import os
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from birl.errors import CheckpointError
from birl.run.files import open_to_append, open_to_read
from birl.run.lane import LOG, LaneEnd, LaneOptions
from birl.workers.child import Program, SignalRelay, describe_exit, start_program

POLL_SECONDS = 0.1  # between two looks at the processes
TAIL_BYTES = 10_000  # of the log, in which the reason of a failure is
# One thread for each lane, whatever runs beside it: its result must not depend on that. JAX would
# reserve most of a GPU's memory for the first lane.
VARIABLES = {
    "NPROC": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
}


def run_processes(
    run_dirs: Sequence[Path], options: LaneOptions, jobs: int, signals: Sequence[int]
) -> Iterator[LaneEnd | None]:
    """Train these lanes, `jobs` at a time; how each ends, and None while nothing has happened.

    `signals` are those that this process has received. They are passed on to the lanes, which save
    and end; no other lane is started. If the iterator is closed, lanes that still run are killed.
    """
    waiting = list(run_dirs)
    running: dict[Path, tuple[Program, int]] = {}
    relay = SignalRelay(signals)
    try:
        while running or (waiting and not signals):
            while waiting and len(running) < jobs and not signals:
                run_dir = waiting.pop(0)
                try:
                    running[run_dir] = start_lane(run_dir, options)
                except (OSError, CheckpointError) as problem:
                    yield LaneEnd(run_dir, str(problem))
            relay.pass_on(program for program, _ in running.values())
            for run_dir, (program, log_start) in list(running.items()):
                if (code := program.code()) is not None:
                    del running[run_dir]
                    yield lane_end(run_dir, code, log_start, bool(signals))
            yield None
            time.sleep(POLL_SECONDS)
    finally:
        for program, _ in running.values():
            program.kill()


def start_lane(run_dir: Path, options: LaneOptions) -> tuple[Program, int]:
    """Start the process of a lane; where its part of the log begins, in bytes."""
    with open_to_append(run_dir / LOG) as log:
        begin = os.fstat(log.fileno()).st_size
        words = ["resume", str(run_dir), *options.of(run_dir).words()]
        return start_program("birl.cli.lane", words, log.fileno(), lane_variables()), begin


def lane_variables() -> dict[str, str]:
    """The environment variables of a lane's process; those that the user has set stay."""
    return {name: value for name, value in VARIABLES.items() if name not in os.environ}


def lane_end(run_dir: Path, code: int, log_start: int, signalled: bool) -> LaneEnd:
    """How a lane ended whose process had this exit code."""
    if code == 0:
        return LaneEnd(run_dir)
    if not run_dir.is_dir():
        return LaneEnd(run_dir, f"{run_dir} was removed or moved while it was training there")
    name = {number.value: number.name for number in signal.Signals}.get(code - 128)
    if signalled and (code < 0 or name is not None):
        return LaneEnd(run_dir, stopped=True)
    if code < 0:
        return LaneEnd(run_dir, f"its process {describe_exit(code)}")
    if name is not None:
        return LaneEnd(run_dir, f"its process was stopped by {name}")
    return LaneEnd(run_dir, last_words(run_dir / LOG, log_start) or f"its process {describe_exit(code)}")


def last_words(path: Path, begin: int) -> str:
    """The last line of a log from this byte on: the message of the error that ended the process."""
    with open_to_read(path) as log:
        log.seek(max(begin, os.fstat(log.fileno()).st_size - TAIL_BYTES))
        lines = [line.strip() for line in log.read().decode(errors="replace").splitlines() if line.strip()]
    return lines[-1].removeprefix("birl: ").removeprefix("training stopped: ") if lines else ""
