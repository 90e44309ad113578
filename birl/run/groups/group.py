"""Training a group of runs, its lanes: `train_group` begins one, `resume_group` continues one."""

import dataclasses
import signal
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from birl.config import ConfigError, is_compiled, is_local, require
from birl.envs.make import require_importable, spaces_of
from birl.registry import require_supported, validate
from birl.run.directory import SUMMARY, has_begun, staying_in_place
from birl.run.files import write_json
from birl.run.given import PASSED_IN
from birl.run.groups.group_plan import Group, GroupPlan, WriteLane, discard_group, make_group, read_group
from birl.run.groups.group_results import (
    GroupConsole,
    lane_text,
    lanes_text,
    make_group_summary,
    point_text,
    settings_text,
)
from birl.run.groups.lane import LOG, GroupProgress, LaneEnd, LaneNews, LaneOptions, env_of, is_finished, lane_summary
from birl.run.groups.lane_training import run_processes, run_shares, take_turns, train_on_ray
from birl.run.lock import locked
from birl.run.signals import Interrupted, caught_signals
from birl.settings import flat_settings
from birl.workers.child import usable_cpus


def train_group(
    plan: GroupPlan,
    jobs: int | None = None,  # lanes that train at once; None: the CPU cores
    notices: Sequence[str] = (),
    overwrite: bool = False,
    quiet: bool = False,
    plain: Path | None = None,
    write_lane: WriteLane | None = None,
) -> dict[str, Any]:
    """Train every lane of a new group; the content of its summary.json.

    `plain` and `write_lane` are those of `make_group`.
    """
    require_jobs(jobs)
    require_trainable(plan)
    address = lane_address(plan.config)
    plan = plan if address is None else _without_address(plan)
    group, moved = make_group(plan, address, overwrite, plain, write_lane)
    console = GroupConsole(_title(group), len(group.lanes), quiet=quiet)
    aside = [f"what was in {group.directory} is in {moved} now"] if moved is not None else []
    # The user has just asked for these settings, whether or not they could be signed.
    try:
        return _train(group, LaneOptions(trust=True), jobs, address, console, [*notices, *aside])
    except ConfigError:
        if not any(has_begun(lane.run_dir) for lane in group.lanes):
            discard_group(group, moved)  # so that the corrected command works
        raise


def resume_group(
    directory: Path,
    options: LaneOptions,
    jobs: int | None = None,
    ray_address: str | None = None,
    quiet: bool = False,
) -> dict[str, Any]:
    """Continue every lane of a group that has not finished; the content of its summary.json.

    They train here unless `ray_address` is given: a group that somebody else made cannot choose a
    cluster.
    """
    require_jobs(jobs)
    group = read_group(directory)
    console = GroupConsole(_title(group), len(group.lanes), quiet=quiet)
    before = group.ray_address if ray_address is None else None
    notices = [f"its lanes trained on a Ray cluster before (--ray-address {before}); now they train here"]
    return _train(group, options, jobs, ray_address, console, notices if before else [])


def lane_address(config: Any) -> str | None:
    """The Ray cluster whose tasks the lanes are; None if they train here.

    If the settings ask for Ray actors, the address is theirs.
    """
    has_actors = config.env.ray_actors > 0 or flat_settings(config).get("pool") == "ray"
    return None if has_actors else config.env.ray_address


def require_jobs(jobs: int | None) -> None:
    """Raise ConfigError for an impossible number of lanes at once."""
    require(jobs is None or jobs >= 1, f"jobs {jobs} must be at least 1: the number of lanes that train at once")


def require_trainable(plan: GroupPlan) -> None:
    """Raise ConfigError if a lane cannot be trained; makes each kind of environment once."""
    for config in [lane.config for lane in plan.lanes if lane.seed == plan.seeds[0]]:
        require(config.env.id != PASSED_IN, "envs= are only in this process, and each lane is a process; use make_env=")
        if not is_compiled(config.env):  # compiled ones can take turns in this process
            require_importable(config.env, "a group of runs", "birl.train without seeds and sweep")
        encoder = str(flat_settings(config).get("encoder", ""))
        wrong = (
            f"encoder {encoder!r} is a function that only this process has, and a group of runs uses other processes"
        )
        require(not is_local(encoder), f"{wrong}; put it into a module that can be imported")
        validate(plan.algorithm, config)
        require_supported(config, spaces_of(config.env)[1])


def run_lanes(
    run_dirs: Sequence[Path], options: LaneOptions, jobs: int, ray_address: str | None, signals: list[int]
) -> Iterator[LaneEnd | LaneNews | None]:
    """Train these lanes of a group: how each ends, how far it is, and None meanwhile.

    This is the only place that knows where lanes train. Whatever trains them continues the run in
    each directory, and after a signal saves and ends.
    """
    if ray_address is not None:
        return train_on_ray(run_dirs, options, ray_address, jobs, signals)
    envs = [env_of(run_dir) for run_dir in run_dirs]
    if not all(map(is_compiled, envs)):
        return run_processes(run_dirs, options, jobs, signals)
    if any(is_local(env.id) for env in envs):  # other processes do not have the function
        return take_turns(run_dirs, options, signals)
    return run_shares(run_dirs, options, jobs, signals)


def _title(group: Group) -> str:
    return f"{group.algorithm} {group.env_id}"


def _without_address(plan: GroupPlan) -> GroupPlan:
    """The plan with lanes that do not name the cluster: they are the same wherever they train."""

    def changed(config: Any) -> Any:
        return dataclasses.replace(config, env=dataclasses.replace(config.env, ray_address=None))

    lanes = tuple(lane._replace(config=changed(lane.config)) for lane in plan.lanes)
    return plan._replace(config=changed(plan.config), lanes=lanes)


def _train(
    group: Group,
    options: LaneOptions,
    jobs: int | None,
    address: str | None,
    console: GroupConsole,
    notices: Sequence[str],
) -> dict[str, Any]:
    """Train the lanes that have not finished, and write the group's summary."""
    names = {lane.run_dir: lane.name for lane in group.lanes}
    with (
        staying_in_place(group.directory) as require_in_place,
        caught_signals() as signals,
        locked(group.directory),
        closing(console),
    ):
        left = [lane.run_dir for lane in group.lanes if not is_finished(lane.run_dir, options.total_steps)]
        # A cluster itself decides how many run at once.
        at_once = min(jobs or (usable_cpus() if address is None else len(left)), max(1, len(left)))
        where = "" if address is None else f", as tasks of the Ray cluster at {address}"
        lanes = f"{len(left)} of {len(names)} lanes to train, {at_once} at a time{where}"
        if not left:
            lanes = (
                f"all {len(names)} lanes have finished; to train longer: birl resume {group.directory} --total-steps N"
            )
        for notice in [*notices, f"group directory {group.directory}", lanes]:
            console.message(notice)
        progress = GroupProgress([(lane.name, lane.run_dir) for lane in group.lanes], options.total_steps)
        for run_dir in names.keys() - set(left):
            progress.end(names[run_dir], True)
        ends: dict[str, LaneEnd] = {}
        problems: dict[str, str] = {}
        with closing(run_lanes(left, options, at_once, address, signals)) as training:  # type: ignore[type-var]
            for end in training:
                require_in_place()
                if isinstance(end, LaneNews):
                    progress.take(names[end.run_dir], end)
                    continue
                if end is not None:
                    name = names[end.run_dir]
                    ends[name] = end
                    progress.end(name, end.problem is None and not end.stopped)
                    _report(console, name, end)
                problems = {name: end.problem for name, end in ends.items() if end.problem is not None}
                finished = len(names) - len(left) + len(ends) - len(problems)
                running = min(at_once, len(left) - len(ends))
                console.show(progress.status, finished, running, len(problems))
        if signals:
            _stop(console, group, [names[run_dir] for run_dir in left], ends, signals[0])
        summary = make_group_summary(group, problems)
        write_json(group.directory / SUMMARY, summary)
        _show_results(console, group, summary)
    return summary


def _report(console: GroupConsole, name: str, end: LaneEnd) -> None:
    """Say how a lane ended."""
    if end.problem is not None:
        console.warn(f"{name} failed: {end.problem}; see {end.run_dir / LOG}")
    elif end.stopped:
        console.message(f"{name}: stopped")
    else:
        console.message(lane_text(name, lane_summary(end.run_dir)))


def _stop(console: GroupConsole, group: Group, names: Sequence[str], ends: dict[str, LaneEnd], number: int) -> None:
    """End after a signal: say how to continue."""
    left = [name for name in names if name not in ends or ends[name].stopped or ends[name].problem is not None]
    remedy = f"continue with: birl resume {group.directory}"
    console.message(f"{signal.Signals(number).name}: {lanes_text(left)} not finished; {remedy}")
    raise Interrupted(128 + number)


def _show_results(console: GroupConsole, group: Group, summary: dict[str, Any]) -> None:
    """Show the result of each combination of settings, and which lanes failed."""
    for point in summary["points"]:
        settings = settings_text(point["settings"])
        console.message(f"{_title(group)}{f', {settings}' if settings else ''}: {point_text(point)}")
    failed = summary["failed"]
    if failed:
        remedy = f"to try again: birl resume {group.directory}"
        console.warn(f"{len(failed)} of {len(group.lanes)} lanes failed: {', '.join(failed)}; {remedy}")
