"""How far a run is: its steps, its seconds, its best evaluation, its resumes."""

import time
from pathlib import Path
from typing import Any

from birl.config import RunConfig, to_json
from birl.run.changes import NOT_KEPT, Change, changed_settings
from birl.run.checkpoint import Checkpoint
from birl.run.manifest import Progress


class RunProgress:
    """What a run keeps besides its State and snapshot. The parts of the training loop share it.

    Each checkpoint's manifest stores it (see manifest.Progress); the seconds include those of all
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
        changed = {name: pair for name, pair in changed_settings(before, after).items() if name not in NOT_KEPT}
        if changed:
            self.changes.append(to_json(Change(self.start_steps, changed)))

    def reached_goal(self, run: RunConfig) -> bool:
        """Whether an evaluation reached `stop_at_return`."""
        goal = run.stop_at_return
        return goal is not None and self.best is not None and self.best["return_mean"] >= goal

    @property
    def resumed_inexactly(self) -> bool:
        """Whether the resume that started this process is recorded as inexact."""
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


def saved_text(saved: bool, env_steps: int, run_dir: Path) -> str:
    """Whether a run that stops is saved, and how to continue it."""
    state = f"saved at {env_steps:,} steps" if saved else "not saved, the newest checkpoint is an older one"
    return f"{state}; continue with: birl resume {run_dir}"


def ended_text(run: RunConfig, reached_goal: bool, run_dir: Path) -> str:
    """That a run had ended before, and how to train it longer."""
    end = f"stop_at_return {run.stop_at_return}" if reached_goal else f"its {run.total_steps:,} steps"
    return f"this run has reached {end}; to train longer: birl resume {run_dir} --total-steps N"


def kept_text(saved_steps: int, checkpoints: Path) -> str:
    """Which checkpoint is kept; -1: there is none."""
    return f"{checkpoints / f'{saved_steps:09d}'} is kept" if saved_steps >= 0 else "none had been written yet"


def crossed(before: int, now: int, every: int) -> bool:
    """Whether a multiple of `every` lies in (before, now]; never for 0."""
    return every > 0 and now // every > before // every


def _best_until(steps: int, *found: dict[str, Any] | None) -> dict[str, Any] | None:
    """The best checkpoint that is not beyond these steps: later ones will be trained again."""
    known = [best for best in found if best is not None and int(best["checkpoint"]) <= steps]
    return max(known, key=lambda best: best["return_mean"], default=None)
