"""How fast an algorithm learns here, and how many steps it can train in the time that there is."""

import time
from contextlib import closing
from typing import Any

from birl.registry import algorithm_named, name_of
from birl.run.configure import with_settings
from birl.settings import flat_settings

LEARNED = "optimizer/learning_rate"  # a metric of updates with gradient steps
SHARE = 0.3  # of the time, for the whole training of one trial
OTHER_WORKERS = 0.8  # how much of its speed is left to a trial beside others
LEAST_STEPS = 3_000


def training_speed(config: Any, seconds: float, patience: float = 30.0) -> float:
    """Environment steps per second of training, once it learns; compiling does not count.

    Training is measured for about this many seconds, and for at least one update. It ends after
    `patience` seconds: what cannot be measured by then counts as steps so far.
    """
    early = {"learning_starts": 0} if "learning_starts" in flat_settings(config) else {}
    probe = with_settings(config, early | {"total_steps": 10**9})
    begin = time.monotonic()
    first: tuple[float, int] | None = None
    steps = 0
    with closing(algorithm_named(name_of(config)).train(probe)) as training:
        for update in training:
            now, steps = time.monotonic(), int(update.state.env_steps)
            if first is None and LEARNED in update.metrics:
                first = now, steps
            elif first is not None and now - first[0] >= seconds:
                return (steps - first[1]) / (now - first[0])
            if now - begin > patience:
                break
    return steps / max(time.monotonic() - begin, 1e-6)


def steps_in(seconds: float, speed: float, workers: int) -> int:
    """Steps that a trial can train for, of a search that lasts this many seconds.

    A round number of at most two digits, and not below the least from which anything is learned.
    """
    steps = speed * SHARE * seconds * (OTHER_WORKERS if workers > 1 else 1.0)
    return max(LEAST_STEPS, round_down(int(steps)))


def round_down(steps: int) -> int:
    """The largest number of two digits and zeros that is not above it."""
    unit = 10 ** max(0, len(str(steps)) - 2)
    return steps // unit * unit
