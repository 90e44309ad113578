"""The directory of a group: group.json, and a run directory for each lane.

A lane's directory is complete before its training begins: it is a run without a checkpoint, or
with the one that a fork begins with. So starting a lane and continuing it are the same, and both
are what `birl resume` does.
"""

import dataclasses
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from birl.config import require, to_json
from birl.errors import CheckpointError
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
from birl.run.group_plan import GroupPlan, Lane

FORMAT = 1
GROUP_BYTES = 1 << 26  # the largest group.json that is read; a lane takes about 100 bytes

WriteLane = Callable[[Path, Lane], None]  # the run directory, and the lane with a Config that has this run_dir


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
    write_lane = _write_settings if write_lane is None else write_lane
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
            write_lane(run_dir, lane._replace(config=dataclasses.replace(lane.config, run=run)))
        write_json(directory / GROUP, _to_json(plan, ray_address))
    except BaseException:
        _discard(directory, made, moved)
        raise
    return read_group(directory), moved


def discard_group(group: Group, moved: Path | None) -> None:
    """Remove a new group of which no lane has begun, and put back what was moved aside for it."""
    _discard(group.directory, [lane.run_dir for lane in group.lanes], moved)


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


def read_group(directory: Path) -> Group:
    """The group in this directory; CheckpointError if its group.json is damaged."""
    require(is_group(directory), f"{directory} holds no group of runs: there is no {GROUP}")
    path = directory / GROUP
    match read_json(path, GROUP_BYTES):
        case {"algorithm": str(algorithm), "env": str(env_id), "lanes": list(lanes), **rest} if lanes:
            address = str(rest["ray_address"]) if rest.get("ray_address") is not None else None
            return Group(directory, algorithm, env_id, address, [_read_lane(lane, path) for lane in lanes])
    raise CheckpointError(f"{path} is damaged: it must name an algorithm, an environment and lanes")


def _write_settings(run_dir: Path, lane: Lane) -> None:
    """Make a run without a checkpoint, which starts from the beginning."""
    write_config(run_dir, name_of(lane.config), lane.config)


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
    """Whether this path stays below the directory that it is in."""
    path = PurePosixPath(name)
    return not path.is_absolute() and len(path.parts) > 0 and ".." not in path.parts
