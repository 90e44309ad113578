"""The directory of a fork, with the checkpoint that it begins with; a Run in it."""

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from birl.config import ConfigError, from_json, to_json
from birl.errors import CheckpointError
from birl.lab.branch import Branch, fork_directory
from birl.lab.continuation import continuation
from birl.lab.fork_checks import not_of_run, require_fit
from birl.maths import schedules
from birl.registry import validate
from birl.run import checkpoint
from birl.run.checkpoint import Checkpoint, Progress
from birl.run.directory import CHECKPOINTS, Fork, has_begun, new_directory, write_config, write_fork
from birl.run.given import Given
from birl.run.run import Opened, Run
from birl.run.saving import RunProgress
from birl.run.start import stretched_text, with_run
from birl.run.trust import own_notices


def start_fork(
    branch: Branch,
    config: Any,
    given: Given = Given(),  # noqa: B008
    same_env: bool = False,
    quiet: bool = False,
    overwrite: bool = False,
    notices: Sequence[str] = (),
    pause_at: int | None = None,
) -> Run:
    """A fork with this Config, to be trained in a loop."""
    changed = branch.changes_to(config)
    if same_env:
        changed.pop("env.id", None)
    validate(branch.algorithm, config)
    require_fit(branch, config, changed, given.make_network)
    open_new = partial(_open_fork, branch, config, changed, overwrite, notices)
    return Run(open_new, given, quiet, pause_at)


def write_first(run_dir: Path, branch: Branch, config: Any, changed: dict[str, tuple[Any, Any]]) -> Checkpoint:
    """Make a complete run directory, with the checkpoint that the fork begins with.

    Without that checkpoint it is no run: so a fork that is killed at any moment is not begun, or
    can be resumed.
    """
    saved = branch.saved
    config = with_run(config, run_dir=str(run_dir))
    tensors, snapshot = continuation(saved, config.run.seed, changed)
    kept = {name: saved.manifest["progress"][name] for name in ("inexact_resumes", "masks", "changes")}
    progress = to_json(Progress()) | kept  # its seconds and its best are its own
    spaces = saved.observation_space, saved.action_space
    write_fork(run_dir, Fork(branch.parent, saved.path.name, saved.env_steps, changed))
    folder = run_dir / CHECKPOINTS
    path = checkpoint.write_checkpoint(
        folder, branch.algorithm, config, spaces, saved.env_steps, tensors, snapshot, progress
    )
    write_config(run_dir, branch.algorithm, config, progress["changes"])
    manifest = saved.manifest | {"progress": progress}
    return dataclasses.replace(
        saved, path=path, manifest=manifest, config=to_json(config), tensors=tensors, snapshot=snapshot
    )


def _open_fork(
    branch: Branch,
    config: Any,
    changed: dict[str, tuple[Any, Any]],
    overwrite: bool,
    notices: Sequence[str],
    stack: ExitStack,
) -> Opened:
    """Make the directory of a fork."""
    moved: list[str] = []
    plain = fork_directory(branch.parent)
    run_dir = stack.enter_context(new_directory(plain, config.run.run_dir, overwrite, moved.append))
    stack.enter_context(_explained(run_dir, changed))
    saved = write_first(run_dir, branch, config, changed)
    config = with_run(config, run_dir=str(run_dir))
    said = [*branch.notices, *notices, *moved, *own_notices(config), *fork_texts(branch, config, changed)]
    return Opened(branch.algorithm, config, run_dir, saved, RunProgress(saved), said)


def fork_texts(branch: Branch, config: Any, changed: dict[str, tuple[Any, Any]]) -> list[str]:
    """What the console says of a fork."""
    texts = [f"{_plain(name)} {_shown(old)} -> {_shown(new)}" for name, (old, new) in changed.items()]
    what = "; ".join(texts) if texts else "no setting changed: it continues as its parent does"
    found = [f"fork of {branch.parent} at {branch.saved.env_steps:,} steps: {what}"]
    before = changed.get("run.total_steps", (config.run.total_steps,))[0]
    if before != config.run.total_steps and (text := stretched_text(config, branch.saved.env_steps, before)):
        found.append(f"total_steps is {config.run.total_steps:,} now: schedules {text}")
    return found


def _plain(name: str) -> str:
    return name.rpartition(".")[2]


def _shown(value: Any) -> str:
    """A value of fork.json as it is written on the command line."""
    match value:
        case {"kind": str(), "values": list(), "points": list()}:
            return schedules.shown(from_json(schedules.Schedule, value))
        case list() | tuple():
            return " ".join(map(_shown, value)) or "none"
    return str(value)


@contextmanager
def _explained(run_dir: Path, changed: dict[str, tuple[Any, Any]]) -> Iterator[None]:
    """Name the changed settings if the checkpoint turns out not to fit before the first update."""
    try:
        yield
    except CheckpointError as problem:
        names = ", ".join(not_of_run(changed))
        if has_begun(run_dir) or not names:
            raise
        remedy = "leave them as they are, or begin a new run with birl train --like"
        raise ConfigError(f"fork with other {names}: {problem}; {remedy}") from problem
