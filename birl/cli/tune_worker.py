"""What runs in the process of a worker of a search."""

import sys
from pathlib import Path

from birl.workers.child import end_with_parent


def main(lifeline: int, words: list[str]) -> int:
    """Work on the search in the directory that is the first word; --trust may follow.

    The second word is the time at which this process was started. `lifeline` is a descriptor of the
    parent's.
    """
    end_with_parent(lifeline)
    from birl.errors import CheckpointError, ConfigError, printable_lines
    from birl.lab.tuning.worker import Worker
    from birl.run.signals import caught_signals

    with caught_signals() as signals:
        try:
            Worker(Path(words[0]), "--trust" in words, signals, float(words[1])).work()
        except (ConfigError, CheckpointError) as problem:
            print(f"birl: {printable_lines(str(problem))}", file=sys.stderr)
            return 2
    return 128 + signals[0] if signals else 0
