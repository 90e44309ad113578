"""The section with a video of the best policy of each group."""

import base64
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path

from birl.config import ConfigError
from birl.errors import CheckpointError
from birl.lab.report.elements import Html, Section, element, join, named, paragraph
from birl.lab.scores import final_evaluation, return_at, trained_steps
from birl.run.console import number
from birl.run.history import RunHistory, SeedGroup
from birl.run.record import record

MOST_BYTES = 6_000_000  # of a video; a longer one would make the page slow


def videos_section(groups: Sequence[SeedGroup], trust: bool = False) -> Section:
    """One episode of the best seed of each group. Why one cannot be recorded is said there."""
    figures = [_figure(group, place, trust) for place, group in enumerate(groups)]
    return Section("Videos", element("div", join(figures), class_="videos"))


def best_run(group: SeedGroup) -> RunHistory:
    """The run with the best final evaluation, or else the best last training returns."""

    def score(run: RunHistory) -> float:
        final = final_evaluation(run)
        last = return_at(run, trained_steps(run)) if final is None else final
        return float("-inf") if last is None else last

    return max(group.runs, key=score)


def _figure(group: SeedGroup, place: int, trust: bool) -> Html:
    run = best_run(group)
    try:
        film, score = _film(run.run_dir, trust)
    except (ConfigError, CheckpointError, OSError, RuntimeError) as problem:
        warnings.warn(f"no video of {run.run_dir}: {problem}", stacklevel=2)
        return element("figure", join([paragraph(f"No video: {problem}"), _caption(group, place, run, None)]))
    return element("figure", join([film, _caption(group, place, run, score)]))


def video_element(path: Path, remedy: str) -> Html:
    """A video that is a part of the page; ConfigError, with this remedy, if it is too large."""
    size = path.stat().st_size
    if size > MOST_BYTES:
        raise ConfigError(f"it has {size:,} bytes, at most {MOST_BYTES:,} go into a page; {remedy}")
    source = Html(f"data:video/mp4;base64,{base64.b64encode(path.read_bytes()).decode()}")
    return element("video", "", src=source, controls="", loop="", muted="", playsinline="", preload="metadata")


def _film(run_dir: Path, trust: bool) -> tuple[Html, float]:
    """A video of one episode, and its return."""
    with tempfile.TemporaryDirectory() as folder:
        path, played = record(run_dir, Path(folder) / "episode.mp4", trust=trust)
        return video_element(path, f"use birl record {run_dir}"), float(played.returns[0])


def _caption(group: SeedGroup, place: int, run: RunHistory, score: float | None) -> Html:
    text = f", seed {run.seed}" + ("" if score is None else f", return {number(score)}")
    return element("figcaption", join([named(group.label, place), text]))
