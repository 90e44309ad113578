"""A lane: one run of a group. How it is continued, whether it has finished, how it ended."""

import os
from pathlib import Path
from typing import Any, NamedTuple, Self

from birl.config import EnvConfig
from birl.errors import CheckpointError
from birl.run.directory import CHECKPOINTS, CONFIG, GROUP, SUMMARY
from birl.run.files import read_json

LOG = "console.log"  # what a lane prints


class LaneOptions(NamedTuple):
    """How to continue each lane; the options of `birl resume`."""

    total_steps: int | None = None
    workers: int | None = None
    trust: bool = False
    env: str | None = None

    def words(self) -> list[str]:
        """As words of the command line."""
        given = {"--total-steps": self.total_steps, "--workers": self.workers, "--env": self.env}
        words = [word for name, value in given.items() if value is not None for word in (name, str(value))]
        return [*words, "--trust"] if self.trust else words

    def of(self, run_dir: Path) -> Self:
        """For the lane in this directory: one that has passed the new end ends where it is."""
        if self.total_steps is None:
            return self
        from birl.run.checkpoint_folder import numbered  # which imports JAX, and plots read lanes, too

        done = max((int(path.name) for path in numbered(run_dir / CHECKPOINTS)), default=0)
        return self._replace(total_steps=max(self.total_steps, done))


class LaneEnd(NamedTuple):
    """How the training of a lane ended in this process."""

    run_dir: Path
    problem: str | None = None  # why it failed; None: it did not
    stopped: bool = False  # by a signal, before its end: it can be continued


class LaneNews(NamedTuple):
    """How far a lane is whose files are not seen from here yet."""

    run_dir: Path
    env_steps: int
    values: dict[str, float]  # the newest finite value of each metric


def lane_summary(run_dir: Path) -> dict[str, Any] | None:
    """The summary of a lane; None if it has none, or a damaged one."""
    match _json_of(run_dir / SUMMARY):
        case {"env_steps": int(), "evaluation": dict() | None} as summary:
            return summary
    return None


def lane_problem(run_dir: Path) -> str | None:
    """Why the group of this lane says that it failed; None if it has ended, or is in no group."""
    if lane_summary(run_dir) is not None:
        return None  # it was continued by itself
    for above in (run_dir.parent, run_dir.parent.parent):  # a sweep has a folder for each combination
        match _json_of(above / SUMMARY) if os.path.lexists(above / GROUP) else None:
            case {"failed": dict(failed)}:
                problem = failed.get(run_dir.relative_to(above).as_posix())
                return None if problem is None else str(problem)
    return None


def total_steps_of(run_dir: Path, given: int | None = None) -> int:
    """The environment steps that a lane is to train for; 0 if its settings cannot be read."""
    if given is not None:
        return given
    match _json_of(run_dir / CONFIG):
        case {"config": {"run": {"total_steps": int(steps)}}}:
            return steps
    return 0


def env_of(run_dir: Path) -> EnvConfig:
    """The id and the backend of a lane's environment; the default's if they cannot be read."""
    match _json_of(run_dir / CONFIG):
        case {"config": {"env": {"id": str(env_id), "backend": ("gymnasium" | "envpool" | "compiled") as backend}}}:
            return EnvConfig(env_id, backend=backend)
    return EnvConfig()


def is_finished(run_dir: Path, total_steps: int | None = None) -> bool:
    """Whether a lane has its summary, with the steps or the return that it trains for."""
    summary = lane_summary(run_dir)
    if summary is None:
        return False
    goal, best = _goal_of(run_dir), summary.get("best_return")
    reached = goal is not None and isinstance(best, int | float) and best >= goal
    total = total_steps_of(run_dir, total_steps)
    return 0 < total <= summary["env_steps"] or (reached and total_steps is None)


def _goal_of(run_dir: Path) -> float | None:
    match _json_of(run_dir / CONFIG):
        case {"config": {"run": {"stop_at_return": int() | float() as goal}}}:
            return goal
    return None


def _json_of(path: Path) -> Any:
    """The content of a JSON file; None if it is missing, or damaged: the lane itself says so."""
    try:
        return read_json(path) if os.path.lexists(path) else None
    except CheckpointError:
        return None
