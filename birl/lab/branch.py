"""Where a fork begins: a checkpoint of another run, which is only read."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from birl.config import ConfigError, from_stored, require
from birl.errors import CheckpointError
from birl.lab.tuning.plan import is_search
from birl.registry import algorithm_named
from birl.run import checkpoint
from birl.run.checkpoint import Checkpoint, load_checkpoint
from birl.run.directory import CHECKPOINTS, config_changes, is_group, read_settings, require_run, settings_in
from birl.run.given import Given
from birl.run.start import allowed_config, start_notices, with_run

At = int | Literal["best"] | None  # a checkpoint by its environment steps; None: the newest undamaged one
ATTEMPTS = 5  # to read a checkpoint of a run that trains, and so removes old ones


@dataclass(frozen=True)
class Branch:
    """A checkpoint of a run, and its settings as far as they may be used."""

    parent: Path
    algorithm: str
    saved: Checkpoint
    config: Any  # without run_dir
    notices: list[str]

    def changes_to(self, config: Any) -> dict[str, tuple[Any, Any]]:
        """The settings of this Config that the parent has otherwise: both values, as JSON."""
        parent_config = from_stored(algorithm_named(self.algorithm).Config, self.saved.config)  # with new fields
        return config_changes(parent_config, config)


def read_branch(
    run: str | Path,
    at: At = None,
    given: Given = Given(),  # noqa: B008
    *,
    near: bool = False,
) -> Branch:
    """The checkpoint that a fork of this run begins with. The run may be training meanwhile.

    With `near`, it may also be the one that keep_every kept after the steps `at`.
    """
    parent = Path(run)
    require_run(parent)
    notices: list[str] = []
    saved = _load(parent, _kept_after(parent, at) if near else at, notices)
    settings = settings_in(saved)  # as they were then: a run that was trained longer has others now
    config, more = allowed_config(settings, saved, given)
    notices += [*more, *start_notices(saved)]
    return Branch(parent, settings.algorithm, saved, with_run(config, run_dir=None), notices)


def fork_directory(parent: Path) -> Path:
    """Where a fork is by default: beside its parent.

    That of a run in a group is beside the group; of a run or a group in a search, beside that.
    """
    whole = parent.resolve()
    searches = (path for path in whole.parents[:3] if is_search(path))
    groups = (path for path in whole.parents[:3] if is_group(path))
    around = next(searches, None) or next(groups, None)
    if around is None:
        named = whole if parent.name in ("", "..") else parent
        return named.with_name(f"{named.name}-fork")
    inner = "-".join(whole.relative_to(around).parts)
    return around.with_name(f"{around.name}-{inner}-fork")


def _load(parent: Path, at: At, notices: list[str]) -> Checkpoint:
    """The checkpoint, read again if a run that trains has removed it meanwhile for a newer one."""
    folder = parent / CHECKPOINTS
    for _ in range(ATTEMPTS):
        there = checkpoint.checkpoints_in(folder)
        reports: list[str] = []
        problem = saved = None
        try:
            saved = _load_once(folder, at, reports)
        except CheckpointError as error:
            problem = error
        if checkpoint.checkpoints_in(folder) == there or not (problem or reports):
            break
    if problem is not None:
        raise problem
    if saved is None:
        remedy = "fork it once it has one, or start a run with birl train --like"
        raise ConfigError(f"{parent} has no checkpoint yet; {remedy}")
    notices += reports
    return saved


def _load_once(folder: Path, at: At, reports: list[str]) -> Checkpoint | None:
    return checkpoint.load_newest(folder, reports.append) if at is None else load_checkpoint(_path_at(folder, at))


def _kept_after(parent: Path, at: At) -> At:
    """The steps of the checkpoint that was kept for these; `at` itself if there is none."""
    folder = parent / CHECKPOINTS
    paths = checkpoint.checkpoints_in(folder)
    if not isinstance(at, int) or folder / f"{at:09d}" in paths:
        return at
    match read_settings(parent).values:
        case {"run": {"keep_every": int(every)}} if every > 0:
            kept = [int(path.name) for path in checkpoint.kept_for_good(paths, every)]
            return next((steps for steps in kept if steps >= at and steps // every == at // every), at)
    return at


def _path_at(folder: Path, at: int | str) -> Path:
    """The checkpoint at these steps exactly, or the best one; ConfigError says which there are."""
    steps = [int(path.name) for path in checkpoint.checkpoints_in(folder)]
    there = f"there are {', '.join(f'{step:,}' for step in steps)}" if steps else "there are none yet"
    if at == "best":
        best = checkpoint.read_best(folder)
        if best is None:
            raise ConfigError(
                f"at 'best': {folder.parent} has no best checkpoint, for it was not evaluated (--eval-every); {there}"
            )
        return folder / str(best["checkpoint"])
    require(isinstance(at, int), f"at {at!r} is neither a number of steps nor 'best'")
    remedy = "choose one of them; --keep-every N keeps some for good"
    require(at in steps, f"at {at:,}: {folder.parent} has no checkpoint of exactly these steps; {there}; {remedy}")
    return folder / f"{at:09d}"
