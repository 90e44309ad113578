"""The directory of a run: a new one for each, held as long as it runs, and its config.json."""

import itertools
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from birl.config import require, to_json
from birl.errors import CheckpointError
from birl.run.files import read_json, write_json
from birl.run.lock import locked
from birl.run.trust import sign

if TYPE_CHECKING:
    from birl.run.checkpoint import Checkpoint  # imports jax, which plots need not

CONFIG = "config.json"
METRICS = "metrics.jsonl"
CHECKPOINTS = "checkpoints"
RUN_PARTS = (CONFIG, METRICS, CHECKPOINTS)
ALL_PARTS = (*RUN_PARTS, "tensorboard", "wandb", "wandb_id.txt")  # what a run may have made before its first update
MOST_NAMED = 5  # differences between two copies of the settings


class Settings(NamedTuple):
    """A run's settings as a file has them."""

    algorithm: str
    values: dict[str, Any]  # of its Config
    signature: str | None  # see trust.sign
    source: Path


@contextmanager
def new_directory(name: str, config: Any) -> Iterator[Path]:
    """A directory for a new run, which no other run can use meanwhile. If the run ends before it
    has begun, nothing of it is left.
    """
    path, made = claim_directory(name, config)
    try:
        with locked(path):
            require_no_run(path)
            before = {part for part in ALL_PARTS if (path / part).exists()}
            try:
                yield path
            except BaseException:
                give_back(path, before)
                raise
    finally:
        for directory in made:  # those that are empty: of a run that was refused
            with suppress(OSError):
                directory.rmdir()


def claim_directory(name: str, config: Any) -> tuple[Path, list[Path]]:
    """The directory asked for, or runs/NAME-ENV-SEED, numbered if it is taken; and the directories
    made for it, innermost first.
    """
    if config.run.run_dir is not None:
        path = Path(config.run.run_dir)
        require(not path.exists() or path.is_dir(), f"run_dir {path} is a file; name a directory")
        require_no_run(path)
        made = _missing(path)
        path.mkdir(parents=True, exist_ok=True)
        return path, made
    plain = f"{name}-{config.env.id.replace('/', '-').replace(':', '-')}-{config.run.seed}"
    for n in itertools.count(1):
        path = Path("runs") / (plain if n == 1 else f"{plain}-{n}")
        made = _missing(path)
        with suppress(FileExistsError):  # also by a run that starts at this moment
            path.mkdir(parents=True)
            break
    return path, made


def require_no_run(path: Path) -> None:
    """Raise ConfigError if this directory holds a run."""
    held = [part for part in RUN_PARTS if (path / part).exists()]
    require(
        not held,
        f"run_dir {path} already holds a run ({', '.join(held)}); go on with birl resume {path}, or name another",
    )


def give_back(path: Path, before: set[str]) -> None:
    """Remove what a run has made if it has not learned anything yet, so that the same command works
    once its settings are mended.
    """
    if _has_begun(path):
        return
    for part in set(ALL_PARTS) - before:
        if (path / part).is_dir():
            shutil.rmtree(path / part, ignore_errors=True)
        else:
            (path / part).unlink(missing_ok=True)


def write_config(run_dir: Path, name: str, config: Any) -> None:
    settings = to_json(config)
    write_json(run_dir / CONFIG, {"algorithm": name, "config": settings, "signature": sign(name, settings)})


def verified_settings(run_dir: Path, saved: "Checkpoint | None", notices: list[str]) -> Settings:
    """The settings of a run: those in the checkpoint, which were verified, else config.json's.
    Where the two differ is added to notices.
    """
    if saved is None:
        return read_settings(run_dir)
    settings = settings_in(saved)
    try:
        different = differences(read_settings(run_dir), settings)
    except CheckpointError as problem:
        notices.append(f"{problem}; the settings in checkpoint {saved.path.name} are used")
        return settings
    if different:
        rest = f" and {len(different) - MOST_NAMED} more" if len(different) > MOST_NAMED else ""
        remedy = "config.json is not for editing: see birl resume --help for what can be changed"
        notices.append(
            f"{run_dir / CONFIG} differs from checkpoint {saved.path.name}, which was verified and is used: "
            f"{'; '.join(different[:MOST_NAMED])}{rest}; {remedy}"
        )
    return settings


def settings_in(saved: "Checkpoint") -> Settings:
    """The verified settings of a checkpoint."""
    return Settings(saved.manifest["algorithm"], saved.config, saved.manifest.get("signature"), saved.path)


def differences(found: Settings, verified: Settings) -> list[str]:
    """Where settings differ, with both values. A run may have been moved: run_dir does not
    count.
    """
    flat = [flatten({"algorithm": one.algorithm} | one.values) for one in (found, verified)]
    names = sorted(set(flat[0]) | set(flat[1]))
    pairs = [
        (name, *(json.dumps(one[name]) if name in one else "nothing" for one in flat))
        for name in names
        if name != "run.run_dir"
    ]
    return [f"{name} is {value}, verified {expected}" for name, value, expected in pairs if value != expected]


def require_run(run_dir: Path) -> None:
    """Raise ConfigError if this directory holds no run."""
    held = any(os.path.lexists(run_dir / part) for part in (CONFIG, CHECKPOINTS))
    require(held, f"{run_dir} holds no run: there is no {CONFIG}; start one with birl train")


def read_settings(run_dir: Path) -> Settings:
    """The settings in config.json."""
    require_run(run_dir)
    path = run_dir / CONFIG
    try:
        stored = read_json(path)
    except FileNotFoundError as problem:
        raise CheckpointError(f"{path} is missing") from problem
    match stored:
        case {"algorithm": str(name), "config": dict(values)}:
            return Settings(name, values, stored.get("signature"), path)
    raise CheckpointError(f"{path} is damaged: it must hold an 'algorithm' and a 'config'")


def flatten(settings: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings under dotted names."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        flat |= flatten(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return flat


def _has_begun(path: Path) -> bool:
    """Whether there is a line of metrics or a checkpoint."""
    metrics, checkpoints = path / METRICS, path / CHECKPOINTS
    return (metrics.exists() and metrics.stat().st_size > 0) or (checkpoints.is_dir() and any(checkpoints.iterdir()))


def _missing(path: Path) -> list[Path]:
    """The directories that would have to be made for this one, innermost first."""
    return [directory for directory in (path, *path.parents) if not directory.exists()]
