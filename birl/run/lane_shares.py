"""Lanes of compiled environments: each process has a share of them, which take turns in it.

With one process for each CPU core, the program is compiled for a single thread, as for a run alone:
so a lane's result does not depend on how many run beside it.
"""

import json
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from birl.run.lane import LaneEnd, LaneOptions
from birl.run.lane_processes import POLL_SECONDS, lane_variables
from birl.workers.child import Program, SignalRelay, describe_exit, start_program


class Share:
    """A process with some of the lanes, and those of them that have not ended."""

    def __init__(self, run_dirs: Sequence[Path], options: LaneOptions) -> None:
        self._left = {str(run_dir): run_dir for run_dir in run_dirs}
        self._text = b""  # that it has printed and that is not a whole line yet
        self._said = ""  # the last line that is not about a lane
        self._output, theirs = os.pipe()
        os.set_blocking(self._output, False)
        words = [json.dumps(options._asdict()), *map(str, run_dirs)]
        try:
            self.program: Program = start_program("birl.cli.share", words, theirs, lane_variables())
        finally:
            os.close(theirs)

    def ends(self, signalled: bool) -> Iterator[LaneEnd]:
        """The lanes that have ended since the last call; all that are left once the process has."""
        code = self.program.code()  # before its output is read: so nothing is missed
        for line in self._lines():
            try:
                end = json.loads(line)
                yield LaneEnd(self._left.pop(end["run_dir"]), end["problem"], end["stopped"])
            except (ValueError, TypeError, KeyError):  # something else printed it: an error, for instance
                self._said = line.decode(errors="replace").strip()
        if code is not None:
            problem = f"its process {describe_exit(code)}" + (f": {self._said}" if self._said else "")
            for run_dir in self._left.values():
                yield LaneEnd(run_dir, None if signalled else problem, stopped=signalled)
            self._left = {}

    @property
    def is_over(self) -> bool:
        return not self._left and self.program.code() is not None

    def close(self) -> None:
        """Kill the process if it still runs."""
        self.program.kill()
        os.close(self._output)

    def _lines(self) -> list[bytes]:
        while True:
            try:
                more = os.read(self._output, 1 << 16)
            except BlockingIOError:
                break
            if not more:
                break
            self._text += more
        *lines, self._text = self._text.split(b"\n")
        return lines


def run_shares(
    run_dirs: Sequence[Path], options: LaneOptions, jobs: int, signals: Sequence[int]
) -> Iterator[LaneEnd | None]:
    """Train these lanes in `jobs` processes; how each ends, and None while nothing has happened.

    As `run_processes`.
    """
    shares = [Share(run_dirs[number::jobs], options) for number in range(min(jobs, len(run_dirs)))]
    relay = SignalRelay(signals)
    try:
        while not all(share.is_over for share in shares):
            relay.pass_on(share.program for share in shares)
            for share in shares:
                yield from share.ends(bool(signals))
            yield None
            time.sleep(POLL_SECONDS)
    finally:
        for share in shares:
            share.close()


def end_line(end: LaneEnd) -> str:
    """How a lane ended, as a line for the process of the group."""
    return json.dumps({"run_dir": str(end.run_dir), "problem": end.problem, "stopped": end.stopped}) + "\n"
