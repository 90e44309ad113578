"""A report on runs: which sections it has."""

from collections.abc import Sequence
from pathlib import Path

from birl.config import require
from birl.lab.compare import labelled
from birl.lab.report.curves import curves_section
from birl.lab.report.elements import Section
from birl.lab.report.episodes import episodes_section
from birl.lab.report.findings import findings_section
from birl.lab.report.page import write_report
from birl.lab.report.provenance import branches_section, reproduce_section, runs_section
from birl.lab.report.results import compared, comparison_section, results_section
from birl.lab.report.settings import settings_section
from birl.lab.report.times import times_section
from birl.run.directory import holds_run
from birl.run.history import RunHistory, SeedGroup, read_histories


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
        from birl.lab.report.videos import videos_section  # imports JAX

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
