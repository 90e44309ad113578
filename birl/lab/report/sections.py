"""A report on runs: its sections, in order."""

import base64
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

from birl.config import ConfigError, require
from birl.errors import CheckpointError
from birl.lab.comparison import labelled
from birl.lab.diagnosis.diagnoses import Diagnosis, Fault, checked, details, in_seeds, nothing_found, sentence
from birl.lab.diagnosis.diagnosing import diagnose_runs, with_baseline
from birl.lab.diagnosis.facts import facts_of
from birl.lab.report.charts import curves_section
from birl.lab.report.page import (
    Content,
    Html,
    Section,
    block,
    element,
    folded,
    join,
    named,
    paragraph,
    sentences,
    small,
    write_report,
)
from birl.lab.report.provenance import branches_section, reproduce_section, runs_section, settings_section
from birl.lab.report.results import compared, comparison_section, episodes_section, results_section, times_section
from birl.lab.scores import final_evaluation, return_at, trained_steps
from birl.run.console import number
from birl.run.directory import holds_run
from birl.run.history import RunHistory, SeedGroup, read_histories

# What rules raise if a stranger's run has text for numbers, or numbers that overflow.
UNREADABLE = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
MOST_BYTES = 6_000_000  # of a video; a longer one would make the page slow


def report(
    runs: str | Path | Sequence[str | Path],
    out: str | Path = "report.html",
    title: str | None = None,  # None: the algorithms and environments
    video: bool = False,  # record the best policy of each group
    trust: bool = False,  # let runs that were not made here import the modules of their environments, for videos
) -> Path:
    """Write one HTML page about these runs, which opens without a network; its path.

    A directory that holds no run stands for the runs below it. Those that differ only in their seed
    are one group, and so are runs that are named one by one; runs of two such directories never
    are, even with equal settings.
    """
    given = [runs] if isinstance(runs, str | Path) else list(runs)
    require(len(given) > 0, "no runs to report; give directories such as runs/ppo-CartPole-v1-1, or runs")
    groups = read_groups([Path(path) for path in given])
    heading = title or _title(groups)
    return write_report(Path(out), heading, run_sections(groups, video, trust), _about(groups))


def read_groups(directories: Sequence[Path]) -> list[SeedGroup]:
    """The groups of seeds in these directories; a run that is named twice counts once."""
    single: list[RunHistory] = []
    given: list[tuple[str, list[RunHistory]]] = []
    for directory in dict.fromkeys(directories):
        runs = read_histories(directory)
        if holds_run(directory):
            single += runs
        else:
            given.append((str(directory), runs))
    below = {run.run_dir.resolve() for _, runs in given for run in runs}
    alone = [run for run in single if run.run_dir.resolve() not in below]
    parts = [*given, *([("runs named one by one", alone)] if alone else [])]
    return labelled(parts)


def run_sections(groups: Sequence[SeedGroup], video: bool = False, trust: bool = False) -> list[Section]:
    """The sections of a report on these groups, in the order of the page."""
    comparisons = compared(groups)
    sections = [results_section(comparisons), curves_section(groups), comparison_section(comparisons)]
    sections.append(episodes_section(groups))
    if video:
        sections.append(videos_section(groups, trust))
    sections.append(findings_section(groups))
    sections += [times_section(groups), settings_section(groups), branches_section(groups)]
    sections += [reproduce_section(groups), runs_section(groups)]
    return [section for section in sections if section is not None]


def _title(groups: Sequence[SeedGroup]) -> str:
    algorithms = dict.fromkeys(str(group.settings["algorithm"]) for group in groups)
    envs = dict.fromkeys(str(group.settings["env.id"]) for group in groups)
    return f"{', '.join(algorithms)} on {', '.join(envs)}"


def _about(groups: Sequence[SeedGroup]) -> str:
    runs = [run for group in groups for run in group.runs]
    kinds = "1 setting" if len(groups) == 1 else f"{len(groups)} groups of settings"
    count = "1 run" if len(runs) == 1 else f"{len(runs)} runs"
    ended = sum(run.summary is not None for run in runs)
    return f"{count} of {kinds}" + ("" if ended == len(runs) else f"; {ended} have ended")


def findings_section(groups: Sequence[SeedGroup]) -> Section:
    """The diagnosis of each group: whether it has learned, and what is probably wrong."""
    parts: list[Content] = []
    for place, group in enumerate(groups):
        parts.append(element("h3", named(group.label, place)))
        try:
            diagnosis = with_baseline(diagnose_runs([facts_of(run) for run in group.runs]))
        except UNREADABLE as problem:
            parts.append(paragraph(f"It could not be diagnosed: {type(problem).__name__}: {problem}"))
            continue
        parts += diagnosis_parts(diagnosis)
    return Section("Diagnosis", join(parts))


def diagnosis_parts(diagnosis: Diagnosis) -> Iterator[Content]:
    """A diagnosis as HTML: what was learned, each fault, and, folded, what was checked."""
    ending = "" if diagnosis.findings else f" {sentence(nothing_found(diagnosis))}"
    yield element("p", sentences(sentence(diagnosis.verdict.sentence) + ending))
    if diagnosis.findings:
        yield element("ol", join(element("li", join(_fault(fault))) for fault in diagnosis.findings))
    if diagnosis.in_few:
        few = (element("li", join([f"{in_seeds(one)} ", *_fault(one)])) for one in diagnosis.in_few)
        yield element("ul", join(few))
    healthy = small(sentence(f"{checked(diagnosis)}: {', '.join(diagnosis.healthy) or 'nothing'}"))
    missing = [small(f"Not checked: {name}: {reason}.") for name, reason in diagnosis.unseen.items()]
    yield folded("What was checked", join([healthy, *missing]))


def _fault(fault: Fault) -> Iterator[Content]:
    yield element("b", fault.title)
    yield f" {details(fault)}"
    yield element("p", sentences(f"{sentence(fault.evidence.sentence)} {fault.why}"))
    yield element("p", sentences(f"Try: {fault.advice}"))
    if fault.command:
        yield block(fault.command)


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
    from birl.run.record import record  # imports JAX

    with tempfile.TemporaryDirectory() as folder:
        path, played = record(run_dir, Path(folder) / "episode.mp4", trust=trust)
        return video_element(path, f"use birl record {run_dir}"), float(played.returns[0])


def _caption(group: SeedGroup, place: int, run: RunHistory, score: float | None) -> Html:
    text = f", seed {run.seed}" + ("" if score is None else f", return {number(score)}")
    return element("figcaption", join([named(group.label, place), text]))
