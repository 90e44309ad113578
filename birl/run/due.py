"""What is due after an update of a run: an evaluation, a checkpoint, a video, a pause, the end."""

from birl.config import RunConfig
from birl.run.progress import RunProgress, crossed


class Due:
    """Says what is due at the steps that a run has done."""

    def __init__(self, run: RunConfig, progress: RunProgress, has_evaluations: bool, pause_at: int | None) -> None:
        self._run = run
        self._progress = progress
        self._has_evaluations = has_evaluations
        self._pause_at = pause_at
        self._before = progress.steps  # the steps of the update before the latest one

    def count(self, steps: int) -> None:
        """Take the steps of a new update."""
        self._before, self._progress.steps = self._progress.steps, steps
        self._progress.evaluation_due = False  # that was of an update before

    def row(self) -> bool:
        """Whether the latest update gets a line in the log: only settings and steps decide."""
        return self._crossed(self._run.steps_between_rows) or self.evaluation() or self.checkpoint()

    def evaluation(self) -> bool:
        return self._has_evaluations and self._crossed(self._run.eval_every)

    def checkpoint(self) -> bool:
        # At the last update too: asking for another one would close the environments.
        is_due = self._crossed(self._run.checkpoint_every) or self._crossed(self._run.keep_every)
        return is_due or self._progress.steps >= self._run.total_steps

    def video(self) -> bool:
        return self._crossed(self._run.video_every)

    def pause(self) -> bool:
        """Whether this process has reached the steps at which it is to pause the run."""
        return self._pause_at is not None and self._pause_at <= self._progress.steps < self._run.total_steps

    def goal(self) -> bool:
        """Whether an evaluation reached `stop_at_return`."""
        return self._progress.reached_goal(self._run)

    def _crossed(self, every: int) -> bool:
        return crossed(self._before, self._progress.steps, every)
