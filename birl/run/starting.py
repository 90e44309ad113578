"""Runs to be trained in a loop: `start` makes a new one, `reopen` continues one."""

import dataclasses
import os
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym

from birl.config import EnvConfig, from_stored, passed_encoder, require
from birl.envs.make import MakeEnv, name_of_make_env
from birl.maths.schedules import Schedule, number_at
from birl.registry import algorithm_named, name_of, validate
from birl.run import checkpoint_folder
from birl.run.checkpoint import Checkpoint
from birl.run.configure import called_config, called_env
from birl.run.directory import (
    CHECKPOINTS,
    POLICY,
    StoredSettings,
    new_directory,
    require_run,
    task_directory,
    verified_settings,
)
from birl.run.evaluate import PASSED_IN
from birl.run.lock import locked
from birl.run.loop import Run
from birl.run.modules import local_notice
from birl.run.opening import Opened, PassedIn
from birl.run.progress import RunProgress
from birl.run.trust import allowed_run, config_in, is_own, unsigned_notice
from birl.run.versions import changed_versions
from birl.settings import flat_settings
from birl.types import Envs


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
    given = settings | passed_encoder(make_encoder)
    config, notice = called_config(algorithm, called_env(algorithm, env, envs, make_env), given, preset)
    if (
        envs is not None
        and isinstance(algorithm, str)
        and "num_envs" not in settings
        and isinstance(envs, gym.vector.VectorEnv | Envs)
    ):
        config = _with_env(config, num_envs=envs.num_envs)
    require_other(envs, eval_envs)
    name = name_of(config)
    validate(name, config)
    open_new = partial(_open_new, name, config, [*notices, *notice], overwrite)
    return Run(open_new, PassedIn(envs, eval_envs, make_network), quiet)


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
    env = named_env(env, envs, make_env)
    require_other(envs, eval_envs)
    open_saved = partial(_open_saved, Path(run_dir), total_steps, workers, trust, env, make_encoder)
    return Run(open_saved, PassedIn(envs, eval_envs, make_network, pause_at), quiet)


def named_env(env: str | None, envs: Any, make_env: MakeEnv | None) -> str | None:
    """The id that takes the place of a saved run's; None: its own."""
    if envs is not None:
        return PASSED_IN
    return env if make_env is None else name_of_make_env(make_env)


def require_other(envs: Any, eval_envs: Any) -> None:
    """Raise ConfigError unless environments to evaluate on go with those to train on."""
    require(eval_envs is None or envs is not None, "eval_envs are for envs=; without envs= Birl makes its own")
    same = eval_envs is not None and eval_envs is envs
    require(not same, "eval_envs are the same as envs; make others: an evaluation would disturb the training episodes")


def _open_new(name: str, config: Any, notices: Sequence[str], overwrite: bool, stack: ExitStack) -> Opened:
    """Make a run's directory."""
    moved: list[str] = []
    plain = task_directory(name, config, str(config.run.seed))
    run_dir = stack.enter_context(new_directory(plain, config.run.run_dir, overwrite, moved.append))
    config = with_run(config, run_dir=str(run_dir))
    return Opened(name, config, run_dir, None, RunProgress(None), [*notices, *moved, *own_notices(config)])


def _open_saved(
    run_dir: Path,
    total_steps: int | None,
    workers: int | None,
    trust: bool,
    env: str | None,
    make_encoder: Any,
    stack: ExitStack,
) -> Opened:
    """Lock a run's directory and load its newest undamaged checkpoint."""
    require_run(run_dir)
    stack.enter_context(locked(run_dir))
    notices: list[str] = []
    saved = checkpoint_folder.load_newest(run_dir / CHECKPOINTS, notices.append)
    wrong = f"{run_dir} holds a policy ({POLICY}) and no checkpoint, so it cannot be continued"
    alone = saved is None and os.path.lexists(run_dir / POLICY)
    require(not alone, f"{wrong}; birl train --like {run_dir} trains such a run from the beginning")
    settings = verified_settings(run_dir, saved, notices)
    name = settings.algorithm
    config, trust_notices = allowed_config(settings, saved, trust, env, make_encoder)
    config = with_run(config, run_dir=str(run_dir))
    if workers is not None:
        config = _with_env(config, workers=workers)
    notices += [*trust_notices, *start_notices(saved)]
    progress = RunProgress(saved, checkpoint_folder.read_best(run_dir / CHECKPOINTS, notices.append))
    if total_steps is not None and total_steps != config.run.total_steps:
        before = config.run.total_steps
        config = _extended(config, total_steps, progress)
        text = stretched_text(config, progress.start_steps, before)
        notices.append(f"total_steps {before:,} -> {total_steps:,}" + (f": schedules now {text}" if text else ""))
    validate(name, config)
    if saved is not None:  # else it starts from the beginning
        progress.take_changes(from_stored(algorithm_named(name).Config, settings.values), config)
    return Opened(name, config, run_dir, saved, progress, notices)


def allowed_config(
    settings: StoredSettings, saved: Checkpoint | None, trust: bool, env: str | None, make_encoder: Any
) -> tuple[Any, list[str]]:
    """The Config of a saved run as far as it may be used (see trust.py), and notices.

    `env` and `make_encoder` are the user's own, instead of the run's.
    """
    own = is_own(settings.algorithm, settings.values, settings.signature)
    config = config_in(settings.algorithm, settings.values, own, trust, settings.source)
    snapshot = None if saved is None else saved.snapshot.values
    return allowed_run(config, own, trust, env, settings.source, make_encoder, snapshot)


def own_notices(config: Any) -> list[str]:
    """What to say about functions of the user's, and about a run that cannot be signed."""
    return [*local_notice(config), *unsigned_notice(config)]


def start_notices(saved: Checkpoint | None) -> list[str]:
    """What to say about the start of a resumed run."""
    if saved is None:
        return ["there is no checkpoint yet: starting from the beginning, with the same seed"]
    changes = changed_versions(saved.manifest["versions"])
    return [f"{change}: the resumed run may differ from an uninterrupted one" for change in changes]


def _extended(config: Any, total_steps: int, progress: RunProgress) -> Any:
    """The config with another end; at the steps done, the run ends where it is.

    A goal that was reached is dropped: the user asks for more.
    """
    done = progress.start_steps
    wrong = f"total_steps {total_steps:,} must be more than the {done:,} steps done"
    require(total_steps >= done, f"{wrong}; with --total-steps {done} the run ends where it is")
    goal = None if progress.reached_goal(config.run) else config.run.stop_at_return
    return with_run(config, total_steps=total_steps, stop_at_return=goal)


def stretched_text(config: Any, steps: int, before: int) -> str:
    """What another `total_steps` does to the schedules at these steps; "" if there are none."""
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


def with_run(config: Any, **changes: Any) -> Any:
    """The Config with these settings of its run changed."""
    return dataclasses.replace(config, run=dataclasses.replace(config.run, **changes))


def _with_env(config: Any, **changes: Any) -> Any:
    return dataclasses.replace(config, env=dataclasses.replace(config.env, **changes))
