"""One actor-learner: its environments, its copy of the parameters, and the step that it repeats.

Every algorithm gives two functions. `worker_step` acts with a copy of the shared parameters and
returns a gradient. `apply_gradients` applies that gradient to the shared parameters, in place. A
pool repeats them for each actor-learner: in this process (pool.py), in processes (processes.py) or
on Ray (ray_pool.py).
"""

import importlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import gymnasium as gym
import jax
import numpy as np

from birl.asynchronous.parameters import (
    Layouts,
    SharedParameters,
    State,
    Weights,
    WorkerResult,
    combine_metrics,
    layouts_of,
    parameter_layout,
)
from birl.asynchronous.replay_learner import Cycle, ReplayShare
from birl.checks import require_config
from birl.envs.make import make_envs
from birl.errors import InexactResume, NonFiniteError, snapshot_errors
from birl.nets.allowance import spend
from birl.nets.optimizers import first_mean_square
from birl.rollouts.source import Collector
from birl.rollouts.state import begin
from birl.types import Act, Envs, Metrics, PyTree, Snapshot
from birl.workers.faults import Failure, Fault, FaultLog
from birl.workers.supervisor import child_seed


class ActorLearner(NamedTuple):
    """One actor-learner: its environments, how it steps them, and its replay."""

    number: int
    key: np.ndarray  # [2]
    envs: Envs
    collector: Collector
    cycle: Cycle | None  # None without a replay

    def snapshot(self) -> Snapshot:
        """Everything needed to continue from here, exactly."""
        snapshot = self.collector.snapshot()
        return snapshot if self.cycle is None else self.cycle.snapshot(snapshot)


WorkerStep = Callable[[Weights, ActorLearner, "Work"], WorkerResult]
ApplyGradients = Callable[[SharedParameters, WorkerResult, Any], None]  # the last argument is the Config


@dataclass(frozen=True)
class Work:
    """The work of actor-learners, wherever they run. It can be sent to other processes."""

    config: Any  # the algorithm's Config, which has actor-learners
    module: str  # the algorithm's module, which has `act`: a compiled function cannot be sent
    worker_step: WorkerStep
    apply_gradients: ApplyGradients
    layouts: Layouts
    memory: PyTree  # at the first step of an episode
    until_end: bool = False  # a worker step also ends with an episode
    replay: ReplayShare | None = None  # of each actor-learner

    @property
    def act(self) -> Act:
        return importlib.import_module(self.module).act


def initial_state(
    config: Any,
    kind: type,
    observation_space: gym.Space,
    action_space: gym.Space,
    make: Callable[[np.random.Generator, gym.Space, gym.Space], Any],
    has_target: bool,
) -> State:
    """A new State with a network made by `make`; with `has_target`, θ⁻ ← θ.

    `kind` is the algorithm's Config. Raises ConfigError if it does not support the action space.
    """
    require_config(config, kind)
    n = config.learners.actor_learners
    network, normalizer, keys = begin(config, kind, observation_space, action_space, make, key_shape=(n, 2))
    spend(n * sum(leaf.size for leaf in jax.tree.leaves(normalizer)))
    return State(
        network=network,
        target_weights=network if has_target else None,
        mean_squares=np.full(parameter_layout(network).size, first_mean_square(config.gradient.optimizer), np.float32),
        normalizer=jax.tree.map(lambda x: np.repeat(np.asarray(x)[None], n, axis=0), normalizer),
        key=keys,
        env_steps=np.int64(0),
        updates=np.int64(0),
        gradient_steps=np.int64(0),
    )


def make_work(
    config: Any,
    module: str,
    worker_step: WorkerStep,
    apply_gradients: ApplyGradients,
    state: State,
    until_end: bool = False,
    replay: ReplayShare | None = None,
) -> Work:
    """The work of an algorithm's actor-learners, for networks like the state's."""
    memory = state.network.initial_memory(config.env.num_envs)
    return Work(config, module, worker_step, apply_gradients, layouts_of(state), memory, until_end, replay)


def open_actor_learner(
    work: Work, number: int, key: np.ndarray, seed: int, snapshot: Snapshot | None = None
) -> ActorLearner:
    """A new actor-learner with its own environments; with `snapshot`, it continues there."""
    config: Any = work.config
    envs = make_envs(config.env, seed)
    try:
        behaviour = None if work.replay is None else work.replay.behaviour
        collector = Collector(envs, work.act, config.rollout_length, work.memory, work.until_end, behaviour)
        collector.start(seed, snapshot)
        cycle = None if work.replay is None else Cycle(work.replay, collector.empty_rollout())
        if cycle is not None and snapshot is not None:
            cycle.restore(snapshot, collector.fresh)
    except BaseException:
        envs.close()
        raise
    return ActorLearner(number, key, envs, collector, cycle)


def run_worker_step(learner: ActorLearner, weights: Weights, work: Work) -> tuple[WorkerResult, ActorLearner]:
    """The result of one worker step, and the actor-learner after it."""
    try:
        result = work.worker_step(weights, learner, work)
    except NonFiniteError as problem:
        raise NonFiniteError(f"actor-learner {learner.number}: {problem}") from problem
    return result, learner._replace(key=result.key)


def final_exploration(finals: tuple[float, ...], chances: tuple[float, ...], seed: int, number: int) -> float:
    """The final ε of actor-learner `number` (Mnih et al. 2016, section 5.1).

    It is random, but fixed by the run's seed.
    """
    rng = np.random.default_rng([seed, number])
    bounds = np.cumsum(chances)
    return finals[int(np.searchsorted(bounds[:-1], rng.random(), side="right"))]


class PoolRecord:
    """Metrics, episodes and replacements of actor-learners that run freely, kept by their pool."""

    def __init__(self, work: Work, shared: SharedParameters, where: str, snapshot: Snapshot | None) -> None:
        self.names: tuple[str, ...] = ()  # of the metrics
        self.ready = [False] * len(shared.keys)  # it has taken a step
        self.generations = [0] * len(shared.keys)  # how often each was replaced
        replays = "" if work.replay is None else " and with empty replays"
        reason = f"actor-learners in {where} run freely"
        self._reason = f"{reason}: they continue from the saved parameters, in new episodes{replays}"
        self._run_seed = work.config.run.seed
        self._first_step = int(shared.env_steps.sum())
        self._episodes = 0  # of actor-learners that were replaced
        if snapshot is not None:
            with snapshot_errors():
                self._episodes = int(snapshot.values["episodes"])
            warnings.warn(f"this resume is not exact: {self._reason}", InexactResume, stacklevel=4)

    def seed(self, number: int) -> int:
        """The seed of an actor-learner's environments; a replacement has another."""
        return child_seed(self._run_seed, number, self._first_step, self.generations[number])

    def metrics(self, shared: SharedParameters) -> Metrics:
        """The metrics of the actor-learners' last steps."""
        metrics = combine_metrics(shared.metrics, self.names)
        return metrics | {"episode/count": self._episodes + metrics["episode/count"]}

    def snapshot(self, shared: SharedParameters) -> Snapshot:
        """The number of episodes, which is all that is saved beside the parameters."""
        return Snapshot({}, {"episodes": self.metrics(shared)["episode/count"]}, exact=False, reason=self._reason)

    def replaced(
        self,
        number: int,
        shared: SharedParameters,
        failure: Failure,
        log: FaultLog,
        place: tuple[int, str],
        excused: bool,
    ) -> None:
        """Note the failure of an actor-learner. Raises an error if a new one would not help.

        `place` is its process and its machine. `excused`: it is not to blame for the failure.
        """
        pid, machine = place
        fault = Fault(f"actor-learner {number}", number, int(shared.env_steps.sum()), pid, failure.reason, machine)
        started = self.ready[number] or self.generations[number] > 0 or excused
        episodes = shared.take_episode_count(self.names, number)
        log.report(fault, failure, episodes > 0, started)
        self._episodes += episodes
        self.generations[number] += 1
