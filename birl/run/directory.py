"""The directory of a run: its files, a new one for each run, its config.json and its fork.json."""

import copy
import itertools
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from birl.config import ConfigError, from_json, require, to_json
from birl.errors import CheckpointError, RunDirectoryError
from birl.run.files import PARTIAL, read_json, remove_partial, write_json
from birl.run.lock import LOCK, locked
from birl.run.trust import Consent, consent_to, sign
from birl.settings import dotted_settings

if TYPE_CHECKING:
    from birl.run.checkpoint import Checkpoint  # imports JAX, which plotting does not need

CONFIG = "config.json"
METRICS = "metrics.jsonl"
SUMMARY = "summary.json"  # written when a run ends
FORK = "fork.json"  # of a run that began with a checkpoint of another
CHECKPOINTS = "checkpoints"
POLICY = "policy.safetensors"  # the policy alone, of a run that is shared: see policy_file.py
GROUP = "group.json"  # of a directory that holds the runs of a group
SEARCH_PARTS = ("tune.json", "journal.jsonl", "solve.json")  # of one that holds a search for settings or an agent
RUN_PARTS = (CONFIG, METRICS, CHECKPOINTS)
# What a run may make before its first update.
ALL_PARTS = (*RUN_PARTS, FORK, "tensorboard", "wandb", "wandb_id.txt", "trackio_id.txt")
MOST_NAMED = 5  # differences between two copies of the settings that a message lists
NOT_KEPT = ("run.run_dir", "run.wandb", "run.trackio", "env.ray_address")  # about this machine, not the run
CHECKPOINT_NAME = re.compile("[0-9]{9,19}")


@dataclass(frozen=True)
class SettingsChange:
    """The settings that a resume changed. Manifests and config.json list them."""

    env_steps: int  # where the run was resumed
    changed: dict[str, tuple[Any, ...]]  # by dotted name: the values before and after, as JSON


class StoredSettings(NamedTuple):
    """A run's settings as they are in a file."""

    algorithm: str
    values: dict[str, Any]  # the fields of its Config
    signature: str | None  # see trust.sign
    source: Path
    changes: tuple[SettingsChange, ...] = ()  # that resumes made to them

    def consent(self, trust: bool) -> Consent:
        """The permissions of these settings."""
        return consent_to(self.algorithm, self.values, self.signature, self.source, trust)


@dataclass(frozen=True)
class Fork:
    """The content of fork.json: where a run branched off, and the settings that it changed."""

    parent: Path  # the run directory of the other run
    checkpoint: str  # its name, such as 000050000
    env_steps: int  # of that checkpoint
    changed: dict[str, tuple[Any, Any]]  # the settings that differ, by dotted name: their values before and after


@contextmanager
def new_directory(
    plain: Path,
    run_dir: str | None,
    overwrite: bool = False,
    notice: Callable[[str], None] = lambda text: None,
) -> Iterator[Path]:
    """A locked directory for a new run. If the run fails before its first update, it is removed.

    It is `run_dir`, or else `plain`, as `claim_named` says. With `overwrite`, a run that is there
    is moved aside, and moved back after such a failure.
    """
    path, made, moved = claim_named(plain, run_dir, overwrite)
    if moved is not None:
        notice(f"the run that was in {path} is in {moved} now")
    begun = False
    try:
        with locked(path):
            require_no_run(path)
            _remove_leftovers(path)
            before = {part for part in ALL_PARTS if (path / part).exists()}
            try:
                yield path
                begun = True
            except BaseException:
                begun = has_begun(path)
                if not begun:
                    remove_unstarted(path, before)
                raise
    finally:
        for directory in made:  # only empty ones are removed
            with suppress(OSError):
                directory.rmdir()
        if moved is not None and not begun:
            with suppress(OSError):  # something else is there now
                moved.rename(path)


def claim_named(plain: Path, run_dir: str | None, overwrite: bool) -> tuple[Path, list[Path], Path | None]:
    """A new directory for a run; all directories made for it, innermost first; the run moved aside.

    It is `run_dir`, or else `plain`, numbered if that exists. With `overwrite` it is not numbered:
    a run that is there is moved aside.
    """
    if run_dir is not None or overwrite:
        path = plain if run_dir is None else Path(run_dir)
        require(not path.exists() or path.is_dir(), f"run_dir {path} is a file; name a directory")
        require_no_search(path)  # which may be at work: it holds its lock only for moments
        moved = move_aside(path) if overwrite and (holds_run(path) or is_group(path)) else None
        require_no_run(path)
        made = _missing(path)
        path.mkdir(parents=True, exist_ok=True)
        return path, made, moved
    for n in itertools.count(1):
        path = plain if n == 1 else plain.with_name(f"{plain.name}-{n}")
        made = _missing(path)
        with suppress(FileExistsError):  # perhaps of a run that starts at the same moment
            path.mkdir(parents=True)
            break
    return path, made, None


def move_aside(path: Path) -> Path:
    """Rename a run's directory to PATH.1, or the next number that is free; its new path.

    ConfigError while another process uses the run.
    """
    require(path.name not in ("", ".."), f"run_dir {path} cannot be moved aside; write its whole name")
    with locked(path):
        for n in itertools.count(1):
            aside = path.with_name(f"{path.name}.{n}")
            if not os.path.lexists(aside):
                path.rename(aside)
                break
        (aside / LOCK).unlink(missing_ok=True)  # it moved too, and is not needed there
    return aside


def task_directory(name: str, config: Any, ending: str) -> Path:
    """runs/ALGORITHM-ENV-ENDING, where a run or a group is by default."""
    return Path("runs") / f"{task_name(name, config)}-{ending}"


def task_name(name: str, config: Any) -> str:
    """ALGORITHM-ENV, the beginning of a directory's name."""
    return re.sub("[/:]", "-", f"{name}-{config.env.id}")


def holds_run(path: Path) -> bool:
    """True if this directory holds a run."""
    return bool(_held_parts(path))


def is_group(path: Path) -> bool:
    """True if this directory holds a group of runs."""
    return os.path.lexists(path / GROUP)


def runs_below(directory: Path) -> list[Path]:
    """The directories below this one that hold runs, in the order of their names."""
    found = []
    for path, folders, files in os.walk(directory):
        folders.sort()
        if Path(path) != directory and CONFIG in files:
            found.append(Path(path))
            folders.clear()  # a run holds no other runs, and its checkpoints have a config.json too
    return found


def has_begun(path: Path) -> bool:
    """True if a run has written metrics, or a checkpoint besides the one that a fork began with."""
    metrics = path / METRICS
    own = _written_checkpoints(path) - {_first_checkpoint(path)}
    return (metrics.exists() and metrics.stat().st_size > 0) or bool(own)


def is_checkpoint_name(name: str) -> bool:
    """True if a checkpoint may have this name: its environment steps, at least nine digits."""
    return CHECKPOINT_NAME.fullmatch(name) is not None and name == f"{int(name):09d}"


def require_run(run_dir: Path) -> None:
    """Raise ConfigError if this directory holds no run."""
    require_no_group(run_dir)
    held = os.path.lexists(run_dir / CONFIG) or bool(_written_checkpoints(run_dir))
    require(held, f"{run_dir} holds no run: there is no {CONFIG}; start one with birl train")


def require_no_run(path: Path) -> None:
    """Raise ConfigError if this directory holds a run, a group of runs or a search."""
    require_no_search(path)
    held = [*_held_parts(path), *([GROUP] if (path / GROUP).exists() else [])]
    aside = "move it aside: --overwrite (overwrite=True in Python)"
    remedy = f"continue it with birl resume {path}, choose another run_dir, or {aside}"
    what = "a group" if GROUP in held else "a run"
    require(not held, f"run_dir {path} already holds {what} ({', '.join(held)}); {remedy}")


def require_no_group(path: Path) -> None:
    """Raise ConfigError if this directory holds a group of runs; it names one of them."""
    if is_group(path):
        one = next(iter(runs_below(path)), path / "seed-1")
        raise ConfigError(f"{path} is a group of runs; name one of them, such as {one}")


def require_no_search(path: Path) -> None:
    """Raise ConfigError if this directory holds a search for settings or an agent."""
    held = ", ".join(part for part in SEARCH_PARTS if os.path.lexists(path / part))
    remedy = f"continue it with birl resume {path}, or choose another run_dir"
    require(not held, f"run_dir {path} already holds a search ({held}); {remedy}")


def remove_unstarted(path: Path, before: set[str]) -> None:
    """Remove the files of a run that has not begun, but not those of `before`.

    Then the same command works again once its settings are corrected.
    """
    for part in set(ALL_PARTS) - before:
        if (path / part).is_dir():
            shutil.rmtree(path / part, ignore_errors=True)
        else:
            (path / part).unlink(missing_ok=True)


class OpenDirectory:
    """A run directory held open, so that its removal or replacement is noticed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # While it is open, no other directory can get its inode number.
        self._descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)

    def require_in_place(self, steps: int) -> None:
        """Raise RunDirectoryError if this is no longer the directory that the run began in."""
        if not self.is_in_place():
            raise RunDirectoryError(
                f"{self.path} was removed, moved or replaced while the run was writing there; what was learned in "
                f"{steps:,} steps is not saved. Train again, in a directory that stays in place"
            )

    def is_in_place(self) -> bool:
        """True if this is still the directory that was opened."""
        with suppress(FileNotFoundError, NotADirectoryError):
            return os.path.samestat(os.stat(self.path), os.fstat(self._descriptor))
        return False

    def close(self) -> None:
        os.close(self._descriptor)


@contextmanager
def staying_in_place(path: Path) -> Iterator[Callable[[], None]]:
    """Work on the runs in this directory; gives a function that checks whether it is still there.

    If it is not, RunDirectoryError is raised, also instead of the error that follows from that.
    """

    def require_in_place() -> None:
        wrong = f"{path} was removed, moved or replaced while its runs were training; what they learned is not there"
        if not directory.is_in_place():
            raise RunDirectoryError(f"{wrong}. Train again, in a directory that stays in place")

    with closing(OpenDirectory(path)) as directory:
        try:
            yield require_in_place
        except Exception:
            require_in_place()
            raise


def write_config(run_dir: Path, name: str, config: Any, changes: Sequence[Mapping[str, Any]] = ()) -> None:
    """Write the settings, and what resumes changed of them so far."""
    settings = to_json(config)
    content = {"algorithm": name, "config": settings, "changes": list(changes), "signature": sign(name, settings)}
    write_json(run_dir / CONFIG, content)


def read_settings(run_dir: Path) -> StoredSettings:
    """The settings in config.json."""
    require_run(run_dir)
    path = run_dir / CONFIG
    try:
        stored = read_json(path)
    except FileNotFoundError as problem:
        raise CheckpointError(f"{path} is missing") from problem
    match stored:
        case {"algorithm": str(name), "config": dict(values)}:
            return StoredSettings(name, values, stored.get("signature"), path, _read_changes(stored, path))
    raise CheckpointError(f"{path} is damaged: it must hold an 'algorithm' and a 'config'")


def settings_in(saved: "Checkpoint") -> StoredSettings:
    """The verified settings of a checkpoint."""
    return StoredSettings(saved.manifest["algorithm"], saved.config, saved.manifest.get("signature"), saved.path)


def verified_settings(run_dir: Path, saved: "Checkpoint | None", notices: list[str]) -> StoredSettings:
    """The settings in the checkpoint, which were verified; without one, those in config.json.

    Differences between the two are added to `notices`.
    """
    if saved is None:
        return read_settings(run_dir)
    settings = settings_in(saved)
    try:
        different = _differences(read_settings(run_dir), settings)
    except CheckpointError as problem:
        notices.append(f"{problem}; the settings in checkpoint {saved.path.name} are used")
        return settings
    if different:
        rest = f" and {len(different) - MOST_NAMED} more" if len(different) > MOST_NAMED else ""
        remedy = "do not edit config.json: birl resume --help shows what can be changed"
        notices.append(
            f"{run_dir / CONFIG} differs from checkpoint {saved.path.name}, which was verified and is used: "
            f"{'; '.join(different[:MOST_NAMED])}{rest}; {remedy}"
        )
    return settings


def _differences(found: StoredSettings, verified: StoredSettings) -> list[str]:
    """The settings that differ, with both values; not run_dir, for a run may have been moved."""
    flat = [flatten({"algorithm": one.algorithm} | one.values) for one in (found, verified)]
    names = sorted(set(flat[0]) | set(flat[1]))
    pairs = [
        (name, *(json.dumps(one[name]) if name in one else "nothing" for one in flat))
        for name in names
        if name != "run.run_dir"
    ]
    return [f"{name} is {value}, verified {expected}" for name, value, expected in pairs if value != expected]


def config_changes(before: Any, after: Any) -> dict[str, tuple[Any, Any]]:
    """The settings in which two Configs of an algorithm differ: both values, as JSON."""
    old, new = dotted_settings(before), dotted_settings(after)
    return {
        name: (to_json(old[name]), to_json(new[name]))
        for name in old
        if old[name] != new[name] and name != "run.run_dir"
    }


def settings_before(settings: dict[str, Any], changes: Sequence[SettingsChange]) -> dict[str, Any]:
    """The settings, nested as in config.json, as they were before these changes.

    ConfigError if the changes are not of such settings.
    """
    before = copy.deepcopy(settings)
    for change in reversed(changes):
        for name, pair in change.changed.items():
            *parts, last = name.split(".")
            try:
                part = before
                for one in parts:
                    part = part[one]
                part[last]  # it is a setting
                part[last], _ = pair
            except (KeyError, TypeError, ValueError) as problem:
                raise ConfigError(f"{name!r} is no setting that was changed") from problem
    return before


def flatten(settings: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings as one dict with dotted names."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        flat |= flatten(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return flat


def write_fork(run_dir: Path, fork: Fork) -> None:
    """Write fork.json. The parent is named relative to the fork, so that both can move together."""
    parent = os.path.relpath(fork.parent.resolve(), run_dir.resolve())
    changed = {name: list(values) for name, values in fork.changed.items()}
    content = {"parent": parent, "checkpoint": fork.checkpoint, "env_steps": fork.env_steps, "changed": changed}
    write_json(run_dir / FORK, content)


def read_fork(run_dir: Path) -> Fork | None:
    """The content of fork.json; None if the run is no fork. CheckpointError if it is damaged."""
    path = run_dir / FORK
    if not os.path.lexists(path):
        return None
    match read_json(path):
        case {"parent": str(parent), "checkpoint": str(name), "env_steps": int(steps), "changed": dict(changed)} if (
            is_checkpoint_name(name)
            and int(name) == steps
            and all(isinstance(pair, list) and len(pair) == 2 for pair in changed.values())
        ):
            place = Path(os.path.normpath(run_dir.resolve() / parent))
            return Fork(place, name, steps, {setting: (old, new) for setting, (old, new) in changed.items()})
    raise CheckpointError(f"{path} is damaged: it must name a parent, a checkpoint, its env_steps and what changed")


def _read_changes(stored: dict[str, Any], path: Path) -> tuple[SettingsChange, ...]:
    """The changes that resumes made, as listed in config.json; older files have no list."""
    try:
        changes: tuple[SettingsChange, ...] = from_json(
            tuple[SettingsChange, ...], stored.get("changes", []), "changes"
        )
        settings_before(stored["config"], changes)
    except ConfigError as problem:
        raise CheckpointError(f"{path} is damaged: changes: {problem}") from problem
    return changes


def _held_parts(path: Path) -> list[str]:
    """The parts of a run that are in this directory."""
    parts = [part for part in (CONFIG, METRICS) if (path / part).exists()]
    return [*parts, CHECKPOINTS] if _written_checkpoints(path) else parts


def _written_checkpoints(path: Path) -> set[str]:
    """The names in checkpoints/, without what a killed process left half written."""
    folder = path / CHECKPOINTS
    if not folder.is_dir() or folder.is_symlink():
        return {CHECKPOINTS} if os.path.lexists(folder) else set()  # not ours: it is not to be touched
    return {name for name in os.listdir(folder) if not name.startswith(PARTIAL)}


def _first_checkpoint(path: Path) -> str | None:
    """The checkpoint that a fork begins with, as fork.json says; None if the run is no fork."""
    with suppress(OSError, CheckpointError):
        match read_json(path / FORK):
            case {"checkpoint": str(name)}:
                return name
    return None


def _remove_leftovers(path: Path) -> None:
    """Remove what a fork left that was killed before it was a run."""
    (path / FORK).unlink(missing_ok=True)
    remove_partial(path / CHECKPOINTS)
    with suppress(OSError):  # there is none
        (path / CHECKPOINTS).rmdir()


def _missing(path: Path) -> list[Path]:
    """This directory and its parents, as far as they do not exist, innermost first."""
    return [directory for directory in (path, *path.parents) if not directory.exists()]
