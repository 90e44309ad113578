"""Facts that rules read: metrics, settings, a little of the newest checkpoint."""

import math
import re
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import pairwise
from typing import Any

import gymnasium as gym
import numpy as np

from birl.config import require
from birl.errors import CheckpointError
from birl.lab.diagnosis.diagnoses import Learned, Unseen, Verdict
from birl.run.console import number
from birl.run.directory import CHECKPOINTS, CONFIG
from birl.run.history import RunHistory

AVERAGED = 20  # episodes that `episode/return` is the mean of
LEAST_EPISODES = 2 * AVERAGED  # two means that share no episode
LEAST_ROWS = 5
WINDOW = 0.1  # the share of the steps so far that a mean is taken over
CLEAR = 2.0  # standard deviations by which a return must move
WORDS: dict[Learned, str] = {
    "improved": "has improved",
    "improved and fell": "rose and fell",
    "fell": "has fallen",
    "not moved": "has not moved",
    "too short": "cannot be judged yet",
}
LARGEST_CHECKPOINT = 1 << 28  # bytes; a large replay takes too long to read for the little that is looked at
SAMPLES = 512  # observations for which the units of a network are computed
ACTIVATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {"relu": partial(np.maximum, 0.0), "tanh": np.tanh}
LAYER = re.compile(r"\.network\.(\w+)\.encoder\.mlp\.layers\[(\d+)\]\.(weight|bias)")
HIDDEN_BIAS = re.compile(r"\.(network|target)\.?(\w*)(?:\[\d+\])?\.(?:encoder|mlp)\.(?:.+\.)?bias")


def learning_verdict(run: RunHistory) -> Verdict:
    """The verdict on a run, by how much the means of its return differ."""
    steps, returns = run.curve("episode/return")
    counted, counts = run.curve("episode/count")
    episodes = int(counts[-1]) if len(counts) else 0
    if episodes < LEAST_EPISODES:
        return Verdict("too short", f"too short to judge: {episodes} episodes have ended")
    if len(steps) < LEAST_ROWS:
        rows = f"logged rows with a return: {len(steps)}"
        return Verdict("too short", f"too short to judge: {rows}, of at least {LEAST_ROWS}")
    ended = np.interp(steps, counted, counts)
    # Not the first tenth: a run may have learned all of its task by then.
    first = float(returns[ended <= max(LEAST_EPISODES, ended[0] + AVERAGED)].mean())
    means = window_means(steps, returns)
    last, best = float(means[-1]), max(first, float(means.max()))
    clear = CLEAR * noise(returns, ended) + 1e-6 * abs(first)
    learned = _judged(first, best, last, clear)
    what = f"rose to {number(best)} and fell" if learned == "improved and fell" else WORDS[learned]
    course = f"{number(first)} in the first episodes, {number(last)} in the last tenth of the steps"
    return Verdict(learned, f"the return {what}: {course}", first, best, last, clear)


def joint_verdict(verdicts: Sequence[Verdict]) -> Verdict:
    """The verdict that most seeds have, of equally many the worse one, with means over the seeds.

    Its sentence says how many have which verdict, and the range of their returns.
    """
    counts = Counter(verdict.learned for verdict in verdicts)
    often = sorted(counts, key=lambda learned: (-counts[learned], learned == "improved"))
    parts = [f"{WORDS[learned]} in {counts[learned]}" for learned in often]
    parts[0] += f" of {len(verdicts)} seeds"
    what = f"the return {', '.join(parts)}"
    judged = [verdict for verdict in verdicts if verdict.first is not None]
    if not judged:
        return Verdict(often[0], what)
    ends = [[getattr(verdict, name) for verdict in judged] for name in ("first", "best", "last", "clear")]
    means = [float(np.mean(values)) for values in ends]
    first, _, last, _ = (
        f"{number(mean)} ({number(min(values))} to {number(max(values))})"
        for mean, values in zip(means, ends, strict=True)
    )
    course = f"{first} in the first episodes, {last} in the last tenth of the steps, as mean and range over the seeds"
    return Verdict(often[0], f"{what}: {course}", *means)


def _judged(first: float, best: float, last: float, clear: float) -> Learned:
    # The best of ten windows is high by chance, so it must stand out more.
    if best - first > 1.5 * clear and best - last > max(0.5 * (best - first), clear):
        return "improved and fell"
    if last - first > clear:
        return "improved"
    return "fell" if first - last > clear else "not moved"


def noise(returns: np.ndarray, ended: np.ndarray) -> float:
    """Standard deviation of the difference of an early and a late return if nothing is learned.

    It comes from differences of neighbouring rows, in which learning hardly shows. Rows k < 20
    episodes apart share 20 - k of those that each is the mean of: the variance of their difference
    is k/20 of that of rows that share none. Of all differences the median counts, for a jump is no
    noise; of the last tenth the mean square, for a late return may vary more.
    """
    apart = np.diff(ended)
    moved = apart > 0
    differences = np.diff(returns)[moved] * np.sqrt(AVERAGED / np.clip(apart[moved], 1, AVERAGED))
    if not len(differences):
        return 0.0
    usual = 1.4826 * float(np.median(np.abs(differences)))  # of a Gaussian: its standard deviation
    late = float(np.sqrt(np.mean(differences[-max(LEAST_ROWS, len(differences) // 10) :] ** 2)))
    # Half of the variance of a difference is that of each of its two rows.
    return float(np.hypot(usual, late if len(differences) > 2 * LEAST_ROWS else usual) / np.sqrt(2))


def window_means(steps: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Means of a curve over ten windows of equal length; those without a value are left out."""
    edges = np.linspace(steps[0], steps[-1], round(1 / WINDOW) + 1)
    place = np.clip(np.searchsorted(edges, steps, side="right") - 1, 0, len(edges) - 2)
    parts = [values[place == index] for index in range(len(edges) - 1)]
    return np.array([part.mean() for part in parts if len(part)])


@dataclass(frozen=True)
class SavedFacts:
    """Facts from a checkpoint."""

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
        """True if the return has clearly improved, and stayed so."""
        return self.verdict.learned == "improved"

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

    def need_progress(self, progress: float) -> None:
        """Raise Unseen before this share of the steps is done."""
        if self.progress < progress:
            done = f"{100 * self.progress:.0f} % of the steps are done"
            raise Unseen(f"too early: {done}, of at least {100 * progress:.0f} %")

    def need(self, *metrics: str) -> None:
        """Raise Unseen unless the run has these metrics."""
        absent = [metric for metric in metrics if not len(self.values(metric))]
        if absent:
            raise Unseen(f"the run has no {' and no '.join(absent)}")


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
