"""Groups of runs as `birl.train` and `birl.resume` are called: settings and functions to lanes."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from birl.config import EnvConfig, passed_encoder, require
from birl.envs.make import MakeEnv
from birl.run.configure import called_config, called_env
from birl.run.group import resume_group, train_group
from birl.run.group_plan import plan_group
from birl.run.lane import LaneOptions


def start_group(
    algorithm: Any,
    env: str | EnvConfig | None,
    seeds: int,
    sweep: Mapping[str, Iterable[Any]],
    jobs: int | None,
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
) -> dict[str, Any]:
    """Train a new group of runs; its summary. The options are those of `birl.start`.

    Each run is one that `birl.train` would make with these settings and the swept ones.
    """
    require_data(envs=envs, eval_envs=eval_envs, make_network=make_network)
    require(isinstance(sweep, Mapping), f"sweep {sweep!r} must be a dict of lists: {{'learning_rate': [1e-4, 3e-4]}}")
    env = called_env(algorithm, env, None, make_env)
    settings |= passed_encoder(make_encoder)
    both = ", ".join(sorted(settings.keys() & sweep.keys()))
    require(not both, f"{both} is swept and set at once; leave one out")
    found: list[str] = []

    def configure(point: dict[str, Any]) -> Any:
        config, sources = called_config(algorithm, env, settings | point, preset)
        found.extend(source for source in sources if source not in found)
        return config

    plan = plan_group(configure, sweep, seeds)
    return train_group(plan, jobs, [*notices, *found], overwrite, quiet)


def continue_group(
    directory: Path,
    total_steps: int | None,
    jobs: int | None,
    ray_address: str | None,
    *,
    workers: int | None = None,
    trust: bool = False,
    env: str | None = None,
    quiet: bool = False,
    envs: Any = None,
    eval_envs: Any = None,
    make_env: Any = None,
    make_network: Any = None,
    make_encoder: Any = None,
) -> dict[str, Any]:
    """Continue the runs of a group; its summary. The options are those of `birl.reopen`."""
    require_data(
        envs=envs, eval_envs=eval_envs, make_env=make_env, make_network=make_network, make_encoder=make_encoder
    )
    return resume_group(directory, LaneOptions(total_steps, workers, trust, env), jobs, ray_address, quiet)


def require_data(**given: Any) -> None:
    """Raise ConfigError for what cannot be passed to the processes of a group."""
    for name, value in given.items():
        wrong = f"{name}= is only in this process, and a group of runs uses other processes"
        require(value is None, f"{wrong}; use settings, or functions of a module that can be imported")
