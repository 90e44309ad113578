"""The runs of a proof: with a change and without, of equal steps, within a time."""

import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from birl.errors import NonFiniteError
from birl.run.run import Run

ARMS = ("control", "changed")
SPARE = 0.25  # of the time is kept for evaluations, and for runs that take longer than the measured ones

OpenRun = Callable[[int, Path, dict[str, Any]], Run]  # seed, run_dir, changed settings


class Trained(NamedTuple):
    """Runs DIRECTORY/control/seed-N and DIRECTORY/changed/seed-N."""

    seeds: int  # that have both
    env_steps: int  # of each run that did not fail
    failed: list[Path]  # runs that ended by a NaN


def train_both(
    open_run: OpenRun, directory: Path, changes: dict[str, Any], seeds: Sequence[int], seconds: float
) -> Trained:
    """Train each seed with the changes and without, all for as many steps as fit into the time.

    The first run of each arm is measured; if it does not end within its share of the time, its
    steps are the limit for all, and a longer one is trained again. When all the time is over, a
    seed that has not ended in both arms is removed.
    """
    ends = time.monotonic() + seconds
    share = (1 - SPARE) * seconds / (2 * len(seeds) + 1)
    limit: int | None = None
    made: dict[Path, int | None] = {}  # environment steps; None: it ended by a NaN
    measured: set[str] = set()
    waiting = [(seed, name) for seed in seeds for name in ARMS]
    while waiting and time.monotonic() < ends:
        seed, name = waiting.pop(0)
        path = directory / name / f"seed-{seed}"
        until = ends if name in measured else min(ends, time.monotonic() + share)
        run = open_run(seed, path, changes if name == "changed" else {})
        end = _train(run, limit, until)
        if end == "late" and until == ends:
            shutil.rmtree(path)
            break
        made[path] = None if end == "failed" else run.env_steps
        if end != "failed":
            measured.add(name)
        if end == "late":
            limit = run.env_steps
            longer = [one for one, steps in made.items() if steps is not None and steps > limit]
            for one in longer:
                shutil.rmtree(one)
                del made[one]
                waiting.insert(0, (int(one.name.removeprefix("seed-")), one.parent.name))
    complete = [seed for seed in seeds if all(directory / name / f"seed-{seed}" in made for name in ARMS)]
    kept = {path: steps for path, steps in made.items() if int(path.name.removeprefix("seed-")) in complete}
    for path in made.keys() - kept.keys():
        shutil.rmtree(path, ignore_errors=True)  # one that failed at once has none
    steps_made = [steps for steps in kept.values() if steps is not None]
    return Trained(len(complete), max(steps_made, default=0), [path for path, steps in kept.items() if steps is None])


def _train(run: Run, limit: int | None, until: float) -> Literal["ended", "late", "failed"]:
    """Train a run to its end, to the limit, or until this time; "failed" if it ends by a NaN."""
    end: Literal["ended", "late"] = "ended"
    try:
        with run:
            for _ in run:
                if limit is not None and run.env_steps >= limit:
                    break
                if time.monotonic() > until:
                    end = "late"
                    break
    except NonFiniteError:
        return "failed"
    return end
