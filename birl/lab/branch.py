"""The start of a fork: a checkpoint of another run, and the settings that fit it."""

import dataclasses
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from birl.config import ConfigError, from_stored, require, to_json
from birl.envs.make import spaces_of
from birl.envs.spaces import has_images
from birl.errors import CheckpointError
from birl.lab.reproduce import stored_text
from birl.lab.tuning.plan import is_search
from birl.nets.allowance import limited_by
from birl.registry import algorithm_named, validate
from birl.run import checkpoint
from birl.run.checkpoint import Checkpoint, Progress, load_checkpoint
from birl.run.directory import (
    CHECKPOINTS,
    Fork,
    config_changes,
    has_begun,
    is_group,
    new_directory,
    read_settings,
    require_run,
    settings_in,
    write_config,
    write_fork,
)
from birl.run.given import PASSED_IN, Given
from birl.run.run import Opened, Run
from birl.run.saving import RunProgress
from birl.run.start import allowed_config, start_notices, stretched_text, with_run
from birl.run.state_tensors import tensors_to_state
from birl.run.trust import own_notices
from birl.settings import flat_settings
from birl.speed import prepare_jax
from birl.types import NEW_EPISODES, Snapshot
from birl.workers.supervisor import child_seed

Changes = dict[str, tuple[Any, Any]]  # the settings of a fork that differ from its parent's: both values, as JSON
At = int | Literal["best"] | None  # a checkpoint by its environment steps; None: the newest undamaged one
ATTEMPTS = 5  # to read a checkpoint of a run that trains, and so removes old ones
SEED = "run.seed"
KEY = ".key"  # the leaf of every State that all its randomness comes from
CYCLE_KEY = "/cycle/key"  # of an actor-learner with a replay, for its next cycle
# Settings of EnvConfig that do not change what an environment does.
WHERE_ENVS_RUN = {"env.workers", "env.step_timeout", "env.ray_address"}
# Settings that the snapshot is made for; it cannot be restored with others.
FIXED = {
    "env.num_envs": "the saved episodes are those of that many environments",
    "env.backend": "the saved episodes are those of the other kind of environments",
    "env.ray_actors": "the saved episodes are divided among that many Ray actors",
    "pool": "the checkpoint is that of the other pool",
    "actor_learners": "the checkpoint has a part for each of them",
    "replay_size": "the saved replay has that size",
    "prioritized": "only a prioritized replay has priorities, and the saved one is used",
    "prefill": "only an empty replay is prefilled, and that of the checkpoint is used",
}
WITH_REPLAY = {"rollout_length": "the saved replay consists of rollouts of that length"}


@dataclass(frozen=True)
class Branch:
    """A checkpoint of a run, and its settings as far as they may be used."""

    parent: Path
    algorithm: str
    saved: Checkpoint
    config: Any  # without run_dir
    notices: list[str]

    def changes_to(self, config: Any) -> Changes:
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
    """The default directory of a fork: beside its parent.

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
            saved = (
                checkpoint.load_newest(folder, reports.append) if at is None else load_checkpoint(_path_at(folder, at))
            )
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


def continuation(saved: Checkpoint, seed: int, changed: dict[str, Any]) -> tuple[dict[str, np.ndarray], Snapshot]:
    """The State's tensors and the snapshot that a fork with these changes begins with.

    Another seed gives other random keys. With another seed or other settings of the environment,
    new episodes begin. Networks, optimiser, replay and statistics stay.
    """
    tensors, snapshot = saved.tensors, saved.snapshot
    if SEED in changed:
        tensors = tensors | {KEY: fold_seed(tensors[KEY], seed)}
        keys = {name: fold_seed(key, seed) for name, key in snapshot.arrays.items() if f"/{name}".endswith(CYCLE_KEY)}
        snapshot = dataclasses.replace(snapshot, arrays=snapshot.arrays | keys)
    if SEED in changed or any(name.startswith("env.") and name not in WHERE_ENVS_RUN for name in changed):
        snapshot = with_new_episodes(snapshot, seed, saved.env_steps)
    return tensors, snapshot


def fold_seed(keys: np.ndarray, seed: int) -> np.ndarray:
    """Keys [..., 2] that are different for every seed, each derived from its own key."""
    words = [np.random.SeedSequence([seed, *key.tolist()]).generate_state(2) for key in keys.reshape(-1, 2)]
    return np.array(words, np.uint32).reshape(keys.shape)


def with_new_episodes(snapshot: Snapshot, seed: int, env_steps: int) -> Snapshot:
    """The snapshot with new episodes, which begin with a seed that no run begins with.

    The snapshots of actor-learners and of Ray actors are parts of one.
    """
    values = snapshot.values | {NEW_EPISODES: child_seed(seed, 0, env_steps)}
    for name in ("learners", "parts"):
        if name in values:
            values[name] = [
                part | {NEW_EPISODES: child_seed(seed, number if name == "learners" else 0, env_steps)}
                for number, part in enumerate(values[name])
            ]
    if snapshot.arrays:  # nothing of the episodes is restored, so nothing of it is inexact
        return dataclasses.replace(snapshot, values=values, exact=True, reason="")
    return snapshot  # of actor-learners in processes, which always begin new episodes


def require_fit(branch: Branch, config: Any, changed: Changes, make_network: Any = None) -> None:
    """Raise ConfigError, which names the setting, if the checkpoint does not fit this Config."""
    require_unfinished(branch, config)
    fixed = FIXED | (WITH_REPLAY if "replay_size" in flat_settings(config) else {})
    for name in changed.keys() & fixed.keys():
        _refuse(branch, name, changed[name], fixed[name])
    _require_spaces(branch, config, changed)
    if (problem := _misfit(branch, config, make_network)) is None:
        return
    suspects = not_of_run(changed)
    for name, values in suspects.items():
        if (own := _misfit_alone(branch, name, values[1], make_network)) is not None:
            _refuse(branch, name, values, own)
    names = ", ".join(suspects) or "make_network"
    raise ConfigError(f"fork with other {names}: {problem}; leave them as they were in {branch.parent}")


def require_unfinished(branch: Branch, config: Any) -> None:
    """Raise ConfigError if the fork would end before it begins."""
    done, total = branch.saved.env_steps, config.run.total_steps
    require(
        total > done,
        f"total_steps {total:,} must be more than the {done:,} steps of the checkpoint; "
        "set total_steps, or begin at an earlier one: --at STEP",
    )


def not_of_run(changed: Changes) -> Changes:
    """The changes that can be why a checkpoint does not fit: not its length, seed, evaluations."""
    return {name: values for name, values in changed.items() if not name.startswith("run.")}


def _require_spaces(branch: Branch, config: Any, changed: Changes) -> None:
    """Raise ConfigError if the environment was changed and has other spaces now."""
    names = [name for name in changed if name.startswith("env.")]
    if not names or config.env.id == PASSED_IN:
        return
    saved = branch.saved.observation_space, branch.saved.action_space
    for kind, before, now in zip(("observation", "action"), saved, spaces_of(config.env), strict=True):
        if before != now:
            _refuse(branch, names[0], changed[names[0]], f"the {kind} space was {before} and would be {now}")


def _misfit(branch: Branch, config: Any, make_network: Any) -> str | None:
    """The reason why the saved State does not fit this Config; None if it fits."""
    prepare_jax(config, has_images(branch.saved.observation_space))
    algorithm = algorithm_named(branch.algorithm)
    try:
        with limited_by(branch.saved.tensors):
            template = algorithm.init(config, branch.saved.observation_space, branch.saved.action_space, make_network)
        tensors_to_state(template, branch.saved.tensors)
    except CheckpointError as problem:
        return str(problem)
    return None


def _misfit_alone(branch: Branch, name: str, value: Any, make_network: Any) -> str | None:
    """As `_misfit`, of one change; None too if it is valid only together with another change."""
    try:
        return _misfit(branch, _with_change(branch, name, value), make_network)
    except ConfigError:
        return None


def _with_change(branch: Branch, name: str, value: Any) -> Any:
    """The parent's Config with one setting changed, given by its dotted name."""
    settings = to_json(branch.config)
    *parts, last = name.split(".")
    inner = settings
    for part in parts:
        inner = inner[part]
    inner[last] = value
    return from_stored(algorithm_named(branch.algorithm).Config, settings)


def _refuse(branch: Branch, name: str, values: tuple[Any, Any], reason: str) -> None:
    old, new = values
    setting = "env" if name == "env.id" else name.rpartition(".")[2]
    remedy = f"leave it as it is, or begin a new run with the other settings: birl train --like {branch.parent}"
    raise ConfigError(f"{setting} {old} -> {new} cannot be changed in a fork: {reason}; {remedy}")


def start_fork(
    branch: Branch,
    config: Any,
    given: Given = Given(),  # noqa: B008
    same_env: bool = False,
    quiet: bool = False,
    overwrite: bool = False,
    pause_at: int | None = None,
) -> Run:
    """A fork with this Config, to be trained in a loop."""
    changed = branch.changes_to(config)
    if same_env:
        changed.pop("env.id", None)
    validate(branch.algorithm, config)
    require_fit(branch, config, changed, given.make_network)
    return Run(partial(_open_fork, branch, config, changed, overwrite), given, quiet, pause_at)


def write_first(run_dir: Path, branch: Branch, config: Any, changed: Changes) -> Checkpoint:
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


def _open_fork(branch: Branch, config: Any, changed: Changes, overwrite: bool, stack: ExitStack) -> Opened:
    """Make the directory of a fork."""
    moved: list[str] = []
    plain = fork_directory(branch.parent)
    run_dir = stack.enter_context(new_directory(plain, config.run.run_dir, overwrite, moved.append))
    stack.enter_context(_explained(run_dir, changed))
    saved = write_first(run_dir, branch, config, changed)
    config = with_run(config, run_dir=str(run_dir))
    said = [*branch.notices, *moved, *own_notices(config), *fork_texts(branch, config, changed)]
    return Opened(branch.algorithm, config, run_dir, saved, RunProgress(saved), said)


def fork_texts(branch: Branch, config: Any, changed: Changes) -> list[str]:
    """The console's lines about a fork."""
    pairs = [(name.rpartition(".")[2], *map(stored_text, pair)) for name, pair in changed.items()]
    texts = [f"{name} {old} -> {new}" for name, old, new in pairs]
    what = "; ".join(texts) if texts else "no setting changed: it continues as its parent does"
    found = [f"fork of {branch.parent} at {branch.saved.env_steps:,} steps: {what}"]
    before = changed.get("run.total_steps", (config.run.total_steps,))[0]
    if before != config.run.total_steps and (text := stretched_text(config, branch.saved.env_steps, before)):
        found.append(f"total_steps is {config.run.total_steps:,} now: schedules {text}")
    return found


@contextmanager
def _explained(run_dir: Path, changed: Changes) -> Iterator[None]:
    """Name the changed settings if the checkpoint turns out not to fit before the first update."""
    try:
        yield
    except CheckpointError as problem:
        names = ", ".join(not_of_run(changed))
        if has_begun(run_dir) or not names:
            raise
        remedy = "leave them as they are, or begin a new run with birl train --like"
        raise ConfigError(f"fork with other {names}: {problem}; {remedy}") from problem
