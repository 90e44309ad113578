"""What rules read of a run: its metrics, its settings, and little of its newest checkpoint."""

import math
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import pairwise
from typing import Any

import gymnasium as gym
import numpy as np

from birl.config import require
from birl.errors import CheckpointError
from birl.lab.diagnosis.findings import Verdict
from birl.lab.diagnosis.verdict import learning_verdict
from birl.run.directory import CHECKPOINTS, CONFIG
from birl.run.history import RunHistory

LARGEST_CHECKPOINT = 1 << 28  # bytes; a large replay takes too long to read for the little that is looked at
SAMPLES = 512  # observations for which the units of a network are computed
ACTIVATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {"relu": partial(np.maximum, 0.0), "tanh": np.tanh}
LAYER = re.compile(r"\.network\.(\w+)\.encoder\.mlp\.layers\[(\d+)\]\.(weight|bias)")
HIDDEN_BIAS = re.compile(r"\.(network|target)\.?(\w*)(?:\[\d+\])?\.(?:encoder|mlp)\.(?:.+\.)?bias")


@dataclass(frozen=True)
class SavedFacts:
    """What a checkpoint says."""

    action_space: gym.Space
    dead_share: float | None  # of the units of the last hidden layer; None: they could not be computed
    moved: dict[str, float] = field(default_factory=dict)  # by part of the network, see moved_biases
    target_moved: dict[str, float] = field(default_factory=dict)  # the same of the target network


@dataclass(frozen=True)
class Facts:
    """A run as the rules see it."""

    run: RunHistory
    saved: SavedFacts | None = None  # None: there is no checkpoint that can be read

    @cached_property
    def verdict(self) -> Verdict:
        return learning_verdict(self.run)

    @cached_property
    def env_steps(self) -> int:
        return max((int(row["env_steps"] or 0) for row in self.run.rows), default=0)

    @property
    def progress(self) -> float:
        """The share of the steps that are done."""
        return min(1.0, self.env_steps / max(1.0, self.number("run.total_steps", 1)))

    @property
    def learns(self) -> bool:
        """Whether the return has clearly improved, and stayed so."""
        return self.verdict.learned == "improved"

    def explores(self, epsilon: float) -> bool:
        """Whether ε is still above this."""
        return (self.last("exploration/epsilon") or 0.0) > epsilon

    def setting(self, name: str, default: Any = None) -> Any:
        """A setting by its flat name, or the default. A schedule is text."""
        value = self.run.settings.get(name)
        return default if value is None else value

    def number(self, name: str, default: float) -> float:
        """A setting that must be a number, or the default; ConfigError if it is anything else."""
        value = self.setting(name, default)
        wrong = f"{self.run.run_dir / CONFIG} is damaged: {name} {value!r} is not a finite number"
        require(type(value) in (int, float) and abs(value) < math.inf, wrong)
        return float(value)

    def values(self, metric: str) -> np.ndarray:
        """The metric in the order of steps."""
        return self.run.curve(metric)[1]

    def last(self, metric: str) -> float | None:
        """The newest value of a metric; None if there is none."""
        values = self.values(metric)
        return float(values[-1]) if len(values) else None

    def too_early(self, progress: float) -> str | None:
        """Why a rule that needs this share of the steps cannot be checked yet; None if it can."""
        if self.progress >= progress:
            return None
        return f"too early: {100 * self.progress:.0f} % of the steps are done, of at least {100 * progress:.0f} %"

    def missing(self, *metrics: str) -> str | None:
        """Why a rule that needs these metrics cannot be checked; None if they are there."""
        absent = [metric for metric in metrics if not len(self.values(metric))]
        return f"the run has no {' and no '.join(absent)}" if absent else None


def facts_of(run: RunHistory) -> Facts:
    """The facts of a run, with those of its newest checkpoint if that is not too large."""
    from birl.run import checkpoint  # imports JAX

    directory = run.run_dir / CHECKPOINTS
    try:
        newest = checkpoint.checkpoints_in(directory)[-1:] if directory.is_dir() else []
        if not newest or sum(file.stat().st_size for file in newest[0].iterdir()) > LARGEST_CHECKPOINT:
            return Facts(run)
        saved = checkpoint.load_newest(directory, lambda text: warnings.warn(text, stacklevel=2))
    except (CheckpointError, OSError):
        return Facts(run)
    if saved is None:
        return Facts(run)
    ranges = saved.snapshot.arrays.get("ranges/observations/0")
    activation = str(run.settings.get("activation") or "")
    dead = dead_share(saved.tensors, ranges, activation)
    moved = (moved_biases(saved.tensors, whose) for whose in ("network", "target"))
    return Facts(run, SavedFacts(saved.action_space, dead, *moved))


def moved_biases(tensors: dict[str, np.ndarray], whose: str) -> dict[str, float]:
    """The largest bias of the hidden layers of each part of the network, or of the target network.

    These begin at 0, so it says how far the weights have moved.
    """
    moved: dict[str, float] = {}
    for name, tensor in tensors.items():
        if (match := HIDDEN_BIAS.fullmatch(name)) and match[1] == whose and tensor.size:
            moved[match[2]] = max(moved.get(match[2], 0.0), float(np.abs(tensor).max()))
    return moved


def dead_share(tensors: dict[str, np.ndarray], ranges: np.ndarray | None, activation: str) -> float | None:
    """The share of units of the last hidden layers that give the same for all observations.

    Observations are drawn from the box [2, D] that the run has seen. Of actor and critic the larger
    share counts. None if the network is no plain MLP, or if the box is a point.
    """
    squash = ACTIVATIONS.get(activation)
    if ranges is None or ranges.ndim != 2 or squash is None or not np.isfinite(ranges).all():
        return None
    if (ranges[0] == ranges[1]).all():
        return None
    drawn = np.random.default_rng(0).uniform(ranges[0], ranges[1], (SAMPLES, ranges.shape[1]))
    moments = [tensors.get(f".normalizer.observations.{name}") for name in ("mean", "variance")]
    if moments[0] is not None and moments[1] is not None and moments[0].shape == ranges.shape[1:]:
        drawn = np.clip((drawn - moments[0]) / np.sqrt(moments[1] + 1e-8), -10.0, 10.0)
    shares = []
    for part in sorted({match[1] for name in tensors if (match := LAYER.fullmatch(name))}):
        layers = _layers(tensors, part)
        if layers is None or layers[0][0].shape[0] != drawn.shape[1]:
            return None
        hidden = drawn
        for weight, bias in layers:
            hidden = squash(hidden @ weight + bias)
        shares.append(float(np.mean(np.ptp(hidden, axis=0) < 1e-6)))
    return max(shares, default=None)


def _layers(tensors: dict[str, np.ndarray], part: str) -> Sequence[tuple[np.ndarray, np.ndarray]] | None:
    """Weight and bias of each layer of an encoder; None if it holds anything else."""
    own = {name for name in tensors if name.startswith(f".network.{part}.encoder.")}
    count = len(own) // 2
    names = [[f".network.{part}.encoder.mlp.layers[{i}].{kind}" for kind in ("weight", "bias")] for i in range(count)]
    if own != {name for pair in names for name in pair} or not count:
        return None
    layers = [(tensors[weight], tensors[bias]) for weight, bias in names]
    fits = all(weight.ndim == 2 and bias.shape == weight.shape[1:] for weight, bias in layers)
    chained = all(one[0].shape[1] == two[0].shape[0] for one, two in pairwise(layers))
    return layers if fits and chained else None
