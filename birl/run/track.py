"""Where metrics go: metrics.jsonl always, TensorBoard and Weights & Biases if asked for.

metrics.jsonl keeps Birl's names whatever `metric_names` says, so that `birl plot` can read every run;
TensorBoard and Weights & Biases get the names that people's dashboards expect.
"""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Protocol, TextIO

from birl.config import RunConfig, require

MetricNames = Literal["birl", "sb3", "cleanrl"]

# What Stable-Baselines3 2.x (docs/common/logger.rst, contrib's trpo.py) and CleanRL (ppo.py, dqn.py, ddpg_continuous_action.py) write.
ALIASES: dict[str, dict[str, str]] = {
    "birl": {},
    "sb3": {
        "episode/return": "rollout/ep_rew_mean",
        "episode/length": "rollout/ep_len_mean",
        "episode/count": "time/episodes",
        "eval/return_mean": "eval/mean_reward",
        "eval/length_mean": "eval/mean_ep_length",
        "loss/policy": "train/policy_gradient_loss",
        "loss/value": "train/value_loss",
        "loss/actor": "train/actor_loss",
        "loss/critic": "train/critic_loss",
        "loss/q": "train/loss",
        "policy/entropy": "train/entropy_loss",
        "policy/approx_kl": "train/approx_kl",
        "policy/kl": "train/kl_divergence_loss",
        "policy/clip_fraction": "train/clip_fraction",
        "trust_region/accepted": "train/is_line_search_success",
        "value/explained_variance": "train/explained_variance",
        "optimizer/learning_rate": "train/learning_rate",
        "exploration/epsilon": "rollout/exploration_rate",
        "time/env_steps_per_second": "time/fps",
    },
    "cleanrl": {
        "episode/return": "charts/episodic_return",
        "episode/length": "charts/episodic_length",
        "eval/return_mean": "eval/episodic_return",
        "loss/policy": "losses/policy_loss",
        "loss/value": "losses/value_loss",
        "loss/actor": "losses/actor_loss",
        "loss/critic": "losses/qf1_loss",
        "loss/q": "losses/td_loss",
        "policy/entropy": "losses/entropy",
        "policy/approx_kl": "losses/approx_kl",
        "policy/clip_fraction": "losses/clipfrac",
        "value/explained_variance": "losses/explained_variance",
        "value/q_mean": "losses/q_values",
        "optimizer/learning_rate": "charts/learning_rate",
        "exploration/epsilon": "charts/epsilon",
        "time/env_steps_per_second": "charts/SPS",
    },
}
# SB3 logs the negative of the entropy; CleanRL half of the mean squared error that Birl and SB3 log.
FACTORS = {"train/entropy_loss": -1.0, "losses/value_loss": 0.5}


class Sink(Protocol):
    """Something that is told every metric of a run."""

    def write(self, env_steps: int, seconds: float, metrics: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


class JsonlSink:
    """metrics.jsonl: one strict JSON object a line, on disk's way as soon as it is written."""

    def __init__(self, path: Path, resume_at: int | None = None) -> None:
        self._file = _create(path) if resume_at is None else _reopen(path, resume_at)

    def write(self, env_steps: int, seconds: float, metrics: Mapping[str, float]) -> None:
        row = {"env_steps": env_steps, "seconds": round(seconds, 3)}
        self._file.write(_to_line(row | {name: float(value) for name, value in metrics.items()}))
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class RenamedSink:
    """A sink that is told the metrics under another library's names."""

    def __init__(self, sink: Sink, names: MetricNames) -> None:
        self._sink = sink
        self._names = names

    def write(self, env_steps: int, seconds: float, metrics: Mapping[str, float]) -> None:
        self._sink.write(env_steps, seconds, rename(metrics, self._names))

    def close(self) -> None:
        self._sink.close()


def rename(metrics: Mapping[str, float], names: MetricNames) -> dict[str, float]:
    """The metrics under another library's names, signs and scales; what that library does not log stays as it is."""
    aliases = ALIASES[names]
    renamed = {aliases.get(name, name): value for name, value in metrics.items()}
    return {name: value * FACTORS.get(name, 1.0) for name, value in renamed.items()}


def open_sinks(run: RunConfig, run_dir: Path, config_json: dict[str, Any], resume_at: int | None = None) -> list[Sink]:
    """The sinks a run asks for. With resume_at, what was written beyond that many environment steps is dropped."""
    sinks: list[Sink] = []
    # metrics.jsonl is created last: a failure before it leaves a directory in which the run can be started again.
    if run.wandb is not None:
        from birl.run.wandb import WandbSink  # slow to import and not always installed

        sinks.append(RenamedSink(WandbSink(run.wandb, run_dir, config_json), run.metric_names))
    if run.tensorboard:
        from birl.run.tensorboard import TensorBoardSink  # slow to import

        sinks.append(RenamedSink(TensorBoardSink(run_dir / "tensorboard", resume_at), run.metric_names))
    return [JsonlSink(run_dir / "metrics.jsonl", resume_at), *sinks]


def read_metrics(path: Path) -> list[dict[str, float | None]]:
    """The rows of a metrics.jsonl, without a last line that was cut while being written; null is None."""
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    rows = []
    for number, line in enumerate(lines, start=1):
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError as problem:
            if number == len(lines):
                break
            raise ValueError(f"{path}, line {number} is not JSON ({problem}); remove that line") from problem
    return rows


def _create(path: Path) -> TextIO:
    require(not path.exists(), f"run_dir {path.parent} already holds {path.name}; resume that run or choose another run_dir")
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.open("x", encoding="utf-8")


def _reopen(path: Path, resume_at: int) -> TextIO:
    rows = read_metrics(path) if path.exists() else []
    kept = [row for row in rows if (row["env_steps"] or 0) <= resume_at]
    partial = path.with_name(f".{path.name}.partial")
    with partial.open("w", encoding="utf-8") as file:
        file.writelines(map(_to_line, kept))
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    return path.open("a", encoding="utf-8")


def _to_line(row: Mapping[str, float | None]) -> str:
    # JSON has no NaN or infinity, and most readers reject Python's spelling of them.
    finite = {name: value if value is not None and math.isfinite(value) else None for name, value in row.items()}
    return json.dumps(finite, allow_nan=False) + "\n"
