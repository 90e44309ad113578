"""The checkpoints of a run: listing, loading, removing them, and which one is the best."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from birl.errors import CheckpointError, UnreadableError
from birl.run import files
from birl.run.checkpoint import Checkpoint, load
from birl.run.manifest import check_best, is_checkpoint_name

BEST = "best.json"


def numbered(directory: Path) -> list[Path]:
    """The checkpoints, damaged ones too, oldest first. Symbolic links are left out."""
    files.require_real_directory(directory)
    found = (path for path in directory.glob("[0-9]*") if is_checkpoint_name(path.name))
    real = [path for path in found if path.is_dir() and not path.is_symlink()]
    return sorted(real, key=lambda path: int(path.name))  # as numbers: 1000000000 comes after 999999999


def load_newest(directory: Path, report: Callable[[str], object]) -> Checkpoint | None:
    """The newest undamaged checkpoint; None if there are none. Damaged ones are reported."""
    return load_first(reversed(numbered(directory)), directory, report)


def load_first(paths: Iterable[Path], directory: Path, report: Callable[[str], object]) -> Checkpoint | None:
    """The first of these checkpoints that is undamaged; None if there are none.

    Damaged ones are reported and skipped; CheckpointError if all are damaged.
    """
    problems: list[str] = []
    for path in paths:
        try:
            saved = load(path)
        except UnreadableError:
            raise  # skipping it would throw away what was learned since the one before
        except CheckpointError as problem:
            problems.append(str(problem))
            continue
        for text in problems:
            report(f"{text}; using {path.name} instead")
        return saved
    if problems:
        remedy = "restore one from a backup, or train again in another run_dir"
        raise CheckpointError(f"no checkpoint in {directory} can be read: {'; '.join(problems)}; {remedy}")
    return None


def set_aside(directory: Path, after: int) -> None:
    """Hide damaged checkpoints beyond this step: `prune` would keep them as the newest."""
    for path in numbered(directory):
        if int(path.name) > after:
            path.rename(files.partial_beside(path))


def prune(directory: Path, keep: int, keep_every: int = 0) -> None:
    """Remove all checkpoints but those to keep, and what a killed process left.

    Kept are the newest `keep`, the best, and the first after every `keep_every` steps.
    """
    best = read_best(directory)
    found = numbered(directory)
    for_good = kept_for_good(found, keep_every)
    for path in found[: -max(keep, 1)]:
        if path not in for_good and (best is None or path.name != best["checkpoint"]):
            with suppress(OSError):
                files.remove(path)
    files.remove_partial(directory)


def kept_for_good(paths: Sequence[Path], every: int) -> list[Path]:
    """The checkpoints that are the first at or after a multiple of `every` steps; none for 0.

    `paths` are in the order of their steps. Their names alone decide, so it does not matter which
    processes wrote them.
    """
    if every == 0:
        return []
    first: dict[int, Path] = {}
    for path in paths:
        first.setdefault(int(path.name) // every, path)
    return [path for multiple, path in first.items() if multiple > 0]


def mark_best(directory: Path, best: dict[str, Any] | None) -> None:
    """Store {"checkpoint": name, "return_mean": score} as the best checkpoint; None: there is none.

    The best is never pruned, and a run's policy is loaded from it.
    """
    if best is None:
        (directory / BEST).unlink(missing_ok=True)
    else:
        files.write_json(directory / BEST, best)


def read_best(directory: Path, report: Callable[[str], object] = bool) -> dict[str, Any] | None:
    """What `mark_best` stored; None if there is no such checkpoint. A damaged file is reported."""
    path = directory / BEST
    try:
        best = files.read_json(path)
        check_best(best)
    except FileNotFoundError:
        return None
    except (CheckpointError, ValueError) as problem:
        report(f"{path} is not used: {problem}")
        return None
    return best if (directory / best["checkpoint"]).is_dir() else None
