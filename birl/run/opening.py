"""What a run opens before it trains: its directory, console, logs, checkpoints, evaluations."""

import os
import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym

from birl.config import to_json
from birl.errors import InexactResume
from birl.registry import algorithm_named
from birl.run import checkpoint_folder, files
from birl.run.checkpoint import Checkpoint
from birl.run.console import Console
from birl.run.directory import CHECKPOINTS, METRICS, write_config
from birl.run.evaluator import Evaluator
from birl.run.exactness import Exactness
from birl.run.lock import remove_abandoned
from birl.run.log import RunLog
from birl.run.open_directory import OpenDirectory
from birl.run.progress import RunProgress
from birl.run.record import VIDEOS
from birl.run.recorder import VideoRecorder
from birl.run.saver import Saver
from birl.run.track import open_sinks
from birl.run.video import ENDINGS


class PassedIn(NamedTuple):
    """What the caller passed in that is not a setting."""

    envs: Any = None
    eval_envs: Any = None
    make_network: Any = None
    pause_at: int | None = None  # end this process at these steps, with an evaluation but without a summary


class Opened(NamedTuple):
    """A run's directory, locked, and how far the run is."""

    name: str  # of the algorithm
    config: Any
    run_dir: Path
    saved: Checkpoint | None  # the checkpoint to resume from; None: a new run
    progress: RunProgress
    notices: Sequence[str]  # to say on the console


class Parts(NamedTuple):
    """The parts of the training loop that write files."""

    directory: OpenDirectory
    exactness: Exactness
    log: RunLog
    saver: Saver
    evaluator: Evaluator
    recorder: VideoRecorder


def open_parts(
    stack: ExitStack,
    opened: Opened,
    console: Console,
    spaces: tuple[gym.Space, gym.Space],
    eval_envs: Any,
    alone: bool = True,
) -> Parts:
    """The parts of a run, in the order in which they need each other; the stack closes them.

    Warnings of this process belong to the run if it is `alone` in it.
    """
    name, config, run_dir, saved, progress, _ = opened
    directory = OpenDirectory(run_dir)
    stack.callback(directory.close)
    tidy_directory(run_dir, progress)
    if saved is None:  # else it is written with the first update: a resume that fails leaves the run as it was
        write_config(run_dir, name, config)
    exactness = Exactness(progress, console)
    if alone:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("always", InexactResume)  # each is recorded, whatever filters are set
        warnings.showwarning = exactness.show_warning
    resume_at = progress.start_steps if os.path.lexists(run_dir / METRICS) else None
    sinks = open_sinks(config.run, run_dir, {"algorithm": name} | to_json(config), resume_at)
    for sink in sinks:
        stack.callback(sink.close)
    log = RunLog(config.run, directory, sinks, console, progress)
    saver = Saver(name, config, spaces, directory, progress, exactness, console)
    algorithm = algorithm_named(name)
    evaluator = Evaluator(algorithm, config, spaces, directory, progress, log, saver, console, eval_envs)
    recorder = VideoRecorder(config, run_dir, console, evaluator.policy_of)
    return Parts(directory, exactness, log, saver, evaluator, recorder)


def tidy_directory(run_dir: Path, progress: RunProgress) -> None:
    """Remove what killed processes left, and go back to the checkpoint that is resumed from."""
    checkpoints = run_dir / CHECKPOINTS
    files.require_real_directory(checkpoints)
    for directory in (run_dir, checkpoints):
        files.remove_partial(directory)
    if not (run_dir / VIDEOS).is_symlink():  # birl record may be writing another video there
        remove_abandoned(run_dir / VIDEOS, *ENDINGS)
    checkpoint_folder.set_aside(checkpoints, progress.start_steps)
    checkpoint_folder.mark_best(checkpoints, progress.best)
