"""Pushing: what of a run is uploaded to a repository, and how."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from birl.config import ConfigError, require
from birl.lab.sharing import hub
from birl.lab.sharing.card import (
    MARK,
    PLACEHOLDER,
    Subject,
    card_text,
    chosen_license,
    read_page,
    read_subject,
    write_policy,
)
from birl.lab.sharing.hub import read_access, require_token
from birl.lab.sharing.shared_files import (
    CARD,
    VIDEO,
    changed_on_upload,
    copy_file,
    public_changes,
    public_settings,
    require_no_home,
    require_repository,
    size_limit,
    size_text,
    unsigned_config,
    write_unsigned_checkpoint,
)
from birl.run.checkpoint import checkpoints_in, read_best
from birl.run.directory import CHECKPOINTS, CONFIG, METRICS, POLICY, SUMMARY, read_settings
from birl.run.files import open_to_read, to_json_bytes
from birl.run.policy_file import unsigned_policy

Which = Literal["best", "last"]
FRESH = {".gitattributes", CARD}  # what the Hub itself puts into a new repository


def push(
    run: str | Path,
    repository: str,
    *,
    private: bool = False,
    checkpoint: Which | None = None,
    video: str | Path | None = None,
    license: str | None = None,
    dry_run: bool = False,
    token_file: str | Path | None = None,
    endpoint: str | None = None,
    report: Callable[[str], None] = lambda text: None,
) -> str:
    """Upload a run, or a group of seeds, to a repository of the Hub; the repository's address.

    Card, policy, settings, summary and metrics, and on request a checkpoint and a video; nothing
    else. `report` gets a line about each file, before anything is sent. The token is in
    `token_file` or in the environment variable HF_TOKEN. With `dry_run`, nothing is sent.
    """
    require_repository(repository)
    access = read_access(endpoint, token_file)
    subject = read_subject(Path(run))
    with tempfile.TemporaryDirectory(prefix="birl-push-") as place:
        folder = Path(place)
        for notice in changed_on_upload(read_settings(subject.run_dir).values):
            report(f"{CONFIG}: {notice}")
        stage(subject, folder, repository, license)
        if checkpoint is not None:
            _stage_checkpoint(subject.run_dir, folder, checkpoint)
        if video is not None:
            _stage_video(Path(video), folder)
        files = _listed(folder)
        for name, path in files.items():
            report(f"{name}  {size_text(path.stat().st_size)}")
        if dry_run:
            return f"{access.endpoint}/{repository}"
        require_token(access)
        before = hub.find_repository(access, repository)
        stale = _stale(repository, before, files, private)
        return hub.upload(access, repository, before, private, files, stale)


def stage(subject: Subject, folder: Path, repository: str, license: str | None) -> None:
    """Write the files that are always uploaded into this folder."""
    run_dir = subject.run_dir
    stored = read_settings(run_dir)
    (folder / CARD).write_text(_card(subject, repository, license), encoding="utf-8")
    write_policy(run_dir, folder / POLICY)
    (folder / POLICY).write_bytes(unsigned_policy(folder / POLICY))
    settings, changes = public_settings(stored.values), public_changes(stored.changes)
    (folder / CONFIG).write_bytes(unsigned_config(stored.algorithm, settings, changes))
    if subject.run.summary is not None:
        (folder / SUMMARY).write_bytes(to_json_bytes(subject.run.summary))
    if os.path.lexists(run_dir / METRICS):
        copy_file(run_dir / METRICS, folder / METRICS)


def _card(subject: Subject, repository: str, license: str | None) -> str:
    """The page in the run's directory if it is the user's own, else a card for this repository."""
    path = subject.directory / CARD
    page = read_page(path) if os.path.lexists(path) else None
    if page is not None and MARK not in page:
        wrong = f"license {license!r} would not get into {path}, which you have changed"
        require(license is None, f"{wrong}; write it there, and leave --license out")
        return page.replace(PLACEHOLDER, repository)
    return card_text(subject, chosen_license(license, page), repository)


def _stage_checkpoint(run_dir: Path, folder: Path, which: Which) -> None:
    directory = run_dir / CHECKPOINTS
    found = checkpoints_in(directory)
    require(len(found) > 0, f"{run_dir} holds no checkpoint; push it without --checkpoint")
    best = read_best(directory) if which == "best" else None
    require(which == "last" or best is not None, f"no evaluation chose a best checkpoint in {run_dir}; use last")
    path = directory / best["checkpoint"] if best is not None else found[-1]
    out = folder / CHECKPOINTS / path.name
    write_unsigned_checkpoint(path, out, public_settings)
    for file in out.glob("*.json"):
        require_no_home(file)


def _stage_video(video: Path, folder: Path) -> None:
    with open_to_read(video) as file:
        is_video = video.suffix == ".mp4" and file.read(8)[4:] == b"ftyp"
    require(is_video, f"video {video} is not an mp4 file; record one: birl record RUN --out video.mp4")
    copy_file(video, folder / VIDEO)


def _listed(folder: Path) -> dict[str, Path]:
    """The files in this folder by their names in the repository; ConfigError for a large one."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    files = {path.relative_to(folder).as_posix(): path for path in paths}
    for name, path in files.items():
        limit = size_limit(name)
        size = path.stat().st_size
        if limit is None or size > limit:
            raise ConfigError(f"{name} has {size_text(size)}; a shared run may have {size_text(limit or 0)} of it")
    return files


def _stale(repository: str, before: hub.Repository | None, files: dict[str, Path], private: bool) -> list[str]:
    """The files of an earlier push that are not in this one; ConfigError if others are there."""
    if before is None:
        return []
    names = {file.name for file in before.files}
    other = sorted(names - FRESH)[:3] if before.library != "birl" else []
    remedy = "choose another name, or empty the repository yourself"
    require(not other, f"repository {repository} holds something else ({', '.join(other)}); {remedy}")
    remedy = "make it private in its settings, or leave --private out"
    require(before.private or not private, f"repository {repository} exists already and is public; {remedy}")
    return sorted(name for name in names - files.keys() if size_limit(name) is not None)
