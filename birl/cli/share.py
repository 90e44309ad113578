"""What runs in a process that has a share of the lanes of a group."""

import json
import sys
from pathlib import Path

from birl.workers.child import end_with_parent


def main(lifeline: int, words: list[str]) -> int:
    """Train the lanes in these directories in turns; a line for each that ends goes to the parent.

    `lifeline` is a descriptor of the parent's. The first word holds the LaneOptions, as JSON.
    """
    end_with_parent(lifeline)
    options, *run_dirs = words
    from birl.run.lane import LaneOptions
    from birl.run.lane_shares import end_line
    from birl.run.lane_turns import take_turns
    from birl.run.signals import caught_signals

    with caught_signals() as signals:
        for end in take_turns([Path(run_dir) for run_dir in run_dirs], LaneOptions(**json.loads(options)), signals):
            if end is not None:
                sys.stdout.write(end_line(end))
                sys.stdout.flush()
    return 128 + signals[0] if signals else 0
