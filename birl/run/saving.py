"""Saving during a run: progress, checkpoints, which resumes are exact, and summary.json."""

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym

from birl.config import RunConfig, to_json
from birl.envs.check.trials import Trial
from birl.errors import CheckpointError, InexactResume, plain_warning
from birl.run import checkpoint
from birl.run.checkpoint import FORMAT, Checkpoint, Progress, snapshot_files
from birl.run.console import Console, memory_size, score_text
from birl.run.directory import CHECKPOINTS, NOT_KEPT, OpenDirectory, SettingsChange, config_changes
from birl.run.files import read_json
from birl.run.versions import machine, versions
from birl.settings import flat_settings
from birl.types import Snapshot, Update

SNAPSHOT = snapshot_files(FORMAT)[1]


class RunProgress:
    """The progress of a run besides its State and snapshot. The parts of the loop share it.

    Each checkpoint's manifest stores it (see checkpoint.Progress); the seconds include those of all
    earlier processes of the run.
    """

    def __init__(self, saved: Checkpoint | None, marked_best: dict[str, Any] | None = None) -> None:
        stored = to_json(Progress()) | (saved.manifest["progress"] if saved else {})
        self.start_steps = saved.env_steps if saved else 0  # where this process started
        self.start_seconds: float = stored["wall_seconds"]
        self.steps = self.start_steps  # environment steps done
        self.saved_steps = saved.env_steps if saved else -1  # of the newest checkpoint
        self.best = _best_until(self.start_steps, stored["best"], marked_best)
        self.evaluation_due: bool = stored["evaluation_due"]
        self.inexact_resumes: list[dict[str, Any]] = list(stored["inexact_resumes"])
        self.masks: bool = stored["masks"]
        self.changes: list[dict[str, Any]] = list(stored["changes"])
        self._wall_start = time.perf_counter() - stored["wall_seconds"]
        self._cpu_start = time.process_time() - stored["cpu_seconds"]

    def wall_seconds(self) -> float:
        return time.perf_counter() - self._wall_start

    def cpu_seconds(self) -> float:
        return time.process_time() - self._cpu_start

    def take_changes(self, before: Any, after: Any) -> None:
        """Record which settings this resume changes."""
        changed = {name: pair for name, pair in config_changes(before, after).items() if name not in NOT_KEPT}
        if changed:
            self.changes.append(to_json(SettingsChange(self.start_steps, changed)))

    def reached_goal(self, run: RunConfig) -> bool:
        """True if an evaluation reached `stop_at_return`."""
        goal = run.stop_at_return
        return goal is not None and self.best is not None and self.best["return_mean"] >= goal

    @property
    def resumed_inexactly(self) -> bool:
        """True if the resume that started this process is recorded as inexact."""
        return any(resume["env_steps"] == self.start_steps for resume in self.inexact_resumes)

    def to_json(self) -> dict[str, Any]:
        """The `progress` of a manifest."""
        return {
            "wall_seconds": self.wall_seconds(),
            "cpu_seconds": self.cpu_seconds(),
            "best": self.best,
            "evaluation_due": self.evaluation_due,
            "inexact_resumes": self.inexact_resumes,
            "masks": self.masks,
            "changes": self.changes,
        }


@dataclass(frozen=True)
class OpenRun:
    """The settings, directory, progress and console that the parts of a run share."""

    name: str  # of the algorithm
    config: Any
    spaces: tuple[gym.Space, gym.Space]
    directory: OpenDirectory
    progress: RunProgress
    console: Console


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


class Saver:
    """Writes the checkpoints of a run, and removes old ones."""

    def __init__(self, run: OpenRun, exactness: Exactness) -> None:
        self._run = run
        self._folder = run.directory.path / CHECKPOINTS
        self._exactness = exactness

    def save(self, update: Update) -> None:
        """Write the checkpoint of this update, unless it is written already."""
        run, progress = self._run, self._run.progress
        run.directory.require_in_place(progress.steps)
        if progress.saved_steps == progress.steps:
            return
        snapshot = self._exactness.check_snapshot(update.snapshot())
        progress.masks |= "envs/masks" in snapshot.arrays  # of environments that were passed in, which no trial saw
        path = checkpoint.save_checkpoint(
            self._folder, run.name, run.config, run.spaces, update.state, snapshot, progress.to_json()
        )
        self._prune()
        progress.saved_steps = progress.steps
        self._report_size(path)

    def try_save(self, update: Update) -> bool:
        """Save, or report why that was not possible. A full disk must not end a run."""
        try:
            self.save(update)
        except OSError as problem:
            self._run.console.message(f"checkpoint not written, training goes on: {problem}")
            return False
        return True

    def keep_best(self, score: float, steps: int, update: Update | None) -> None:
        """Save this update as the best so far; None: its checkpoint is there already.

        The checkpoint's own manifest says that it is the best, in case the process is killed before
        best.json is written.
        """
        progress = self._run.progress
        before = progress.best
        progress.best = {"checkpoint": f"{steps:09d}", "return_mean": score}
        try:
            if update is not None:
                self.save(update)
            checkpoint.mark_best(self._folder, progress.best)
            self._prune()
        except OSError as problem:
            progress.best = before
            self._run.console.message(f"best checkpoint not written, training goes on: {problem}")

    def _prune(self) -> None:
        run = self._run.config.run
        checkpoint.prune(self._folder, run.keep_checkpoints, run.keep_every)

    def _report_size(self, path: Path) -> None:
        """Report the expected size of all checkpoints with the first one that is kept for good."""
        run = self._run.config.run
        if checkpoint.kept_for_good(checkpoint.checkpoints_in(self._folder), run.keep_every) != [path]:
            return
        sizes = {file.name: file.stat().st_size for file in path.iterdir()}
        replay_size = flat_settings(self._run.config).get("replay_size", 0)
        number, total = expected_sizes(sizes, int(path.name), run.keep_every, run.total_steps, replay_size)
        self._run.console.message(
            f"keep_every {run.keep_every:,}: checkpoint {path.name} has {memory_size(sum(sizes.values()))}; "
            f"about {number} will be kept for good, with {memory_size(total)} in all"
        )


def expected_sizes(
    sizes: dict[str, int], env_steps: int, every: int, total_steps: int, replay_size: int
) -> tuple[int, float]:
    """The number of checkpoints that will be kept for good, and about how many bytes they have.

    `sizes` are those of the files of the first one. If there is a replay, it is most of the
    snapshot, and grows until it is full.
    """
    first = env_steps // every
    steps = [env_steps, *(every * number for number in range(first + 1, total_steps // every + 1))]
    snapshot = sizes[SNAPSHOT]
    others = sum(sizes.values()) - snapshot
    grown = [min(at, replay_size) / min(env_steps, replay_size) if replay_size else 1.0 for at in steps]
    return len(steps), others * len(steps) + snapshot * sum(grown)


def make_summary(run: OpenRun, evaluation: dict[str, Any] | None) -> dict[str, Any]:
    """The content of summary.json; `evaluation` is the part about the final evaluation."""
    progress = run.progress
    return {
        "run_dir": str(run.directory.path),
        "algorithm": run.name,
        "env": run.config.env.id,
        "seed": run.config.run.seed,
        "env_steps": progress.steps,
        "evaluation": evaluation,
        "best_return": None if progress.best is None else progress.best["return_mean"],
        "wall_seconds": round(progress.wall_seconds(), 2),
        "cpu_seconds": round(progress.cpu_seconds(), 2),
        "inexact_resumes": progress.inexact_resumes,
        "versions": versions(),
        "machine": machine(),
    }


def read_summary(path: Path, env_steps: int, report: Callable[[str], None]) -> dict[str, Any] | None:
    """The summary of a run that ended at these steps, or None. Its score is reported.

    A damaged one is reported, too.
    """
    summary = _read_summary(path, report)
    if summary is None or summary["env_steps"] != env_steps:
        return None
    if (found := summary["evaluation"]) is not None:
        report(f"evaluation {score_text(found['return_mean'], found['return_std'], found['episodes'])}")
    return summary


def saved_text(saved: bool, env_steps: int, run_dir: Path) -> str:
    """A sentence on whether a run that stops is saved, and how to continue it."""
    state = f"saved at {env_steps:,} steps" if saved else "not saved, the newest checkpoint is an older one"
    return f"{state}; continue with: birl resume {run_dir}"


def ended_text(run: RunConfig, reached_goal: bool, run_dir: Path) -> str:
    """That a run had ended before, and how to train it longer."""
    end = f"stop_at_return {run.stop_at_return}" if reached_goal else f"its {run.total_steps:,} steps"
    return f"this run has reached {end}; to train longer: birl resume {run_dir} --total-steps N"


def kept_text(saved_steps: int, checkpoints: Path) -> str:
    """A text that names the newest checkpoint, of these steps; -1: no checkpoint exists."""
    return f"{checkpoints / f'{saved_steps:09d}'} is kept" if saved_steps >= 0 else "none had been written yet"


def crossed(before: int, now: int, every: int) -> bool:
    """True if a multiple of `every` lies in (before, now]; never for 0."""
    return every > 0 and now // every > before // every


def _best_until(steps: int, *found: dict[str, Any] | None) -> dict[str, Any] | None:
    """The best checkpoint that is not beyond these steps: later ones will be trained again."""
    known = [best for best in found if best is not None and int(best["checkpoint"]) <= steps]
    return max(known, key=lambda best: best["return_mean"], default=None)


def _read_summary(path: Path, report: Callable[[str], None]) -> dict[str, Any] | None:
    try:
        summary = read_json(path)
    except FileNotFoundError:
        return None
    except CheckpointError as problem:
        report(f"{problem}; it is written again")
        return None
    match summary:
        case {"env_steps": int(), "evaluation": None}:
            return summary
        case {
            "env_steps": int(),
            "evaluation": {"return_mean": int() | float(), "return_std": int() | float(), "episodes": int()},
        }:
            return summary
    report(f"{path} is damaged: it is not a summary; it is written again")
    return None
