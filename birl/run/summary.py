"""summary.json: what came of a run, written when it ends."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from birl.errors import CheckpointError
from birl.run.console import score_text
from birl.run.evaluate import Evaluation
from birl.run.files import read_json
from birl.run.progress import RunProgress
from birl.run.versions import machine, versions


def make_summary(
    run_dir: Path, algorithm: str, config: Any, progress: RunProgress, evaluation: Evaluation | None
) -> dict[str, Any]:
    """The content of summary.json."""
    found = None if evaluation is None else evaluation.summary(config.run.eval_deterministic)
    return {
        "run_dir": str(run_dir),
        "algorithm": algorithm,
        "env": config.env.id,
        "seed": config.run.seed,
        "env_steps": progress.steps,
        "evaluation": found,
        "best_return": None if progress.best is None else progress.best["return_mean"],
        "wall_seconds": round(progress.wall_seconds(), 2),
        "cpu_seconds": round(progress.cpu_seconds(), 2),
        "inexact_resumes": progress.inexact_resumes,
        "versions": versions(),
        "machine": machine(),
    }


def read_summary(path: Path, env_steps: int, report: Callable[[str], None]) -> dict[str, Any] | None:
    """The summary of a run that ended at these steps; None if there is none. Its score is reported.

    A damaged one is reported, too.
    """
    summary = _read(path, report)
    if summary is None or summary["env_steps"] != env_steps:
        return None
    if (found := summary["evaluation"]) is not None:
        report(f"evaluation {score_text(found['return_mean'], found['return_std'], found['episodes'])}")
    return summary


def _read(path: Path, report: Callable[[str], None]) -> dict[str, Any] | None:
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
