"""Groups of forks: several continuations of one run, or a fork of every run of a group."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from birl.config import ConfigError, require
from birl.errors import CheckpointError
from birl.lab.branch import At, Branch, fork_directory, read_branch
from birl.lab.fork_checks import require_fit, require_unfinished
from birl.lab.fork_start import write_first
from birl.run.given import Given
from birl.run.groups.group import train_group
from birl.run.groups.group_plan import GroupPlan, Lane, plan_group, read_group
from birl.settings import flat_settings

Change = Callable[[Any, dict[str, Any]], Any]  # from the Config of a branch and swept settings to that of a fork


@dataclass(frozen=True)
class Root:
    """A run that some of the forks begin with."""

    branch: Callable[[], Branch]  # read when it is needed: a group's replays may not fit in memory together
    config: Any  # of the branch
    notices: list[str]  # about the branch
    point: str = ""  # of a run in a group: the name of its swept settings
    settings: dict[str, Any] | None = None  # and these settings

    def name_of(self, lane: Lane) -> str:
        """The lane's directory: the settings that were swept before come first."""
        *own, seed = PurePosixPath(lane.name).parts
        points = ",".join(filter(None, [self.point, *own]))
        return f"{points}/{seed}" if points else seed


def root_of(branch: Branch) -> Root:
    """One run, several of whose continuations are trained."""
    return Root(lambda: branch, branch.config, branch.notices)


def roots_of(group_dir: Path, at: At, given: Given) -> list[Root]:
    """Every run of a group. `at` means in each of them the same, or the next one that was kept."""
    found = []
    for lane in read_group(group_dir).lanes:
        read = partial(read_branch, lane.run_dir, given=given)
        branch = read(at, near=True)
        *point, _ = PurePosixPath(lane.name).parts
        again = partial(_read_again, read, branch.saved.env_steps, at)
        found.append(Root(again, branch.config, branch.notices, ",".join(point), lane.settings))
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
            named = lane._replace(name=root.name_of(lane), settings=before | lane.settings)
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
