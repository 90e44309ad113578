"""Training to the end: `train` begins a run or a group of runs, `resume` continues one."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from birl.config import EnvConfig, require
from birl.run.directory import is_group
from birl.run.group_start import continue_group, start_group
from birl.run.loop import Run
from birl.run.starting import reopen, start


def train(
    algorithm: Any,
    env: str | EnvConfig | None = None,
    *,
    seeds: int | None = None,
    sweep: Mapping[str, Iterable[Any]] | None = None,
    jobs: int | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Train in a new run directory; the content of its summary.json.

    `birl.train("ppo", "CartPole-v1", total_steps=100_000)` begins with the preset of the task;
    `birl.train(config)` takes a Config as it is. The options are those of `birl.start`, of which
    this is the loop with an empty body.

    With `seeds` or `sweep` it is a group of runs: this many seeds of every combination of the
    values in `sweep`, which are lists by the names of settings. `jobs` of them train at once.
    """
    if seeds is None and sweep is None:
        require(jobs is None, f"jobs {jobs} is for a group of runs; add seeds= or sweep=, or leave it out")
        return run_to_end(start(algorithm, env, **options))
    return start_group(algorithm, env, 1 if seeds is None else seeds, sweep or {}, jobs, **options)


def resume(
    run_dir: str | Path,
    total_steps: int | None = None,
    *,
    jobs: int | None = None,
    ray_address: str | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Continue a run from its newest undamaged checkpoint, as if it had not stopped; its summary.

    The options are those of `birl.reopen`, of which this is the loop with an empty body. Of a group
    of runs, every one that has not finished is continued, `jobs` at once: in processes here, or as
    tasks of the Ray cluster at `ray_address`.
    """
    if is_group(Path(run_dir)):
        return continue_group(Path(run_dir), total_steps, jobs, ray_address, **options)
    for name, value in {"jobs": jobs, "ray_address": ray_address}.items():
        require(value is None, f"{name} {value} is for a group of runs, and {run_dir} is none; leave it out")
    return run_to_end(reopen(run_dir, total_steps, **options))


def run_to_end(run: Run) -> dict[str, Any]:
    """Train a run; the content of its summary.json."""
    with run:
        for _ in run:
            pass
    return run.summary or {}
