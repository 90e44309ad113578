"""Forks: new runs that begin with a checkpoint of another run, with settings changed."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from birl.config import ConfigError, require
from birl.envs.make import MakeEnv
from birl.errors import CheckpointError
from birl.lab.branch import (
    At,
    Branch,
    fork_directory,
    read_branch,
    require_fit,
    require_unfinished,
    start_fork,
    write_first,
)
from birl.run.configure import with_settings
from birl.run.directory import is_group
from birl.run.given import Given, divided, require_data
from birl.run.groups.group import train_group
from birl.run.groups.group_plan import GroupPlan, Lane, plan_group, read_group
from birl.run.run import Run
from birl.run.start import run_to_end
from birl.settings import flat_settings

Change = Callable[[Any, dict[str, Any]], Any]  # from the Config of a branch and swept settings to that of a fork


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
    return start_fork(branch, config, given, is_given, quiet, overwrite, pause_at)


def _fork_group(
    run: Path, at: At, seeds: int | None, sweep: Mapping[str, Iterable[Any]], jobs: int | None, options: dict[str, Any]
) -> dict[str, Any]:
    """Train a group of forks; its summary. The options are those of `birl.open_fork`."""
    objects, settings = divided(options, "env", "trust")
    given = Given(**objects)
    pause_at = settings.pop("pause_at", None)
    require_data(envs=given.envs, eval_envs=given.eval_envs, make_network=given.make_network, pause_at=pause_at)
    quiet, overwrite = settings.pop("quiet", False), settings.pop("overwrite", False)
    both = ", ".join(sorted(settings.keys() & sweep.keys()))
    require(not both, f"{both} is swept and set at once; leave one out")
    roots = roots_of(run, at, given)
    change: Change = lambda config, point: with_settings(config, settings | point)  # noqa: E731
    return train_forks(run, roots, change, sweep, seeds, jobs, overwrite, quiet)


@dataclass(frozen=True)
class Root:
    """A run that some of the forks begin with."""

    branch: Callable[[], Branch]  # read when it is needed: a group's replays may not fit in memory together
    config: Any  # of the branch
    notices: list[str]  # about the branch
    point: str = ""  # of a run in a group: the name of its swept settings
    settings: dict[str, Any] | None = None  # and these settings

    def lane_name(self, lane: Lane) -> str:
        """The lane's directory: the settings that were swept before come first."""
        *own, seed = PurePosixPath(lane.name).parts
        points = ",".join(filter(None, [self.point, *own]))
        return f"{points}/{seed}" if points else seed


def roots_of(run: Path, at: At, given: Given) -> list[Root]:
    """This run, or every run of a group: there `at` may be the next checkpoint that was kept."""
    if not is_group(run):
        branch = read_branch(run, at, given)
        return [Root(lambda: branch, branch.config, branch.notices)]
    found = []
    for lane in read_group(run).lanes:
        read = partial(read_branch, lane.run_dir, given=given)
        first = read(at, near=True)
        *point, _ = PurePosixPath(lane.name).parts
        again = partial(_read_again, read, first.saved.env_steps, at)
        found.append(Root(again, first.config, first.notices, ",".join(point), lane.settings))
    return found


def _read_again(read: Callable[[At], Branch], steps: int, at: At) -> Branch:
    """The branch at these steps. A run that trains may have removed it: then what `at` is now."""
    try:
        return read(steps)
    except (ConfigError, CheckpointError):
        if isinstance(at, int):
            raise
        return read(at)


def train_forks(
    parent: Path,
    roots: Sequence[Root],
    change: Change,
    sweep: Mapping[str, Iterable[Any]],
    seeds: int | None,
    jobs: int | None,
    overwrite: bool = False,
    quiet: bool = False,
) -> dict[str, Any]:
    """Train a group of forks of a run or a group; the content of its summary.json."""
    plan, origins = plan_forks(parent, roots, change, sweep, seeds)

    def write_lane(run_dir: Path, lane: Lane) -> None:
        branch = origins[lane.name].branch()
        require_unfinished(branch, lane.config)  # it may be a later checkpoint than the one of the plan
        write_first(run_dir, branch, lane.config, branch.changes_to(lane.config))
        notices.extend(notice for notice in branch.notices if notice not in notices)

    about = dict.fromkeys(notice for root in roots for notice in root.notices)
    notices = [f"forks of {parent}: {len(plan.lanes)} lanes", *about]
    return train_group(plan, jobs, notices, overwrite, quiet, fork_directory(parent), write_lane)


def plan_forks(
    parent: Path, roots: Sequence[Root], change: Change, sweep: Mapping[str, Iterable[Any]], seeds: int | None
) -> tuple[GroupPlan, dict[str, Root]]:
    """The lanes of the forks, and what each begins with, by its name."""
    several = len(roots) > 1 or roots[0].settings is not None
    wrong = f"seeds {seeds}: {parent} is a group, and each of its runs is forked with its own seed"
    require(not several or seeds is None, f"{wrong}; leave it out, or fork one of its runs")
    lanes: list[Lane] = []
    origins: dict[str, Root] = {}
    swept = {name: list(values) for name, values in sweep.items()}
    plans = [plan_group(partial(change, root.config), swept, seeds or 1) for root in roots]
    for root, plan in zip(roots, plans, strict=True):
        before = root.settings or {}
        _require_kept(parent, root, plan, before)
        for lane in plan.lanes:
            if lane.seed == plan.seeds[0]:
                branch = root.branch()
                require_fit(branch, lane.config, branch.changes_to(lane.config))
            named = lane._replace(name=root.lane_name(lane), settings=before | lane.settings)
            lanes.append(named)
            origins[named.name] = root
    seeds_of_all = tuple(dict.fromkeys(lane.seed for lane in lanes))
    return plans[0]._replace(seeds=seeds_of_all, lanes=tuple(lanes)), origins


def _require_kept(parent: Path, root: Root, plan: GroupPlan, before: dict[str, Any]) -> None:
    """Raise ConfigError if what told the runs of a group apart is changed now."""
    was, now = flat_settings(root.config), flat_settings(plan.config)
    changed = [name for name in before if name in plan.sweep or was.get(name) != now.get(name)]
    changed += ["seed"] if root.settings is not None and was["seed"] != now["seed"] else []
    names = ", ".join(changed)
    require(not changed, f"{names} tells the runs of {parent} apart; leave it as it is, or fork one of its runs")
