"""birl report: one HTML page about runs."""

from pathlib import Path

import tyro

from birl.cli.modules import allow_modules_here
from birl.cli.options import RunDirs
from birl.cli.parsing import parse
from birl.run.signals import starting


def report(words: list[str]) -> int:
    def arguments(
        run_dirs: RunDirs,
        /,
        out: Path = Path("report.html"),
        title: str | None = None,
        video: tyro.conf.FlagCreatePairsOff[bool] = False,
        trust: tyro.conf.FlagCreatePairsOff[bool] = False,
    ) -> tuple[tuple[Path, ...], Path, str | None, bool, bool]:
        """Write one HTML page about runs: curves, scores, settings, times, how to reproduce them.

        Args:
            run_dirs: run directories; one that holds no run stands for all runs below it
            out: the page to write; it replaces the one that is there
            title: of the page; None: the algorithms and environments
            video: record an episode of the best policy of each group, and put it into the page
            trust: with --video, let runs that were not made here import modules
        """
        return run_dirs, out, title, video, trust

    run_dirs, out, title, video, trust = parse(arguments, words, "birl report")
    with starting():
        from birl.lab.report.sections import report as make_report

    allow_modules_here(trust=trust)
    print(make_report(run_dirs, out, title, video, trust))
    return 0
