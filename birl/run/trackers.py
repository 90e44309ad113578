"""TensorBoard, Weights & Biases and Trackio, and the names that other libraries give metrics.

Only this file imports the three packages, and each only if a run asks for it: they are slow to
import and not always installed.
"""

import contextlib
import io
import json
import os
import re
import secrets
import time
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from birl import ALGORITHMS
from birl.config import ConfigError, from_json, is_atari
from birl.errors import CheckpointError, install_extra
from birl.registry import Alias, Aliases, MetricNames, supports
from birl.run import files
from birl.run.directory import flatten

if TYPE_CHECKING:
    import wandb
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

# So existing dashboards work. The names, signs and scales are those of Stable-Baselines3 and
# sb3-contrib 2.9, and of CleanRL's ppo.py, dqn.py and {ddpg,td3,sac}_continuous_action.py. An
# algorithm that a library does not have gets the names of the closest one that it has. SUPPORTS of
# an algorithm may have others.
COMMON: dict[MetricNames, Aliases] = {
    "birl": {},
    "sb3": {
        "episode/return": Alias("rollout/ep_rew_mean"),
        "episode/length": Alias("rollout/ep_len_mean"),
        "episode/count": Alias("time/episodes"),
        "episode/success": Alias("rollout/success_rate"),
        "eval/return_mean": Alias("eval/mean_reward"),
        "eval/length_mean": Alias("eval/mean_ep_length"),
        "eval/success_mean": Alias("eval/success_rate"),
        "loss/policy": Alias("train/policy_loss"),
        "loss/value": Alias("train/value_loss"),
        "policy/entropy": Alias("train/entropy_loss", -1.0),
        "policy/approx_kl": Alias("train/approx_kl"),
        "policy/kl": Alias("train/kl_divergence_loss"),
        "policy/clip_fraction": Alias("train/clip_fraction"),
        "trust_region/accepted": Alias("train/is_line_search_success"),
        "value/explained_variance": Alias("train/explained_variance"),
        "optimizer/learning_rate": Alias("train/learning_rate"),
        "exploration/epsilon": Alias("rollout/exploration_rate"),
        "exploration/temperature": Alias("train/ent_coef"),
        "time/env_steps_per_second": Alias("time/fps"),
    },
    "cleanrl": {
        "episode/return": Alias("charts/episodic_return"),
        "episode/length": Alias("charts/episodic_length"),
        "eval/return_mean": Alias("eval/episodic_return"),
        "loss/policy": Alias("losses/policy_loss"),
        "loss/value": Alias("losses/value_loss", 0.5),
        "loss/temperature": Alias("losses/alpha_loss"),
        "policy/entropy": Alias("losses/entropy"),
        "policy/approx_kl": Alias("losses/approx_kl"),
        "policy/clip_fraction": Alias("losses/clipfrac"),
        "value/explained_variance": Alias("losses/explained_variance"),
        "value/mean": Alias("losses/qf1_values"),
        "optimizer/learning_rate": Alias("charts/learning_rate"),
        "exploration/epsilon": Alias("charts/epsilon"),
        "exploration/temperature": Alias("losses/alpha"),
        "time/env_steps_per_second": Alias("charts/SPS"),
    },
}
QUEUED_EVENTS = 1000  # with the default of 10, a burst of writes waits for the disk
FLUSH_SECONDS = 5
LONGEST_TEXT = 100  # characters of a hyperparameter that is a list
OF_THE_RUN = ("run.seed", "run.total_steps")  # the other run settings change no result


class TensorBoardSink:
    """Writes scalars over environment steps. Each process of a run has its own event file.

    The settings of the run are a text, and hyperparameters to compare runs by.
    """

    def __init__(self, directory: Path, settings: dict[str, Any], resume_at: int | None = None) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.plugins.hparams.summary_v2 import hparams_pb
        from tensorboard.plugins.text.summary_v2 import text_pb

        self._make_event = Event
        self._make_summary = Summary
        self._writer = _open_writer(directory, resume_at)
        # A resumed run may have other settings: TensorBoard shows both texts.
        self._add(resume_at or 0, text_pb("config", f"```json\n{json.dumps(settings, indent=2)}\n```"))
        # Without a list of columns, TensorBoard finds those of all runs that it compares.
        self._add(resume_at or 0, hparams_pb(_hyperparameters(settings)))

    def write(self, env_steps: int, seconds: float, metrics: Mapping[str, float]) -> None:
        values = [self._make_summary.Value(tag=name, simple_value=value) for name, value in metrics.items()]
        self._add(env_steps, self._make_summary(value=values))

    def close(self) -> None:
        self._writer.close()

    def _add(self, env_steps: int, summary: "Summary") -> None:
        self._writer.add_event(self._make_event(wall_time=time.time(), step=env_steps, summary=summary))


class WandbSink:
    """Logs metrics to Weights & Biases. A run directory has one run there."""

    def __init__(self, project: str, run_dir: Path, config_json: dict[str, Any]) -> None:
        self._run = _start_wandb(project, run_dir, config_json)
        self._resumed_at = self._run.step  # read once: it takes half a millisecond

    def write(self, env_steps: int, seconds: float, metrics: Mapping[str, float]) -> None:
        # A resumed run repeats the steps after its checkpoint; those are logged already.
        if env_steps >= self._resumed_at:
            self._run.log({**metrics, "seconds": seconds}, step=env_steps)

    def close(self) -> None:
        self._run.finish()


class TrackioSink:
    """Logs metrics to Trackio. A run directory has one run there.

    Trackio keeps them in its own directory on this machine: `trackio show` shows them.
    """

    def __init__(self, project: str, run_dir: Path, config_json: dict[str, Any], logged_steps: int) -> None:
        self._run = _start_trackio(project, run_dir, config_json)
        self._logged_steps = logged_steps  # up to here an earlier process has logged

    def write(self, env_steps: int, seconds: float, metrics: Mapping[str, float]) -> None:
        # A resumed run repeats the steps after its checkpoint; those are logged already.
        if env_steps >= self._logged_steps:
            self._run.log({**metrics, "seconds": seconds}, step=env_steps)

    def close(self) -> None:
        import trackio

        # RuntimeError: a Trackio run that the user began in this process has ended ours already.
        with _without_output(), contextlib.suppress(RuntimeError):
            trackio.finish()


def tracker_id(path: Path) -> str:
    """The id of a run at a tracker, in this file: made once, so that a resume keeps the curves."""
    if not os.path.lexists(path):
        files.write_new(path, f"{secrets.token_hex(6)}\n".encode())
    written = files.read_bytes(path).strip()
    if not re.fullmatch(b"[0-9a-f]{12}", written):
        raise CheckpointError(f"{path} is damaged: it must hold 12 hexadecimal digits; remove it to start new curves")
    return written.decode()


def aliases_of(algorithm: str, names: MetricNames) -> Aliases:
    """The names that another library gives the metrics of this algorithm."""
    own = supports(algorithm).aliases if algorithm in ALGORITHMS else {}
    return {**COMMON[names], **own.get(names, {})}


def rename(metrics: Mapping[str, float], aliases: Aliases) -> dict[str, float]:
    """The metrics with another library's names, signs and scales; others stay as they are."""
    renamed = [(aliases.get(name, Alias(name)), value) for name, value in metrics.items()]
    return {alias.name: value * alias.factor for alias, value in renamed}


def _hyperparameters(settings: dict[str, Any]) -> dict[str, bool | int | float | str]:
    """The settings of a run that can change its result, by dotted name; None is left out."""
    flat = flatten({name: _as_one_value(value) for name, value in settings.items()})
    uses_atari = is_atari(flat.get("env.id", ""))
    return {
        name: json.dumps(value)[:LONGEST_TEXT] if isinstance(value, list) else value
        for name, value in flat.items()
        if value is not None
        and (name in OF_THE_RUN or not name.startswith("run."))
        and (uses_atari or not name.startswith("env.atari."))
    }


def _as_one_value(value: Any) -> Any:
    """A schedule as the command line writes it; any other setting as it is."""
    from birl.maths.schedules import Schedule, shown  # imports JAX, which plotting does not need

    if not isinstance(value, dict) or value.keys() != {field.name for field in fields(Schedule)}:
        return value
    return shown(from_json(Schedule, value))


def _open_writer(directory: Path, resume_at: int | None) -> "EventFileWriter":
    from tensorboard.compat.proto.event_pb2 import Event, SessionLog
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    files.require_real_directory(directory)
    _wait_for_a_later_name(directory)
    writer = EventFileWriter(str(directory), QUEUED_EVENTS, FLUSH_SECONDS)
    if resume_at is not None:
        # TensorBoard drops every earlier point with this step or a later one.
        start = SessionLog(status=SessionLog.START)
        writer.add_event(Event(wall_time=time.time(), step=resume_at + 1, session_log=start))
    return writer


def _wait_for_a_later_name(directory: Path) -> None:
    """Wait until a new event file will be read after those that are there: at most a second.

    TensorBoard reads them by name, which begins with the second. The rest of the name does not
    increase with time.
    """
    names = [path.name for path in directory.glob("events.*")]
    seconds = [int(found[1]) for name in names if (found := re.match(r"events\.\D+\.(\d+)\.", name))]
    while int(time.time()) in seconds:
        time.sleep(0.05)


def _start_wandb(project: str, run_dir: Path, config_json: dict[str, Any]) -> "wandb.Run":
    try:
        import wandb
    except ImportError as problem:
        raise ConfigError(f"run.wandb {project!r} needs the wandb package: {install_extra('wandb')}") from problem
    files.require_real_directory(run_dir / "wandb")
    return wandb.init(
        project=project,
        name=run_dir.name,
        id=tracker_id(run_dir / "wandb_id.txt"),
        dir=run_dir,
        config=config_json,
        resume="allow",
        reinit="create_new",
        settings=wandb.Settings(console="off"),  # capturing the terminal breaks the progress bar
    )


def _start_trackio(project: str, run_dir: Path, config_json: dict[str, Any]) -> Any:
    try:
        import trackio
    except ImportError as problem:
        wrong = f"run.trackio {project!r} needs the trackio package"
        raise ConfigError(f"{wrong}: {install_extra('trackio')}") from problem
    # Trackio finds a run again by its name: runs of one name in two directories must differ.
    name = f"{run_dir.name}-{tracker_id(run_dir / 'trackio_id.txt')}"
    try:
        with _without_output():
            return trackio.init(
                project=project,
                name=name,
                config=flatten(config_json),
                resume="allow",
                embed=False,
                auto_log_gpu=False,  # a run is tracked, not the machine
                auto_log_cpu=False,
            )
    except ValueError as problem:  # a project name that it cannot use
        raise ConfigError(f"run.trackio {project!r}: {problem}") from problem


@contextlib.contextmanager
def _without_output() -> Iterator[None]:
    """Hide what Trackio prints, which would break the progress bar."""
    with contextlib.redirect_stdout(io.StringIO()):
        yield
