"""Forks: new runs that begin with a checkpoint of another run, with settings changed."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from birl.config import require
from birl.envs.make import MakeEnv
from birl.lab.branch import At, read_branch
from birl.lab.fork_group import root_of, roots_of, train_forks
from birl.lab.fork_start import start_fork
from birl.run.configure import with_settings
from birl.run.directory import is_group
from birl.run.given import Given, divided, require_data
from birl.run.run import Run
from birl.run.start import run_to_end


def fork(
    run: str | Path,
    at: At = None,
    *,
    seeds: int | None = None,
    sweep: Mapping[str, Iterable[Any]] | None = None,
    jobs: int | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Train a fork of a run to its end; the content of its summary.json.

    `birl.fork("runs/mine", at=50_000, learning_rate=1e-4)` begins with that checkpoint of
    runs/mine, which stays as it is. The options are those of `birl.open_fork`, of which this is the
    loop with an empty body.

    With `seeds` or `sweep` it is a group of forks, as `birl.train` makes groups of runs. The first
    seed is that of the run and continues it exactly; the others are other continuations. If `run`
    is a group, each of its runs is forked.
    """
    if is_group(Path(run)) or seeds is not None or sweep is not None:
        return _fork_group(Path(run), at, seeds, sweep or {}, jobs, options)
    require(jobs is None, f"jobs {jobs} is for a group of forks; add seeds= or sweep=, or leave it out")
    return run_to_end(open_fork(run, at, **options))


def open_fork(
    run: str | Path,
    at: At = None,
    *,
    envs: Any = None,
    eval_envs: Any = None,
    make_env: MakeEnv | None = None,
    make_network: Any = None,
    make_encoder: Any = None,
    trust: bool = False,
    env: str | None = None,
    quiet: bool = False,
    overwrite: bool = False,
    pause_at: int | None = None,
    **settings: Any,
) -> Run:
    """A new run that begins with a checkpoint of another, to be trained in a loop of your own.

    `at` is the checkpoint: its environment steps, "best", or None for the newest. The fork has the
    State, environments, replay and random keys of that checkpoint. `settings` are changed by the
    names of the command line's options. Another `seed` is another continuation: new random keys
    and new episodes. The other options are those of `birl.reopen` and `birl.start`.
    """
    given = Given(env, envs, eval_envs, make_env, make_network, make_encoder, trust)
    branch = read_branch(run, at, given)
    config = with_settings(branch.config, settings)
    is_given = envs is not None or make_env is not None  # it is the user who says that it is the same environment
    return start_fork(branch, config, given, is_given, quiet, overwrite, pause_at=pause_at)


def _fork_group(
    run: Path,
    at: At,
    seeds: int | None,
    sweep: Mapping[str, Iterable[Any]],
    jobs: int | None,
    options: dict[str, Any],
) -> dict[str, Any]:
    """Train a group of forks; its summary. The options are those of `birl.open_fork`."""
    objects, settings = divided(options, "env", "trust")
    given = Given(**objects)
    pause_at = settings.pop("pause_at", None)
    require_data(envs=given.envs, eval_envs=given.eval_envs, make_network=given.make_network, pause_at=pause_at)
    quiet, overwrite = settings.pop("quiet", False), settings.pop("overwrite", False)
    both = ", ".join(sorted(settings.keys() & sweep.keys()))
    require(not both, f"{both} is swept and set at once; leave one out")
    roots = roots_of(run, at, given) if is_group(run) else [root_of(read_branch(run, at, given))]

    def change(config: Any, point: dict[str, Any]) -> Any:
        return with_settings(config, settings | point)

    return train_forks(run, roots, change, sweep, seeds, jobs, overwrite, quiet)
