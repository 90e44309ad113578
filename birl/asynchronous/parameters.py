"""The parameters that actor-learners share: flat vectors, and the State made of them.

Networks and statistics are pytrees in a State. Actor-learners share them as flat vectors
(SharedParameters), which fit into one block of memory. A ParameterLayout turns one into the other.
"""

from dataclasses import dataclass, fields
from math import prod
from typing import Any, NamedTuple

import jax
import numpy as np

from birl.config import ConfigError
from birl.maths.count import WRAP_AT, Count, count_of
from birl.nets.normalize import Normalizer
from birl.rollouts.episode_stats import without_unknown
from birl.types import Array, Metrics, PyTree

MOST_METRICS = 32  # of one worker step
# Metrics to add up, and those of which the least or most is taken; of the others it is the mean.
SUMMED = {"episode/count", "replay/steps", "replay/bytes"}
LEAST = {"reward/min", "observation/constant_share"}
MOST = {"reward/max", "observation/largest", "observation/widest"}


class State(NamedTuple):
    """Everything that changes while n actor-learners learn P parameters together."""

    network: PyTree  # θ
    target_weights: PyTree  # θ⁻: the target network or the average network; None without either
    mean_squares: Array  # [P] g: the shared RMSProp's mean of squared gradients
    normalizer: Normalizer  # [n, ...] statistics of each actor-learner's observations and returns
    key: Array  # [n, 2]
    env_steps: np.int64  # T
    updates: np.int64  # how often `train` has yielded
    gradient_steps: np.int64


class ParameterLayout(NamedTuple):
    """Where the leaves of a pytree are in a flat vector."""

    structure: Any  # JAX's description of the tree
    shapes: tuple[tuple[int, ...], ...]

    @property
    def size(self) -> int:
        return sum(map(prod, self.shapes))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle a tree: JAX's description of it is not valid in another process."""
        return parameter_layout, (self.tree(np.zeros(self.size, np.float32)),)

    def vector(self, tree: PyTree) -> np.ndarray:
        """[size] the leaves of a tree, one after the other."""
        leaves = [np.ravel(leaf) for leaf in jax.tree.leaves(tree)]
        return np.concatenate(leaves) if leaves else np.zeros(0, np.float32)

    def rows(self, tree: PyTree, count: int) -> np.ndarray:
        """[count, size] the leaves of a tree that all have a leading axis [count]."""
        leaves = [np.asarray(leaf, np.float32).reshape(count, -1) for leaf in jax.tree.leaves(tree)]
        return np.concatenate(leaves, axis=1) if leaves else np.zeros((count, 0), np.float32)

    def tree(self, vector: Array) -> PyTree:
        """The tree of a vector [..., size]. With NumPy the leaves [..., *shape] are views."""
        leaves = []
        first = 0
        for shape in self.shapes:
            leaves.append(vector[..., first : first + prod(shape)].reshape((*vector.shape[:-1], *shape)))
            first += prod(shape)
        return jax.tree.unflatten(self.structure, leaves)


def parameter_layout(tree: PyTree) -> ParameterLayout:
    """The layout of this tree. Raises ConfigError if one of its arrays is not float32."""
    leaves, structure = jax.tree.flatten(tree)
    wrong = [str(leaf.dtype) for leaf in leaves if leaf.dtype != np.float32]
    if wrong:
        remedy = "make it of float32, or a field with eqx.field(static=True)"
        raise ConfigError(f"the network has an array of {wrong[0]}; {remedy}")
    return ParameterLayout(structure, tuple(leaf.shape for leaf in leaves))


class Layouts(NamedTuple):
    """The layouts of a State: of its network, and of one actor-learner's normalizer."""

    network: ParameterLayout
    normalizer: ParameterLayout


class Weights(NamedTuple):
    """The copy of the shared parameters that an actor-learner acts and learns with."""

    network: np.ndarray  # [P] θ'
    target_weights: np.ndarray  # [P] θ⁻; [0] without
    normalizers: np.ndarray  # [n, M]
    env_steps: Count  # T, of all actor-learners together
    gradient_steps: np.int32  # of all actor-learners together, modulo WRAP_AT


class WorkerResult(NamedTuple):
    """The result of one worker step of an actor-learner."""

    gradients: np.ndarray  # [P] dθ
    learning_rate: float  # η
    env_steps: int
    normalizer: np.ndarray  # [M] its statistics after this step
    key: np.ndarray  # [2] its next random key
    metrics: Metrics


@dataclass(frozen=True)
class SharedParameters:
    """The arrays that all actor-learners share.

    All of them write to the vectors, without locks. A row [n, ...] is written by its actor-learner
    alone.
    """

    weights: np.ndarray  # [P] θ
    mean_squares: np.ndarray  # [P] g
    target_weights: np.ndarray  # [P] θ⁻; [0] without
    target_copied_at: np.ndarray  # [1] T when θ⁻ was last copied
    normalizers: np.ndarray  # [n, M]
    keys: np.ndarray  # [n, 2]
    env_steps: np.ndarray  # [n] their sum is T; in one counter for all, some steps would be lost
    gradient_steps: np.ndarray  # [n]
    metrics: np.ndarray  # [n, MOST_METRICS] of each actor-learner's last step; NaN where there is none

    def read(self) -> Weights:
        """A copy for an actor-learner: θ' ← θ."""
        env_steps = count_of(int(self.env_steps.sum()))
        gradient_steps = np.int32(self.gradient_steps.sum() % WRAP_AT)
        return Weights(
            self.weights.copy(), self.target_weights.copy(), self.normalizers.copy(), env_steps, gradient_steps
        )

    def write(self, number: int, result: WorkerResult) -> None:
        """Write the row of actor-learner `number`: its statistics, key, metrics and counts."""
        self.normalizers[number] = result.normalizer
        self.keys[number] = result.key
        self.metrics[number, : len(result.metrics)] = list(result.metrics.values())
        self.env_steps[number] += result.env_steps
        self.gradient_steps[number] += 1

    def copy_weights_every(self, env_steps: int, more: int) -> None:
        """θ⁻ ← θ every so many steps of all actor-learners; `more` steps are not yet written."""
        now = int(self.env_steps.sum()) + more
        # Another actor-learner may have copied since this sum was taken; it must not happen twice.
        if now // env_steps > int(self.target_copied_at[0]) // env_steps:
            self.target_copied_at[0] = now
            self.target_weights[:] = self.weights

    def take_episode_count(self, names: tuple[str, ...], number: int) -> int:
        """The number of episodes that an actor-learner has finished. Its count is set to 0."""
        if "episode/count" not in names:
            return 0
        column = names.index("episode/count")
        count = int(np.nan_to_num(self.metrics[number, column]))
        self.metrics[number, column] = 0
        return count

    def copy(self) -> "SharedParameters":
        return SharedParameters(*[getattr(self, field.name).copy() for field in fields(self)])


def layouts_of(state: State) -> Layouts:
    """The layouts of this State's network and of one actor-learner's normalizer."""
    one = jax.tree.map(lambda x: x[0], state.normalizer)
    return Layouts(parameter_layout(state.network), parameter_layout(one))


def state_to_shared(state: State, layouts: Layouts) -> SharedParameters:
    """The shared parameters of a State, copied. The counts go to row 0: only sums are used."""
    n = len(state.key)
    env_steps, gradient_steps = np.zeros((2, n), np.int64)
    env_steps[0] = state.env_steps
    gradient_steps[0] = state.gradient_steps
    return SharedParameters(
        weights=layouts.network.vector(state.network),
        mean_squares=np.array(state.mean_squares),
        target_weights=layouts.network.vector(() if state.target_weights is None else state.target_weights),
        target_copied_at=env_steps[:1].copy(),
        normalizers=layouts.normalizer.rows(state.normalizer, n),
        keys=np.array(state.key),
        env_steps=env_steps,
        gradient_steps=gradient_steps,
        metrics=np.full((n, MOST_METRICS), np.nan),
    )


def shared_to_state(shared: SharedParameters, layouts: Layouts, updates: int) -> State:
    """The State of these shared parameters."""
    return State(
        network=layouts.network.tree(shared.weights),
        target_weights=layouts.network.tree(shared.target_weights) if shared.target_weights.size else None,
        mean_squares=shared.mean_squares,
        normalizer=layouts.normalizer.tree(shared.normalizers),
        key=shared.keys,
        env_steps=np.int64(shared.env_steps.sum()),
        updates=np.int64(updates),
        gradient_steps=np.int64(shared.gradient_steps.sum()),
    )


def combine_metrics(rows: np.ndarray, names: tuple[str, ...]) -> Metrics:
    """One set of metrics from those of n actor-learners [n, MOST_METRICS]; NaNs are left out."""
    combined: Metrics = {}
    for column, name in enumerate(names):
        numbers = rows[:, column][~np.isnan(rows[:, column])]
        if name in SUMMED:
            combined[name] = int(numbers.sum())
            continue
        take = np.min if name in LEAST else np.max if name in MOST else np.mean
        combined[name] = float(take(numbers)) if len(numbers) else float("nan")
    return without_unknown(combined)
