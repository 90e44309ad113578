"""Training the lanes of a group: in processes, in turns in one process, or on a Ray cluster.

Each lane is an ordinary run, and what it prints goes to console.log in its directory.

Lanes of compiled environments take turns, so that one compiled program serves all of them. With one
process for each CPU core, that program is compiled for a single thread, as for a run alone: so a
lane's result does not depend on how many run beside it.

A Ray cluster runs the process of each lane on one of its machines. If the machine sees the lane's
directory, the lane is trained there, as here. If it does not, the lane's files are sent to it, and
what it has written is brought back when it ends. So a shared directory is better: without it only
the progress of a lane is seen before its end, and a lane whose machine or connection fails begins
again with the files that were sent.
"""

import io
import json
import os
import secrets
import signal
import tempfile
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

from birl.errors import CheckpointError, ConfigError, EnvError, NonFiniteError, RunDirectoryError
from birl.run.checkpoint import MANIFEST, checkpoints_in
from birl.run.directory import CHECKPOINTS, SUMMARY
from birl.run.files import PARTIAL, make_directory, open_to_append, open_to_read, remove, replacing
from birl.run.groups.lane import LOG, LaneEnd, LaneMetrics, LaneNews, LaneOptions
from birl.run.signals import Interrupted
from birl.run.start import reopen
from birl.workers.child import Program, SignalRelay, describe_exit, start_program
from birl.workers.faults import Failure

if TYPE_CHECKING:
    from birl.workers.ray_actors import Talk

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
SAID = ConfigError, CheckpointError, EnvError, NonFiniteError, RunDirectoryError  # their messages say all
SIGNAL_SECONDS = 1.0  # between two looks at whether the group was stopped, and two pieces of news


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
        return start_program("birl.cli.children", words, log.fileno(), lane_variables()), begin


def lane_variables() -> dict[str, str]:
    """The environment variables of a lane's process; those that the user has set stay."""
    return {name: value for name, value in VARIABLES.items() if name not in os.environ}


def lane_end(run_dir: Path, code: int, log_start: int, signalled: bool) -> LaneEnd:
    """The end of a lane whose process had this exit code."""
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


class Share:
    """A process with some of the lanes, and those of them that have not ended."""

    def __init__(self, run_dirs: Sequence[Path], options: LaneOptions) -> None:
        self._left = {str(run_dir): run_dir for run_dir in run_dirs}
        self._text = b""  # that it has printed and that is not a whole line yet
        self._said = ""  # the last line that is not about a lane
        self._output, theirs = os.pipe()
        os.set_blocking(self._output, False)
        words = ["share", json.dumps(options._asdict()), *map(str, run_dirs)]
        try:
            self.program: Program = start_program("birl.cli.children", words, theirs, lane_variables())
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
    """The end of a lane, as a line for the process of the group."""
    return json.dumps({"run_dir": str(end.run_dir), "problem": end.problem, "stopped": end.stopped}) + "\n"


def take_turns(run_dirs: Sequence[Path], options: LaneOptions, signals: list[int]) -> Iterator[LaneEnd | None]:
    """Train these lanes; how each ends, and None after every other turn.

    After a signal each lane saves at its next turn and ends.
    """
    waiting = deque((run_dir, train_lane(run_dir, options, signals)) for run_dir in run_dirs)
    while waiting:
        run_dir, lane = waiting.popleft()
        end = next_turn(run_dir, lane)
        if end is None:
            waiting.append((run_dir, lane))
        yield end


def next_turn(run_dir: Path, lane: Iterator[None]) -> LaneEnd | None:
    """Train a lane until its next update; how it ended if that was the last one."""
    try:
        next(lane)
    except StopIteration:
        return LaneEnd(run_dir)
    except Interrupted:
        return LaneEnd(run_dir, stopped=True)
    except SAID as problem:
        return LaneEnd(run_dir, str(problem))
    except Exception as problem:  # the other lanes go on
        with suppress(OSError, CheckpointError), open_to_append(run_dir / LOG) as log:
            log.write("".join(traceback.format_exception(problem)).encode())
        return LaneEnd(run_dir, f"{type(problem).__name__}: {problem}")
    return None


def train_lane(run_dir: Path, options: LaneOptions, signals: list[int]) -> Iterator[None]:
    """Train a lane as `birl resume` does; a turn is over where it yields."""
    total_steps, workers, trust, env = options.of(run_dir)
    run = reopen(run_dir, total_steps, workers=workers, trust=trust, env=env)
    with io.TextIOWrapper(open_to_append(run_dir / LOG), line_buffering=True) as log, run.as_lane(signals, log):
        for _ in run:
            yield


class LaneTask(NamedTuple):
    """The data that a task needs to train a lane."""

    run_dir: Path  # as the group's process names it
    whole_path: Path
    token: str  # a file that the directory has, if it is the same one
    files: dict[str, bytes]  # for a machine that does not see the directory
    options: LaneOptions


class LaneResult(NamedTuple):
    """The end of a lane on its machine, and its files, unless the directory is shared."""

    end: LaneEnd
    files: dict[str, bytes] | None


def train_on_ray(
    run_dirs: Sequence[Path], options: LaneOptions, address: str, at_once: int, signals: Sequence[int]
) -> Iterator[LaneEnd | LaneNews | None]:
    """Train these lanes on the cluster at this address; as `lane_processes.run_processes`."""
    from birl.workers.ray_actors import run_tasks  # which needs an extra

    heard: list[LaneNews] = []

    def hear(index: int, news: tuple[int, dict[str, float]]) -> None:
        heard.append(LaneNews(run_dirs[index], *news))

    tasks = (make_task(run_dir, options) for run_dir in run_dirs)
    for answer in run_tasks(train_here, tasks, address, at_once, signals, hear):
        if answer is None:
            yield from heard
            heard.clear()
            yield None
            continue
        run_dir, result = run_dirs[answer[0]], answer[1]
        if isinstance(result, Failure):
            yield LaneEnd(run_dir, result.reason)
            continue
        try:
            if result.files is not None:
                write_files(run_dir, result.files)
            yield result.end
        except (OSError, CheckpointError) as problem:
            yield LaneEnd(run_dir, f"its files could not be written: {problem}")


def make_task(run_dir: Path, options: LaneOptions) -> LaneTask:
    """The task of a lane, with a token in its directory; the next start of the run removes it."""
    token = f"{PARTIAL}{secrets.token_hex(8)}"
    (run_dir / token).touch()
    return LaneTask(run_dir, run_dir.resolve(), token, read_files(run_dir), options)


def train_here(task: LaneTask, talk: "Talk") -> LaneResult:
    """Train a lane on this machine, in its directory if that is here, else in a temporary one."""
    if (task.whole_path / task.token).exists():
        return LaneResult(run_lane(task.whole_path, task, talk)._replace(run_dir=task.run_dir), None)
    with tempfile.TemporaryDirectory(prefix="birl-lane-") as scratch:
        run_dir = Path(scratch) / task.run_dir.name
        run_dir.mkdir()
        write_into(run_dir, task.files)
        metrics = LaneMetrics(run_dir)

        def talk_with_news() -> int:
            metrics.read()
            return talk((metrics.env_steps, dict(metrics.values)))

        end = run_lane(run_dir, task, talk_with_news)._replace(run_dir=task.run_dir)
        return LaneResult(end, read_files(run_dir))


def run_lane(run_dir: Path, task: LaneTask, read_signal: Callable[[], int]) -> LaneEnd:
    """Run the process of a lane to its end, and pass a signal on to it."""
    program, log_start = start_lane(run_dir, task.options)
    received = 0
    next_look = time.monotonic()
    try:
        while (code := program.code()) is None:
            if not received and time.monotonic() >= next_look:
                next_look = time.monotonic() + SIGNAL_SECONDS
                received = read_signal()
                if received:
                    program.send(received)
            time.sleep(POLL_SECONDS)
    finally:
        program.kill()
    return lane_end(run_dir, code, log_start, bool(received))


def read_files(run_dir: Path) -> dict[str, bytes]:
    """The files of a run by their path in its directory, without those that are half written."""
    found = {}
    for folder, folders, names in os.walk(run_dir):
        folders[:] = [name for name in folders if not name.startswith(PARTIAL)]
        for name in names:
            path = Path(folder) / name
            if not name.startswith(PARTIAL) and name != "run.lock" and not path.is_symlink():
                with open_to_read(path) as file:
                    found[str(path.relative_to(run_dir))] = file.read()
    return found


def write_files(run_dir: Path, files: dict[str, bytes]) -> None:
    """Replace the files of a run. If it is stopped halfway, the run can still be continued.

    For a checkpoint without its manifest is not used, and the old ones are removed last.
    """
    write_into(run_dir, dict(sorted(files.items(), key=lambda file: (file[0] == SUMMARY, file[0].endswith(MANIFEST)))))
    for checkpoint in checkpoints_in(run_dir / CHECKPOINTS):
        if f"{CHECKPOINTS}/{checkpoint.name}/{MANIFEST}" not in files:
            remove(checkpoint)


def write_into(directory: Path, files: dict[str, bytes]) -> None:
    """Write files below a directory; CheckpointError if a path would leave it."""
    for name, content in files.items():
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts:
            raise CheckpointError(f"{name!r} is not a path below {directory}")
        folder = directory
        for part in path.parts[:-1]:
            folder = make_directory(folder / part)
        with replacing(folder / path.name) as file:
            file.write(content)
