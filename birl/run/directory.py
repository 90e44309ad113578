"""The directory of a run: a new one for each, and its config.json."""

import itertools
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from birl.config import from_json, require, to_json
from birl.errors import CheckpointError
from birl.run.algorithms import algorithm_named
from birl.run.files import read_json, write_json

CONFIG = "config.json"
METRICS = "metrics.jsonl"


def claim_directory(name: str, config: Any) -> Path:
    """The directory asked for, which must not hold a run; or runs/NAME-ENV-SEED, numbered if it is taken. Made at once."""
    if config.run.run_dir is not None:
        path = Path(config.run.run_dir)
        require(not path.exists() or path.is_dir(), f"run_dir {path} is a file; name a directory")
        held = [part for part in (CONFIG, METRICS, "checkpoints") if (path / part).exists()]
        require(not held, f"run_dir {path} already holds a run ({', '.join(held)}); go on with birl resume {path}, or name another")
        path.mkdir(parents=True, exist_ok=True)
        return path
    plain = f"{name}-{config.env.id.replace('/', '-').replace(':', '-')}-{config.run.seed}"
    for n in itertools.count(1):
        path = Path("runs") / (plain if n == 1 else f"{plain}-{n}")
        with suppress(FileExistsError):  # also by a run that starts at this moment
            path.mkdir(parents=True)
            break
    return path


def give_back(run_dir: Path) -> None:
    """Undo `claim_directory` if nothing has begun there, so that the same command works once its settings are mended."""
    if not (run_dir / METRICS).exists():
        (run_dir / CONFIG).unlink(missing_ok=True)
        with suppress(OSError):  # not empty: there are things of someone else's
            run_dir.rmdir()


def write_config(run_dir: Path, name: str, config: Any) -> None:
    write_json(run_dir / CONFIG, {"algorithm": name, "config": to_json(config)})


def read_config(run_dir: Path) -> tuple[str, Any]:
    """The algorithm's name and the Config of a run."""
    name, values = read_settings(run_dir)
    return name, from_json(algorithm_named(name).Config, values)


def read_settings(run_dir: Path) -> tuple[str, dict[str, Any]]:
    """The algorithm's name and the settings of a run, as they are written."""
    path = run_dir / CONFIG
    require(os.path.lexists(path), f"{run_dir} holds no run: there is no {CONFIG}; start one with birl train")
    remedy = "mend it by the config.json in the newest checkpoint, which is its 'config'"
    try:
        stored = read_json(path)
    except CheckpointError as problem:
        raise CheckpointError(f"{problem}; {remedy}") from problem
    match stored:
        case {"algorithm": str(name), "config": dict(values)}:
            return name, values
    raise CheckpointError(f"{path} is damaged: it must hold an 'algorithm' and a 'config'; {remedy}")
