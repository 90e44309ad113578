"""The child processes of groups and searches: `main` is called in each of them."""

import json
import sys
from pathlib import Path

from birl.cli import main as run_command
from birl.workers.child import end_with_parent


def main(lifeline: int, words: list[str]) -> int:
    """Do what the first word says, with the others; the exit code.

    `lifeline` is a descriptor of the parent's: this process ends with its parent.
    """
    end_with_parent(lifeline)
    what, *words = words
    match what:
        case "share":
            return _train_share(*words)
        case "search":
            return _work_on_search(*words)
    return run_command([what, *words])


def _train_share(options: str, *run_dirs: str) -> int:
    """Train some lanes of a group in turns; a line for each that ends goes to the parent.

    `options` are the LaneOptions, as JSON.
    """
    from birl.run.groups.lane import LaneOptions
    from birl.run.groups.lane_training import end_line, take_turns
    from birl.run.signals import caught_signals

    with caught_signals() as signals:
        for end in take_turns([Path(run_dir) for run_dir in run_dirs], LaneOptions(**json.loads(options)), signals):
            if end is not None:
                sys.stdout.write(end_line(end))
                sys.stdout.flush()
    return 128 + signals[0] if signals else 0


def _work_on_search(directory: str, started: str, *flags: str) -> int:
    """Work on the search in this directory; `started` is the time at which this process began."""
    from birl.errors import CheckpointError, ConfigError, printable_lines
    from birl.lab.tuning.worker import Worker
    from birl.run.signals import caught_signals

    with caught_signals() as signals:
        try:
            Worker(Path(directory), "--trust" in flags, signals, float(started)).work()
        except (ConfigError, CheckpointError) as problem:
            print(f"birl: {printable_lines(str(problem))}", file=sys.stderr)
            return 2
    return 128 + signals[0] if signals else 0
