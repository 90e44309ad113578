"""Training a run: `train` starts a new one, `resume` continues one from its newest checkpoint."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from birl.config import require
from birl.config_json import from_json
from birl.registry import algorithm_named, name_of, validate
from birl.run import checkpoint_folder
from birl.run.checkpoint import Checkpoint
from birl.run.directory import CHECKPOINTS, new_directory, require_run, verified_settings
from birl.run.evaluate import PASSED_IN
from birl.run.lock import locked
from birl.run.loop import Run
from birl.run.progress import RunProgress
from birl.run.signals import caught_signals
from birl.run.trust import allowed_run, is_own, unsigned_notice
from birl.run.versions import changed_versions


def train(config: Any, envs: Any = None, make_network: Any = None, notices: Sequence[str] = ()) -> dict[str, Any]:
    """Train from the start in a new run directory; the content of its summary.json."""
    name = name_of(config)
    if envs is not None:
        config = _with_env(config, id=PASSED_IN)
    validate(name, config)
    with caught_signals() as signals, new_directory(name, config) as run_dir:
        config = _with_run(config, run_dir=str(run_dir))
        run = Run(name, config, run_dir, None, RunProgress(None), signals, envs, make_network)
        return run.train([*notices, *unsigned_notice(config)])


def resume(
    run_dir: str | Path,
    total_steps: int | None = None,
    workers: int | None = None,
    envs: Any = None,
    make_network: Any = None,
    trust: bool = False,
    env: str | None = None,
) -> dict[str, Any]:
    """Continue a run from its newest undamaged checkpoint, as if it had not stopped; its summary.

    A run that was made elsewhere or by someone else may import a module, start processes or connect
    to other machines only with `trust`. Or name the environment yourself: `env` replaces the run's
    id.
    """
    run_dir = Path(run_dir)
    require_run(run_dir)
    with caught_signals() as signals, locked(run_dir):
        notices: list[str] = []
        saved = checkpoint_folder.load_newest(run_dir / CHECKPOINTS, notices.append)
        settings = verified_settings(run_dir, saved, notices)
        name = settings.algorithm
        own = is_own(name, settings.values, settings.signature)
        config = from_json(algorithm_named(name).Config, settings.values)
        env = PASSED_IN if envs is not None else env
        config, trust_notices = allowed_run(config, own, trust, env, settings.source)
        config = _with_run(config, run_dir=str(run_dir))
        if workers is not None:
            config = _with_env(config, workers=workers)
        notices += [*trust_notices, *_start_notices(saved)]
        progress = RunProgress(saved, checkpoint_folder.read_best(run_dir / CHECKPOINTS, notices.append))
        if total_steps is not None and total_steps != config.run.total_steps:
            notices.append(f"total_steps {config.run.total_steps:,} -> {total_steps:,}: schedules now end there")
            config = _extended(config, total_steps, progress)
        validate(name, config)
        return Run(name, config, run_dir, saved, progress, signals, envs, make_network).train(notices)


def _start_notices(saved: Checkpoint | None) -> list[str]:
    """What to say about the start of a resumed run."""
    if saved is None:
        return ["there is no checkpoint yet: starting from the beginning, with the same seed"]
    changes = changed_versions(saved.manifest["versions"])
    return [f"{change}: the resumed run may differ from an uninterrupted one" for change in changes]


def _extended(config: Any, total_steps: int, progress: RunProgress) -> Any:
    """The config with another end. A goal that was reached is dropped: the user asks for more."""
    done = progress.start_steps
    require(total_steps > done, f"total_steps {total_steps:,} must be more than the {done:,} steps done")
    goal = None if progress.reached_goal(config.run) else config.run.stop_at_return
    return _with_run(config, total_steps=total_steps, stop_at_return=goal)


def _with_run(config: Any, **changes: Any) -> Any:
    return dataclasses.replace(config, run=dataclasses.replace(config.run, **changes))


def _with_env(config: Any, **changes: Any) -> Any:
    return dataclasses.replace(config, env=dataclasses.replace(config.env, **changes))
