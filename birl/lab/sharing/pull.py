"""Pulling: a run from a repository, of which nothing is trusted.

Only files of known names and limited sizes are read, into a new directory that appears once all of
them are verified. Signatures are left out: the run is a stranger's, even if it is one's own.
"""

import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from birl.config import require
from birl.errors import CheckpointError, printable
from birl.lab.sharing import hub
from birl.lab.sharing.hub import Access, read_access
from birl.lab.sharing.shared_files import (
    leaves_directory,
    pulled_directory,
    require_repository,
    size_limit,
    size_text,
    unsigned_config,
    write_unsigned_checkpoint,
)
from birl.run.directory import CHECKPOINTS, CONFIG, POLICY, read_settings
from birl.run.files import partial_beside
from birl.run.lock import own_partial, remove_abandoned
from birl.run.policy_file import unsigned_policy

PULLED = ".pull"  # ends the name of what is not complete yet
MOST_NAMED = 10  # files of a repository that are named although they are left there


def pull(
    repository: str,
    out: str | Path | None = None,
    *,
    revision: str | None = None,
    token_file: str | Path | None = None,
    endpoint: str | None = None,
    report: Callable[[str], None] = lambda text: None,
) -> Path:
    """Download the run in a repository of the Hub into a new directory; the directory.

    It is `out`, or else runs/OWNER--NAME. `report` gets a line about each file. The run is a
    stranger's: modules that it names are imported only with trust.
    """
    require_repository(repository)
    access = read_access(endpoint, token_file)
    hub.hub_library()
    path = pulled_directory(repository) if out is None else Path(out)
    require(not path.exists() and not path.is_symlink(), f"{path} is there already; choose another directory: --out")
    found = hub.find_repository(access, repository, revision)
    remedy = "check its name; if it is private, give a token with HF_TOKEN or --token-file"
    require(found is not None, f"{access.endpoint} has no repository {repository}, or does not show it; {remedy}")
    assert found is not None
    wanted = _wanted(found, report)
    _require_space(path, sum(file.size for file in wanted))
    missing = [folder for folder in path.absolute().parents if not folder.exists()]
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_abandoned(path.parent, PULLED)
    try:
        with own_partial(path.with_name(f"run{PULLED}"), Path.mkdir) as partial:
            _download(access, found, wanted, partial, report)
            _disown(partial)
            require(not path.exists(), f"{path} is there now; choose another directory: --out")
            partial.rename(path)
    except BaseException:
        with suppress(OSError):  # somebody else has put something there
            for folder in missing:
                folder.rmdir()
        raise
    return path


def _wanted(repository: hub.Repository, report: Callable[[str], None]) -> list[hub.RemoteFile]:
    """The files of a run; others are reported. ConfigError if it holds no run, or an evil path."""
    names = [file.name for file in repository.files]
    evil = next((name for name in names if leaves_directory(name)), None)
    require(evil is None, f"{repository.name} has a file {evil!r}, whose path leaves its directory; nothing is pulled")
    require(len(set(names)) == len(names), f"{repository.name} has two files of one name; nothing is pulled")
    missing = [name for name in (CONFIG, POLICY) if name not in names]
    wrong = f"{repository.name} holds no run of Birl: there is no {' and no '.join(missing)}"
    require(not missing, f"{wrong}; only what birl push has uploaded can be pulled")
    wanted = [file for file in repository.files if size_limit(file.name) is not None]
    for file in wanted:
        limit = size_limit(file.name) or 0
        wrong = f"{file.name} of {repository.name} has {size_text(file.size)}, and at most {size_text(limit)} are read"
        require(file.size <= limit, f"{wrong}; nothing is pulled")
    left = [printable(name) for name in names if size_limit(name) is None and name != ".gitattributes"]
    more = f" and {len(left) - MOST_NAMED} more" if len(left) > MOST_NAMED else ""
    if left:
        report(f"left in the repository, because no run has such files: {', '.join(left[:MOST_NAMED])}{more}")
    return wanted


def _require_space(path: Path, size: int) -> None:
    """Raise ConfigError if the disk is too small."""
    there = next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.exists())
    free = shutil.disk_usage(there).free
    require(size < free, f"the run has {size_text(size)}, and {size_text(free)} are free in {there}; free some space")


def _download(
    access: Access,
    repository: hub.Repository,
    wanted: list[hub.RemoteFile],
    folder: Path,
    report: Callable[[str], None],
) -> None:
    end = time.monotonic() + hub.seconds_for(wanted)
    for file in wanted:
        place = folder.joinpath(*file.name.split("/"))
        place.parent.mkdir(parents=True, exist_ok=True)
        hub.download(access, repository, file, place, end - time.monotonic())
        report(f"{file.name}  {size_text(file.size)}")


def _disown(folder: Path) -> None:
    """Verify settings, policy and checkpoints, and leave their signatures out."""
    try:
        stored = read_settings(folder)
        (folder / CONFIG).write_bytes(unsigned_config(stored.algorithm, stored.values, stored.changes))
        (folder / POLICY).write_bytes(unsigned_policy(folder / POLICY))
        for checkpoint in sorted(folder.glob(f"{CHECKPOINTS}/*")):
            copy = partial_beside(checkpoint)
            write_unsigned_checkpoint(checkpoint, copy)
            shutil.rmtree(checkpoint)
            copy.rename(checkpoint)
    except CheckpointError as problem:
        text = str(problem).replace(f"{folder}/", "")
        raise CheckpointError(f"what was pulled is not used: {text}") from problem
