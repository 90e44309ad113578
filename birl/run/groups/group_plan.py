"""The runs of a group: every combination of swept settings, with every seed, and its directory.

The directory holds group.json, and a run directory for each lane. A lane's directory is complete
before its training begins: it is a run without a checkpoint, or with the one that a fork begins
with. So starting a lane and continuing it are the same, and both are what `birl resume` does.
"""

import dataclasses
import itertools
import re
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from birl.config import ConfigError, Wrapper, require, to_json
from birl.errors import CheckpointError, suggest_setting
from birl.maths import schedules
from birl.registry import name_of
from birl.run.directory import (
    GROUP,
    claim_named,
    has_begun,
    is_group,
    remove_unstarted,
    task_directory,
    write_config,
)
from birl.run.files import read_json, require_real_directory, write_json
from birl.settings import flat_settings

MOST_SEEDS = 10_000  # more is surely a mistake
NAME_LENGTH = 60  # of the text of a value in a directory's name
Configure = Callable[[dict[str, Any]], Any]  # from swept settings, by flat name, to a Config
FORMAT = 1
GROUP_BYTES = 1 << 26  # the largest group.json that is read; a lane takes about 100 bytes


class Lane(NamedTuple):
    """One run of a group."""

    name: str  # its directory within the group's: seed-1, or learning_rate=0.0003/seed-1
    seed: int
    settings: dict[str, Any]  # the swept settings by flat name; {} without a sweep
    config: Any


WriteLane = Callable[[Path, Lane], None]  # the run directory, and the lane with a Config that has this run_dir


class GroupPlan(NamedTuple):
    """The runs of a group."""

    algorithm: str
    config: Any  # the Config without the swept settings
    seeds: tuple[int, ...]
    sweep: dict[str, tuple[Any, ...]]  # the values of each swept setting
    lanes: tuple[Lane, ...]  # in the order in which they start


class StoredLane(NamedTuple):
    """A lane as group.json names it."""

    name: str
    seed: int
    settings: dict[str, Any]  # the swept settings, as JSON
    run_dir: Path


class Group(NamedTuple):
    """A group as its group.json says."""

    directory: Path
    algorithm: str
    env_id: str
    ray_address: str | None  # the cluster that its lanes are tasks of
    lanes: list[StoredLane]

    def points(self) -> list[tuple[dict[str, Any], list[StoredLane]]]:
        """Each combination of swept settings, with its lanes in the order of their seeds."""
        found: list[tuple[dict[str, Any], list[StoredLane]]] = []
        for lane in self.lanes:
            own = next((lanes for settings, lanes in found if settings == lane.settings), None)
            if own is None:
                found.append((lane.settings, [lane]))
            else:
                own.append(lane)
        return found


def plan_group(configure: Configure, sweep: Mapping[str, Iterable[Any]], seeds: int) -> GroupPlan:
    """The lanes of a sweep with this many seeds each; ConfigError if a setting cannot be swept.

    `configure` gives the Config of swept settings, as if they were options. The first seed is that
    of the Config. The first seed of every combination comes first, for an early comparison.
    """
    base = configure({})
    require(1 <= seeds <= MOST_SEEDS, f"seeds {seeds} must lie between 1 and {MOST_SEEDS:,}")
    given = {name: _values(name, values, base) for name, values in sweep.items()}
    points = [_configured(configure, point) for point in crossed_values(given)]
    names = _point_names([settings for settings, _ in points])
    numbers = tuple(base.run.seed + index for index in range(seeds))
    lanes = [
        Lane(f"{name}/seed-{seed}" if name else f"seed-{seed}", seed, settings, _with_seed(config, seed))
        for seed in numbers
        for name, (settings, config) in zip(names, points, strict=True)
    ]
    used = {name: tuple(_distinct(settings[name] for settings, _ in points)) for name in given}
    return GroupPlan(name_of(base), base, numbers, used, tuple(lanes))


def crossed_values(sweep: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Every combination of the values, by name; [{}] if nothing is swept."""
    return [dict(zip(sweep, values, strict=True)) for values in itertools.product(*sweep.values())]


def value_name(value: Any) -> str:
    """A value as part of a directory's name: letters, digits and . + = - _ only."""
    match value:
        case schedules.Schedule():
            text = schedules.shown(value)
        case Wrapper():
            text = value.text()
        case tuple():
            text = "x".join(map(value_name, value)) or "none"
        case dict():
            text = "-".join(f"{name}-{value_name(item)}" for name, item in value.items()) or "none"
        case _:
            text = str(value)
    return re.sub(r"[^\w.+=-]+", "-", text)[:NAME_LENGTH]


def make_group(
    plan: GroupPlan,
    ray_address: str | None,
    overwrite: bool,
    plain: Path | None = None,
    write_lane: WriteLane | None = None,
) -> tuple[Group, Path | None]:
    """Make the directories of a group; the group, and where the one that was there before is now.

    They are `run_dir`, or else `plain`, by default runs/ALGORITHM-ENV-group, numbered if that
    exists; without "-group" the second would have the name of the run with seed 2. `write_lane`
    makes a run of each lane. group.json is written last, so what has one is complete.
    """
    plain = task_directory(plan.algorithm, plan.config, "group") if plain is None else plain
    directory, _, moved = claim_named(plain, plan.config.run.run_dir, overwrite)
    run_dirs = [directory / lane.name for lane in plan.lanes]
    for run_dir in run_dirs:
        _require_unbegun(directory, run_dir)
    made = [run_dir for run_dir in run_dirs if not run_dir.exists()]
    try:
        for run_dir, lane in zip(run_dirs, plan.lanes, strict=True):
            run_dir.mkdir(parents=True, exist_ok=True)
            remove_unstarted(run_dir, set())  # a process was killed while it made a group
            run = dataclasses.replace(lane.config.run, run_dir=str(run_dir))
            config = dataclasses.replace(lane.config, run=run)
            if write_lane is None:  # a run without a checkpoint, which starts from the beginning
                write_config(run_dir, plan.algorithm, config)
            else:
                write_lane(run_dir, lane._replace(config=config))
        write_json(directory / GROUP, _to_json(plan, ray_address))
    except BaseException:
        _discard(directory, made, moved)
        raise
    return read_group(directory), moved


def discard_group(group: Group, moved: Path | None) -> None:
    """Remove a new group of which no lane has begun, and put back what was moved aside for it."""
    _discard(group.directory, [lane.run_dir for lane in group.lanes], moved)


def read_group(directory: Path) -> Group:
    """The group in this directory; CheckpointError if its group.json is damaged."""
    require(is_group(directory), f"{directory} holds no group of runs: there is no {GROUP}")
    path = directory / GROUP
    match read_json(path, GROUP_BYTES):
        case {"algorithm": str(algorithm), "env": str(env_id), "lanes": list(lanes), **rest} if lanes:
            address = str(rest["ray_address"]) if rest.get("ray_address") is not None else None
            return Group(directory, algorithm, env_id, address, [_read_lane(lane, path) for lane in lanes])
    raise CheckpointError(f"{path} is damaged: it must name an algorithm, an environment and lanes")


def _values(name: str, values: Iterable[Any], base: Any) -> list[Any]:
    """The values of a swept setting; ConfigError if the setting is unknown or has none."""
    known = flat_settings(base)
    require(name != "seed", "sweep seed: seeds are not swept; use --seeds 5 (seeds=5 in Python), which crosses with it")
    require(name != "run_dir", "sweep run_dir: each run of a group has a directory of its own below run_dir")
    algorithm = name_of(base)
    if name not in known:
        remedy = suggest_setting(name, known) or f"birl train {algorithm} --help lists them"
        raise ConfigError(f"sweep {name}: {algorithm} has no such setting; {remedy}")
    is_list = isinstance(values, Iterable) and not isinstance(values, str | bytes | Mapping)
    require(is_list, f"sweep {name} {values!r} is not a list of values; write [{values!r}]")
    found = list(values)
    require(len(found) > 0, f"sweep {name} has no values; give at least one")
    return found


def _configured(configure: Configure, point: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    """The swept settings as their types, and the Config that has them."""
    try:
        config = configure(point)
    except ConfigError as problem:
        given = ", ".join(f"{name}={value}" for name, value in point.items())
        raise ConfigError(f"sweep {given}: {problem}" if given else str(problem)) from problem
    found = flat_settings(config)
    return {name: found[name] for name in point}, config


def _point_names(points: Sequence[dict[str, Any]]) -> list[str]:
    """A directory's name for each combination; ConfigError if two are equal."""
    names: list[str] = []
    for index, point in enumerate(points):
        same = ", ".join(f"{name}={value_name(value)}" for name, value in point.items())
        require(point not in points[:index], f"sweep {same} is given twice; leave one out")
        plain = ",".join(f"{name}={value_name(value)}" for name, value in point.items())
        others = (f"{plain},{number}" for number in itertools.count(2))
        names.append(plain if plain not in names else next(name for name in others if name not in names))
    return names


def _with_seed(config: Any, seed: int) -> Any:
    return dataclasses.replace(config, run=dataclasses.replace(config.run, seed=seed))


def _distinct(values: Iterable[Any]) -> list[Any]:
    """The values without repetitions; some, such as dicts, have no hash."""
    found: list[Any] = []
    for value in values:
        if value not in found:
            found.append(value)
    return found


def _discard(directory: Path, run_dirs: Sequence[Path], moved: Path | None) -> None:
    (directory / GROUP).unlink(missing_ok=True)
    for run_dir in run_dirs:
        shutil.rmtree(run_dir, ignore_errors=True)
    with suppress(OSError):  # only empty directories are removed, and perhaps something else is there now
        for folder in sorted({run_dir.parent for run_dir in run_dirs} - {directory}):
            folder.rmdir()
        directory.rmdir()
        if moved is not None:
            moved.rename(directory)


def _to_json(plan: GroupPlan, ray_address: str | None) -> dict[str, Any]:
    lanes = [{"directory": lane.name, "seed": lane.seed, "settings": to_json(lane.settings)} for lane in plan.lanes]
    return {
        "format": FORMAT,
        "algorithm": plan.algorithm,
        "env": plan.config.env.id,
        "config": to_json(plan.config),
        "seeds": list(plan.seeds),
        "sweep": to_json(plan.sweep),
        "ray_address": ray_address,
        "lanes": lanes,
    }


def _read_lane(stored: Any, path: Path) -> StoredLane:
    match stored:
        case {"directory": str(name), "seed": int(seed), "settings": dict(settings)} if _is_inside(name):
            run_dir = path.parent / name
            _require_real(path.parent, run_dir)
            return StoredLane(name, seed, settings, run_dir)
    raise CheckpointError(f"{path} is damaged: {stored!r} is not a lane with a directory below {path.parent}")


def _require_unbegun(directory: Path, run_dir: Path) -> None:
    """Raise ConfigError if a run has begun where a lane should be."""
    _require_real(directory, run_dir)
    held = f"run_dir {directory}: {run_dir} holds a run; choose another run_dir, or move it away"
    require(not has_begun(run_dir), held)


def _require_real(directory: Path, run_dir: Path) -> None:
    """Raise CheckpointError for a link: behind it, other people's files would be written."""
    for part in (run_dir, *run_dir.parents[: len(run_dir.relative_to(directory).parts) - 1]):
        require_real_directory(part)


def _is_inside(name: str) -> bool:
    """True if this path stays below the directory that it is in."""
    path = PurePosixPath(name)
    return not path.is_absolute() and len(path.parts) > 0 and ".." not in path.parts
