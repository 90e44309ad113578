"""Which resumes of a run are not exact: recorded in checkpoints, reported on the console."""

import dataclasses
from typing import Any

from birl.envs.check.trials import Trial
from birl.errors import InexactResume, plain_warning
from birl.run.console import Console
from birl.run.progress import RunProgress
from birl.types import Snapshot


class Exactness:
    """Records and reports inexact resumes."""

    def __init__(self, progress: RunProgress, console: Console) -> None:
        self._progress = progress
        self._console = console
        self._restore_problem = ""  # why no resume of this run can be exact, as a trial found
        self._reported = ""  # the reason that was reported last

    def take(self, trial: Trial) -> None:
        """Remember what a trial of the environments found; report if resumes will not be exact."""
        if trial.masks is not None:
            self._progress.masks = trial.masks
        self._restore_problem = trial.problem
        self._report(trial.problem)

    def check_snapshot(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot, marked as inexact if the environments cannot be restored; reported once."""
        if snapshot.exact and self._restore_problem:
            snapshot = dataclasses.replace(snapshot, exact=False, reason=self._restore_problem)
        self._report(snapshot.reason)
        return snapshot

    def warn_if_inexact(self, resumed: Snapshot | None) -> None:
        """Report that the resume from this snapshot is not exact, unless an environment did."""
        if resumed is not None and not resumed.exact and not self._progress.resumed_inexactly:
            self.show_warning(f"this resume is not exact: {resumed.reason}", InexactResume)

    def show_warning(self, message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        """Show a warning above the progress bar; record it if it is about an inexact resume.

        It takes the place of `warnings.showwarning`, whose output the bar would overwrite.
        """
        self._console.warn(plain_warning(message))
        if issubclass(category, InexactResume) and not self._progress.resumed_inexactly:
            entry = {"env_steps": self._progress.start_steps, "reason": str(message)}
            self._progress.inexact_resumes.append(entry)

    def _report(self, reason: str) -> None:
        if reason and reason != self._reported:
            self._console.message(f"a resume of this run will not be exact: {reason}")
            self._reported = reason
