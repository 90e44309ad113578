"""Saving during a run: checkpoints, and which one is the best."""

from pathlib import Path
from typing import Any

import gymnasium as gym

from birl.run import checkpoint, checkpoint_folder
from birl.run.console import Console, memory_size
from birl.run.directory import CHECKPOINTS
from birl.run.exactness import Exactness
from birl.run.manifest import FORMAT, snapshot_files
from birl.run.open_directory import OpenDirectory
from birl.run.progress import RunProgress
from birl.settings import flat_settings
from birl.types import Update

SNAPSHOT = snapshot_files(FORMAT)[1]


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
        progress.masks |= "envs/masks" in snapshot.arrays  # of environments that were passed in, which no trial saw
        path = checkpoint.save(
            self._folder, self._name, self._config, self._spaces, update.state, snapshot, progress.to_json()
        )
        self._prune()
        progress.saved_steps = progress.steps
        self._report_size(path)

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
            self._prune()
        except OSError as problem:
            self._progress.best = before
            self._console.message(f"best checkpoint not written, training goes on: {problem}")

    def _prune(self) -> None:
        run = self._config.run
        checkpoint_folder.prune(self._folder, run.keep_checkpoints, run.keep_every)

    def _report_size(self, path: Path) -> None:
        """With the first checkpoint that is kept for good, say how large all of them will be."""
        run = self._config.run
        if checkpoint_folder.kept_for_good(checkpoint_folder.numbered(self._folder), run.keep_every) != [path]:
            return
        sizes = {file.name: file.stat().st_size for file in path.iterdir()}
        replay_size = flat_settings(self._config).get("replay_size", 0)
        number, total = expected_sizes(sizes, int(path.name), run.keep_every, run.total_steps, replay_size)
        self._console.message(
            f"keep_every {run.keep_every:,}: checkpoint {path.name} has {memory_size(sum(sizes.values()))}; "
            f"about {number} will be kept for good, with {memory_size(total)} in all"
        )


def expected_sizes(
    sizes: dict[str, int], env_steps: int, every: int, total_steps: int, replay_size: int
) -> tuple[int, float]:
    """How many checkpoints will be kept every so many steps, and about how many bytes they have.

    `sizes` are those of the files of the first one. If there is a replay, it is most of the
    snapshot, and grows until it is full.
    """
    first = env_steps // every
    steps = [env_steps, *(every * number for number in range(first + 1, total_steps // every + 1))]
    snapshot = sizes[SNAPSHOT]
    others = sum(sizes.values()) - snapshot
    grown = [min(at, replay_size) / min(env_steps, replay_size) if replay_size else 1.0 for at in steps]
    return len(steps), others * len(steps) + snapshot * sum(grown)
