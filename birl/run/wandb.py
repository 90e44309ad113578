"""Weights & Biases. Only this file imports wandb, and only if a run asks for it."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from birl.config import ConfigError
from birl.errors import install_extra
from birl.run import files
from birl.run.tracker_id import tracker_id

if TYPE_CHECKING:
    import wandb


class WandbSink:
    """Logs metrics over environment steps. A run directory has one Weights & Biases run."""

    def __init__(self, project: str, run_dir: Path, config_json: dict[str, Any]) -> None:
        self._run = _start(project, run_dir, config_json)
        self._resumed_at = self._run.step  # read once: it takes half a millisecond

    def write(self, env_steps: int, seconds: float, metrics: Mapping[str, float]) -> None:
        # A resumed run repeats the steps after its checkpoint; those are logged already.
        if env_steps >= self._resumed_at:
            self._run.log({**metrics, "seconds": seconds}, step=env_steps)

    def close(self) -> None:
        self._run.finish()


def run_id(run_dir: Path) -> str:
    """The id in run_dir/wandb_id.txt, made once."""
    return tracker_id(run_dir / "wandb_id.txt")


def _start(project: str, run_dir: Path, config_json: dict[str, Any]) -> "wandb.Run":
    try:
        import wandb
    except ImportError as problem:
        raise ConfigError(f"run.wandb {project!r} needs the wandb package: {install_extra('wandb')}") from problem
    files.require_real_directory(run_dir / "wandb")
    return wandb.init(
        project=project,
        name=run_dir.name,
        id=run_id(run_dir),
        dir=run_dir,
        config=config_json,
        resume="allow",
        reinit="create_new",
        settings=wandb.Settings(console="off"),  # capturing the terminal breaks the progress bar
    )
