"""Actor-learners that share parameters: what they read, what they answer, and the deterministic way
to run them.

One worker function, `(weights, learner) -> result`, runs in three places: in turn in this process
(here), in processes that write to the shared parameters without locks (processes.py), and on the
machines of a Ray cluster (ray.py).
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass, fields
from types import TracebackType
from typing import Any, Literal, NamedTuple, Protocol, Self

import numpy as np

from birl.asynchronous.flat import ParameterLayout
from birl.asynchronous.replay_cycle import Cycle, ReplayShare
from birl.config import EnvConfig, RunConfig, require, require_at_least_one
from birl.envs.make import make_envs
from birl.envs.spaces import derived_seeds
from birl.errors import NonFiniteError, snapshot_errors
from birl.maths.count import TURNS, Count, count_of
from birl.rollouts.collector import Act, Collector
from birl.types import Envs, Metrics, PyTree, Snapshot

PoolName = Literal["serial", "processes", "ray"]
MOST_METRICS = 32
SUMS = {
    "episode/count",
    "replay/steps",
    "replay/bytes",
}  # of which actor-learners have their own; of other metrics the mean is taken


class Settings(Protocol):
    """The settings of an algorithm's Config that say how its actor-learners run."""

    @property
    def env(self) -> EnvConfig: ...
    @property
    def run(self) -> RunConfig: ...
    @property
    def pool(self) -> str: ...  # a PoolName
    @property
    def actor_learners(self) -> int: ...
    @property
    def report_every(self) -> int: ...
    @property
    def rollout_length(self) -> int: ...
    @property
    def optimizer(self) -> str: ...  # an RMSPropName
    @property
    def normalize_observations(self) -> bool: ...
    @property
    def normalize_rewards(self) -> bool: ...


class Weights(NamedTuple):
    """What an actor-learner reads before it acts: a copy, for the shared ones change meanwhile."""

    network: np.ndarray  # [P] θ'
    target_weights: np.ndarray  # [P] θ⁻, of a target network or an average one; [0] without either
    normalizers: np.ndarray  # [n, M] what each actor-learner has seen
    env_steps: Count  # T: of all actor-learners together
    gradient_steps: np.int32  # of all; see next_turn


class Result(NamedTuple):
    """What an actor-learner has found out in its steps."""

    gradients: np.ndarray  # [P] dθ
    learning_rate: float  # η
    env_steps: int
    normalizer: np.ndarray  # [M] what it has seen by now
    key: np.ndarray  # [2] to draw with next
    metrics: Metrics


@dataclass(frozen=True)
class SharedParameters:
    """What all actor-learners see. The vectors are written by all of them, a row by its
    actor-learner alone: nothing needs a lock.
    """

    weights: np.ndarray  # [P] θ
    mean_squares: np.ndarray  # [P] g: RMSProp's running mean of squared gradients
    target_weights: np.ndarray  # [P] θ⁻, or [0]
    target_copied_at: np.ndarray  # [1] T when θ⁻ was last written
    normalizers: np.ndarray  # [n, M]
    keys: np.ndarray  # [n, 2]
    env_steps: (
        np.ndarray
    )  # [n] steps done by each: their sum is the paper's T, and none is lost as in a counter that all write to
    gradient_steps: np.ndarray  # [n]
    metrics: np.ndarray  # [n, MOST_METRICS] of each one's last turn; NaN where there is none

    def read(self) -> Weights:
        counts = count_of(int(self.env_steps.sum())), np.int32(self.gradient_steps.sum() % TURNS)
        return Weights(self.weights.copy(), self.target_weights.copy(), self.normalizers.copy(), *counts)

    def write(self, index: int, result: Result) -> None:
        """Keep what actor-learner `index` alone knows."""
        self.normalizers[index], self.keys[index] = result.normalizer, result.key
        self.metrics[index, : len(result.metrics)] = list(result.metrics.values())
        self.env_steps[index] += result.env_steps
        self.gradient_steps[index] += 1

    def copy_weights_every(self, env_steps: int, more: int) -> None:
        """θ⁻ ← θ once in so many steps of all together; `more` are about to be written down."""
        now = int(self.env_steps.sum()) + more
        # Whoever added up the steps a moment ago comes with an older sum: it must not copy again.
        if now // env_steps > int(self.target_copied_at[0]) // env_steps:
            self.target_copied_at[0] = now
            self.target_weights[:] = self.weights

    def copy(self) -> "SharedParameters":
        return SharedParameters(*[getattr(self, field.name).copy() for field in fields(self)])


class ActorLearner(NamedTuple):
    """One actor-learner: its environments, how it steps them, and what it replays."""

    number: int
    key: np.ndarray  # [2]
    envs: Envs
    collect: Collector
    cycle: Cycle | None  # None without a replay

    def snapshot(self) -> Snapshot:
        """Everything needed to go on from here, exactly."""
        snapshot = self.collect.snapshot()
        return snapshot if self.cycle is None else self.cycle.snapshot(snapshot)


WorkerStep = Callable[
    [Weights, ActorLearner, "Work"], Result
]  # a turn of an actor-learner: it acts with its weights and answers with a gradient
ApplyGradients = Callable[
    [SharedParameters, Result, Any], None
]  # takes that gradient's step, given a Config, in the shared parameters, in place


@dataclass(frozen=True)
class Work:
    """What actor-learners do, wherever they are."""

    config: Any  # the algorithm's Config: see Settings
    module: str  # with `act`: functions that were compiled cannot be sent to another process
    worker_step: WorkerStep
    update: ApplyGradients
    network: ParameterLayout
    normalizer: ParameterLayout
    memory: PyTree  # of a rollout's first step
    until_end: bool = False  # a turn ends with the episode, too
    replay: ReplayShare | None = None  # of each actor-learner

    @property
    def act(self) -> Act:
        return importlib.import_module(self.module).act


class Pool(Protocol):
    """Somewhere to run actor-learners."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End them all; nothing is left of them."""

    def run(self, env_steps: int) -> SharedParameters:
        """Have them learn until so many steps are done in all; a copy of the board then, between
        two updates.
        """

    def metrics(self) -> Metrics:
        """Of the actor-learners' last turns."""

    def snapshot(self) -> Snapshot:
        """Everything needed to go on from the board that `run` gave."""


def not_exact(where: str, work: Work) -> str:
    """Why a run of actor-learners that nobody holds in step cannot go on exactly."""
    replays = "" if work.replay is None else " and with empty replays"
    return f"actor-learners in {where} run freely: they go on from the saved parameters, in new episodes{replays}"


def open_learner(work: Work, index: int, key: np.ndarray, seed: int, snapshot: Snapshot | None = None) -> ActorLearner:
    """Actor-learner `index` in environments of its own; with `snapshot`, where it was taken."""
    config: Settings = work.config
    envs = make_envs(config.env, seed)
    try:
        behaviour = None if work.replay is None else work.replay.behaviour
        collect = Collector(envs, work.act, config.rollout_length, work.memory, work.until_end, behaviour)
        collect.start(seed, snapshot)
        cycle = None if work.replay is None else Cycle(work.replay, collect.empty_rollout())
        if cycle is not None and snapshot is not None:
            cycle.restore(snapshot, envs.fresh)
    except BaseException:
        envs.close()
        raise
    return ActorLearner(index, key, envs, collect, cycle)


def seed_of(run_seed: int, index: int, *fresh: int) -> int:
    """The seed of an actor-learner's environments; more numbers for a start that is not the first.
    The first one has the run's own.
    """
    return run_seed if index == 0 and not any(fresh) else derived_seeds([run_seed, index, *fresh], 1)[0]


def run_worker_step(learner: ActorLearner, weights: Weights, work: Work) -> tuple[Result, ActorLearner]:
    """One turn: what it found, and the actor-learner after it."""
    try:
        result = work.worker_step(weights, learner, work)
    except NonFiniteError as problem:
        raise NonFiniteError(f"actor-learner {learner.number}: {problem}") from problem
    return result, learner._replace(key=result.key)


def new_shared_parameters(
    weights: np.ndarray,
    mean_squares: np.ndarray,
    target_weights: np.ndarray,
    normalizers: np.ndarray,
    keys: np.ndarray,
    env_steps: int,
    updates: int,
) -> SharedParameters:
    """A board to begin with. What was done before is written down as the first actor-learner's:
    only the sum is of interest.
    """
    steps, turns = np.zeros((2, len(keys)), np.int64)
    steps[0], turns[0] = env_steps, updates
    metrics = np.full((len(keys), MOST_METRICS), np.nan)
    return SharedParameters(
        weights.copy(),
        mean_squares.copy(),
        target_weights.copy(),
        steps[:1].copy(),
        normalizers.copy(),
        keys.copy(),
        steps,
        turns,
        metrics,
    )


def episodes_of(shared: SharedParameters, names: tuple[str, ...], index: int) -> int:
    """Episodes that an actor-learner has finished. They are taken off the board: whoever replaces
    it counts from 0.
    """
    if "episode/count" not in names:
        return 0
    column = names.index("episode/count")
    count = int(np.nan_to_num(shared.metrics[index, column]))
    shared.metrics[index, column] = 0
    return count


def combined(rows: np.ndarray, names: tuple[str, ...]) -> Metrics:
    """Metrics [n, MOST_METRICS] of the actor-learners as those of one: means over who has a number,
    sums of counts.
    """
    found: Metrics = {}
    for column, name in enumerate(names):
        numbers = rows[:, column][~np.isnan(rows[:, column])]
        found[name] = int(numbers.sum()) if name in SUMS else float(numbers.mean()) if len(numbers) else float("nan")
    return found


def open_pool(work: Work, shared: SharedParameters, snapshot: Snapshot | None) -> Pool:
    """The pool that the settings ask for. It begins with this board; with `snapshot`, where that
    was taken.
    """
    if work.config.pool == "serial":
        return SerialPool(work, shared, snapshot)
    if work.config.pool == "processes":
        from birl.asynchronous.processes import ProcessPool  # which imports this module

        return ProcessPool(work, shared, snapshot)
    from birl.asynchronous.ray import RayPool

    return RayPool(work, shared, snapshot)


class SerialPool:
    """Actor-learners that take turns in this process, each with the weights as they were after its
    own last turn.

    So each gradient is as old as it would be if n worked at the same pace: n - 1 updates of others
    lie between. Deterministic.
    """

    def __init__(self, work: Work, shared: SharedParameters, snapshot: Snapshot | None) -> None:
        self.work, self.shared, self.start = work, shared, snapshot
        self.learners: list[ActorLearner] = []
        self.weights = [shared.read() for _ in range(work.config.actor_learners)]
        self.turn = 0
        self.names: tuple[str, ...] = ()

    def __enter__(self) -> Self:
        try:
            for index in range(self.work.config.actor_learners):
                snapshot = None if self.start is None else _part_of(self.start, index)
                seed = seed_of(self.work.config.run.seed, index)
                self.learners.append(open_learner(self.work, index, self.shared.keys[index].copy(), seed, snapshot))
        except BaseException:
            self._close()
            raise
        if self.start is not None:
            self._restore(self.start)
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def run(self, env_steps: int) -> SharedParameters:
        while self.shared.env_steps.sum() < env_steps:
            result, self.learners[self.turn] = run_worker_step(
                self.learners[self.turn], self.weights[self.turn], self.work
            )
            self.work.update(self.shared, result, self.work.config)
            self.shared.write(self.turn, result)
            self.names = tuple(result.metrics)
            self.weights[self.turn] = self.shared.read()
            self.turn = (self.turn + 1) % len(self.learners)
        return self.shared.copy()

    def metrics(self) -> Metrics:
        return combined(self.shared.metrics, self.names)

    def snapshot(self) -> Snapshot:
        arrays: dict[str, np.ndarray] = {"metrics": self.shared.metrics.copy()}
        parts = []
        for learner, weights in zip(self.learners, self.weights, strict=True):
            part = learner.snapshot()
            parts.append(part)
            arrays |= {f"learners/{learner.number}/{name}": array for name, array in part.arrays.items()}
            kept = {"network": weights.network, "older": weights.target_weights, "normalizers": weights.normalizers}
            arrays |= {f"weights/{learner.number}/{name}": array for name, array in kept.items()}
        values = {"turn": self.turn, "names": list(self.names), "learners": [part.values for part in parts]}
        values["weights"] = [[int(weights.env_steps), int(weights.gradient_steps)] for weights in self.weights]
        reasons = [part.reason for part in parts if not part.exact]
        return Snapshot(arrays, values, not reasons, "; ".join(reasons[:1]))

    @snapshot_errors()
    def _restore(self, snapshot: Snapshot) -> None:
        self.turn, self.names = snapshot.values["turn"], tuple(snapshot.values["names"])
        self.shared.metrics[:] = snapshot.arrays["metrics"]
        for index, (env_steps, gradient_steps) in enumerate(snapshot.values["weights"]):
            network, target_weights, normalizers = (
                snapshot.arrays[f"weights/{index}/{name}"] for name in ("network", "older", "normalizers")
            )
            self.weights[index] = Weights(
                network, target_weights, normalizers, count_of(env_steps), np.int32(gradient_steps % TURNS)
            )

    def _close(self) -> None:
        for learner in self.learners:
            learner.envs.close()


@snapshot_errors()
def _part_of(snapshot: Snapshot, index: int) -> Snapshot:
    """What belongs to one actor-learner."""
    return Snapshot(
        snapshot.arrays_under(f"learners/{index}/"), snapshot.values["learners"][index], snapshot.exact, snapshot.reason
    )
