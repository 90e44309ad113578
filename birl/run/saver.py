"""Saving during a run: checkpoints, and which one is the best."""

from typing import Any

import gymnasium as gym

from birl.run import checkpoint, checkpoint_folder
from birl.run.console import Console
from birl.run.directory import CHECKPOINTS, OpenDirectory
from birl.run.exactness import Exactness
from birl.run.progress import RunProgress
from birl.types import Update


class Saver:
    """Writes the checkpoints of a run, and removes old ones."""

    def __init__(
        self,
        name: str,
        config: Any,
        spaces: tuple[gym.Space, gym.Space],
        directory: OpenDirectory,
        progress: RunProgress,
        exactness: Exactness,
        console: Console,
    ) -> None:
        self._name = name
        self._config = config
        self._spaces = spaces
        self._directory = directory
        self._folder = directory.path / CHECKPOINTS
        self._progress = progress
        self._exactness = exactness
        self._console = console

    def save(self, update: Update) -> None:
        """Write the checkpoint of this update, unless it is written already."""
        progress = self._progress
        self._directory.require_in_place(progress.steps)
        if progress.saved_steps == progress.steps:
            return
        snapshot = self._exactness.check_snapshot(update.snapshot())
        checkpoint.save(
            self._folder, self._name, self._config, self._spaces, update.state, snapshot, progress.to_json()
        )
        checkpoint_folder.prune(self._folder, self._config.run.keep_checkpoints)
        progress.saved_steps = progress.steps

    def try_save(self, update: Update) -> bool:
        """Save, or report why that was not possible. A full disk must not end a run."""
        try:
            self.save(update)
        except OSError as problem:
            self._console.message(f"checkpoint not written, training goes on: {problem}")
            return False
        return True

    def keep_best(self, score: float, steps: int, update: Update | None) -> None:
        """Save this update as the best so far; None: its checkpoint is there already.

        The checkpoint's own manifest says that it is the best, in case the process is killed before
        best.json is written.
        """
        before = self._progress.best
        self._progress.best = {"checkpoint": f"{steps:09d}", "return_mean": score}
        try:
            if update is not None:
                self.save(update)
            checkpoint_folder.mark_best(self._folder, self._progress.best)
            checkpoint_folder.prune(self._folder, self._config.run.keep_checkpoints)
        except OSError as problem:
            self._progress.best = before
            self._console.message(f"best checkpoint not written, training goes on: {problem}")
