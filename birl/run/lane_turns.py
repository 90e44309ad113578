"""Lanes that take turns in one process: a chunk of each, then of the next.

They share one compiled program, so it is compiled once for all of them. Each lane is an ordinary
run, and ends in the same State as if it were alone.
"""

import io
import traceback
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from birl.errors import CheckpointError, ConfigError, EnvError, NonFiniteError, RunDirectoryError
from birl.run.files import open_to_append
from birl.run.lane import LOG, LaneEnd, LaneOptions
from birl.run.signals import Interrupted
from birl.run.starting import reopen

SAID = ConfigError, CheckpointError, EnvError, NonFiniteError, RunDirectoryError  # their messages say all


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
