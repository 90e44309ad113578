"""Lanes as tasks of a Ray cluster: each runs the process of a lane on its machine.

If the machine sees the lane's directory, the lane is trained there, as here. If it does not, the
lane's files are sent to it, and what it has written is brought back when it ends. So a shared
directory is better: without it only the progress of a lane is seen before its end, and a lane whose
machine or connection fails begins again with the files that were sent.
"""

import os
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

from birl.errors import CheckpointError
from birl.run import checkpoint_folder
from birl.run.directory import CHECKPOINTS, SUMMARY
from birl.run.files import PARTIAL, make_directory, open_to_read, remove, replacing
from birl.run.group_progress import LaneMetrics
from birl.run.lane import LaneEnd, LaneNews, LaneOptions
from birl.run.lane_processes import POLL_SECONDS, lane_end, start_lane
from birl.run.manifest import MANIFEST
from birl.workers.faults import Failure

if TYPE_CHECKING:
    from birl.workers.ray_actors import Talk

SIGNAL_SECONDS = 1.0  # between two looks at whether the group was stopped, and two pieces of news


class LaneTask(NamedTuple):
    """What a task needs to train a lane."""

    run_dir: Path  # as the group's process names it
    whole_path: Path
    token: str  # a file that the directory has, if it is the same one
    files: dict[str, bytes]  # for a machine that does not see the directory
    options: LaneOptions


class LaneResult(NamedTuple):
    """How a lane ended on its machine, and what it wrote, unless the directory is shared."""

    end: LaneEnd
    files: dict[str, bytes] | None


def run_on_ray(
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
    for checkpoint in checkpoint_folder.numbered(run_dir / CHECKPOINTS):
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
