"""Training: `start` and `reopen` give runs to train in a loop; `train` and `resume` do it."""

import dataclasses
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from birl.config import EnvConfig, from_stored, require
from birl.envs.make import MakeEnv
from birl.maths.schedules import Schedule, number_at
from birl.registry import algorithm_named, name_of, validate
from birl.run import checkpoint
from birl.run.checkpoint import Checkpoint
from birl.run.configure import called_config, called_env
from birl.run.directory import (
    CHECKPOINTS,
    POLICY,
    StoredSettings,
    is_group,
    new_directory,
    require_run,
    task_directory,
    verified_settings,
)
from birl.run.given import OBJECTS, Given, divided, require_data
from birl.run.lock import locked
from birl.run.run import Opened, Run
from birl.run.saving import RunProgress
from birl.run.trust import own_notices
from birl.run.versions import changed_versions
from birl.settings import flat_settings


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
    return _train_group(algorithm, env, 1 if seeds is None else seeds, sweep or {}, jobs, **options)


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
        return _resume_group(Path(run_dir), total_steps, jobs, ray_address, **options)
    for name, value in {"jobs": jobs, "ray_address": ray_address}.items():
        require(value is None, f"{name} {value} is for a group of runs, and {run_dir} is none; leave it out")
    return run_to_end(reopen(run_dir, total_steps, **options))


def start(
    algorithm: Any,
    env: str | EnvConfig | None = None,
    *,
    envs: Any = None,
    eval_envs: Any = None,
    make_env: MakeEnv | None = None,
    make_network: Any = None,
    make_encoder: Any = None,
    preset: bool = True,
    quiet: bool = False,
    overwrite: bool = False,
    notices: Sequence[str] = (),
    **settings: Any,
) -> Run:
    """A new run, to be trained in a loop of your own (see Run).

    `algorithm` is a name or a Config, and `env` an id or an EnvConfig. Instead of `env`, `make_env`
    is a function that makes one environment, or `envs` is a vector environment, with `eval_envs`
    another one to evaluate on. `make_encoder` and `make_network` make networks of your own. With
    `overwrite`, a run that is in run_dir is moved aside, to run_dir.1; it is never deleted. All
    other settings have the names of the command line's options: `total_steps`, `learning_rate`.
    They change the preset of the task, or without `preset` the algorithm's defaults.
    """
    given = Given(env, envs, eval_envs, make_env, make_network, make_encoder)
    config, sources = called_config(algorithm, called_env(algorithm, given), given, settings, preset)
    validate(name_of(config), config)
    return Run(partial(_open_new, config, [*notices, *sources], overwrite), given, quiet)


def reopen(
    run_dir: str | Path,
    total_steps: int | None = None,
    *,
    workers: int | None = None,
    envs: Any = None,
    eval_envs: Any = None,
    make_env: MakeEnv | None = None,
    make_network: Any = None,
    make_encoder: Any = None,
    trust: bool = False,
    env: str | None = None,
    quiet: bool = False,
    pause_at: int | None = None,
) -> Run:
    """A run to be continued in a loop of your own, from its newest undamaged checkpoint.

    A run that was made elsewhere or by someone else may import a module, start processes or connect
    to other machines only with `trust`. Or name the environment yourself: `env` replaces the run's
    id, and `make_env` is a function that makes the environment. Functions of your script that the
    run was started with (`make_env`, `make_network`, `make_encoder`) must be passed again.

    With `pause_at`, this process ends at the first update with that many environment steps: the run
    is evaluated and saved there, and can be continued as if nothing had happened.
    """
    given = Given(env, envs, eval_envs, make_env, make_network, make_encoder, trust)
    return Run(partial(_open_saved, Path(run_dir), total_steps, workers, given), given, quiet, pause_at)


def run_to_end(run: Run) -> dict[str, Any]:
    """Train a run; the content of its summary.json."""
    with run:
        for _ in run:
            pass
    return run.summary or {}


def with_run(config: Any, **changes: Any) -> Any:
    """The Config with these settings of its run changed."""
    return dataclasses.replace(config, run=dataclasses.replace(config.run, **changes))


def allowed_config(settings: StoredSettings, saved: Checkpoint | None, given: Given) -> tuple[Any, list[str]]:
    """The Config of a saved run as far as it may be used (see trust.py), and notices."""
    consent = settings.consent(given.trust)
    config = consent.config(settings.algorithm, settings.values)
    snapshot = None if saved is None else saved.snapshot.values
    return consent.to_train(config, given.named_env, given.make_encoder, snapshot)


def start_notices(saved: Checkpoint | None) -> list[str]:
    """Notices about the start of a resumed run."""
    if saved is None:
        return ["there is no checkpoint yet: starting from the beginning, with the same seed"]
    changes = changed_versions(saved.manifest["versions"])
    return [f"{change}: the resumed run may differ from an uninterrupted one" for change in changes]


def stretched_text(config: Any, steps: int, before: int) -> str:
    """The effect of another `total_steps` on the schedules; "" if there are none."""
    total = config.run.total_steps
    flat = flat_settings(config)
    moved = {name: one for name, one in flat.items() if isinstance(one, Schedule) and one.kind != "constant"}
    texts = [
        f"{name} {number_at(one, steps / before):.4g} -> {number_at(one, steps / total):.4g}"
        for name, one in moved.items()
    ]
    if flat.get("exploration_fraction") and flat["exploration"] is None:
        texts.append("exploration_fraction is of the new total_steps")
    return f"end there; at {steps:,} steps, {', '.join(texts)}" if texts else ""


def _open_new(config: Any, notices: Sequence[str], overwrite: bool, stack: ExitStack) -> Opened:
    """Make a run's directory."""
    moved: list[str] = []
    name = name_of(config)
    plain = task_directory(name, config, str(config.run.seed))
    run_dir = stack.enter_context(new_directory(plain, config.run.run_dir, overwrite, moved.append))
    config = with_run(config, run_dir=str(run_dir))
    return Opened(name, config, run_dir, None, RunProgress(None), [*notices, *moved, *own_notices(config)])


def _open_saved(run_dir: Path, total_steps: int | None, workers: int | None, given: Given, stack: ExitStack) -> Opened:
    """Lock a run's directory and load its newest undamaged checkpoint."""
    require_run(run_dir)
    stack.enter_context(locked(run_dir))
    notices: list[str] = []
    saved = checkpoint.load_newest(run_dir / CHECKPOINTS, notices.append)
    wrong = f"{run_dir} holds a policy ({POLICY}) and no checkpoint, so it cannot be continued"
    alone = saved is None and os.path.lexists(run_dir / POLICY)
    require(not alone, f"{wrong}; birl train --like {run_dir} trains such a run from the beginning")
    settings = verified_settings(run_dir, saved, notices)
    name = settings.algorithm
    config, trust_notices = allowed_config(settings, saved, given)
    config = with_run(config, run_dir=str(run_dir))
    if workers is not None:
        config = dataclasses.replace(config, env=dataclasses.replace(config.env, workers=workers))
    notices += [*trust_notices, *start_notices(saved)]
    progress = RunProgress(saved, checkpoint.read_best(run_dir / CHECKPOINTS, notices.append))
    if total_steps is not None and total_steps != config.run.total_steps:
        before = config.run.total_steps
        config = _extended(config, total_steps, progress)
        text = stretched_text(config, progress.start_steps, before)
        notices.append(f"total_steps {before:,} -> {total_steps:,}" + (f": schedules now {text}" if text else ""))
    validate(name, config)
    if saved is not None:  # else it starts from the beginning
        progress.take_changes(from_stored(algorithm_named(name).Config, settings.values), config)
    return Opened(name, config, run_dir, saved, progress, notices)


def _extended(config: Any, total_steps: int, progress: RunProgress) -> Any:
    """The config with another end; at the steps done, the run ends where it is.

    A goal that was reached is dropped: the user asks for more.
    """
    done = progress.start_steps
    wrong = f"total_steps {total_steps:,} must be more than the {done:,} steps done"
    require(total_steps >= done, f"{wrong}; with --total-steps {done} the run ends where it is")
    goal = None if progress.reached_goal(config.run) else config.run.stop_at_return
    return with_run(config, total_steps=total_steps, stop_at_return=goal)


def _train_group(
    algorithm: Any,
    env: str | EnvConfig | None,
    seeds: int,
    sweep: Mapping[str, Iterable[Any]],
    jobs: int | None,
    *,
    preset: bool = True,
    quiet: bool = False,
    overwrite: bool = False,
    notices: Sequence[str] = (),
    **options: Any,
) -> dict[str, Any]:
    """Train a new group of runs; its summary.

    Each run is one that `birl.train` would make with these settings and the swept ones.
    """
    from birl.run.groups.group import train_group  # its lanes are runs of this module
    from birl.run.groups.group_plan import plan_group

    objects, settings = divided(options)
    given = Given(env, **objects)
    require_data(envs=given.envs, eval_envs=given.eval_envs, make_network=given.make_network)
    require(isinstance(sweep, Mapping), f"sweep {sweep!r} must be a dict of lists: {{'learning_rate': [1e-4, 3e-4]}}")
    env = called_env(algorithm, given)
    both = ", ".join(sorted(({*settings} | ({"encoder"} if given.make_encoder else set())) & sweep.keys()))
    require(not both, f"{both} is swept and set at once; leave one out")
    found: list[str] = []

    def configure(point: dict[str, Any]) -> Any:
        config, sources = called_config(algorithm, env, given, settings | point, preset)
        found.extend(source for source in sources if source not in found)
        return config

    plan = plan_group(configure, sweep, seeds)
    return train_group(plan, jobs, [*notices, *found], overwrite, quiet)


def _resume_group(
    directory: Path,
    total_steps: int | None,
    jobs: int | None,
    ray_address: str | None,
    *,
    workers: int | None = None,
    trust: bool = False,
    env: str | None = None,
    quiet: bool = False,
    **objects: Any,
) -> dict[str, Any]:
    """Continue the runs of a group; its summary."""
    from birl.run.groups.group import resume_group  # its lanes are runs of this module
    from birl.run.groups.lane import LaneOptions

    given = Given(**objects)
    require_data(**{name: getattr(given, name) for name in OBJECTS})
    return resume_group(directory, LaneOptions(total_steps, workers, trust, env), jobs, ray_address, quiet)
