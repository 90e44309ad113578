"""fork.json: which checkpoint of which run a fork began with, and the settings that it changed."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from birl.errors import CheckpointError
from birl.run.directory import FORK
from birl.run.files import read_json, write_json
from birl.run.manifest import is_checkpoint_name


@dataclass(frozen=True)
class Fork:
    """Where a run branched off."""

    parent: Path  # the run directory of the other run
    checkpoint: str  # its name, such as 000050000
    env_steps: int  # of that checkpoint
    changed: dict[str, tuple[Any, Any]]  # the settings that differ, by dotted name: their values before and after


def write_fork(run_dir: Path, fork: Fork) -> None:
    """Write fork.json. The parent is named relative to the fork, so that both can move together."""
    parent = os.path.relpath(fork.parent.resolve(), run_dir.resolve())
    changed = {name: list(values) for name, values in fork.changed.items()}
    content = {"parent": parent, "checkpoint": fork.checkpoint, "env_steps": fork.env_steps, "changed": changed}
    write_json(run_dir / FORK, content)


def read_fork(run_dir: Path) -> Fork | None:
    """What fork.json says; None if the run is no fork. CheckpointError if it is damaged."""
    path = run_dir / FORK
    if not os.path.lexists(path):
        return None
    match read_json(path):
        case {"parent": str(parent), "checkpoint": str(name), "env_steps": int(steps), "changed": dict(changed)} if (
            is_checkpoint_name(name) and int(name) == steps and all(_is_pair(pair) for pair in changed.values())
        ):
            place = Path(os.path.normpath(run_dir.resolve() / parent))
            return Fork(place, name, steps, {setting: (old, new) for setting, (old, new) in changed.items()})
    raise CheckpointError(f"{path} is damaged: it must name a parent, a checkpoint, its env_steps and what changed")


def _is_pair(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2
