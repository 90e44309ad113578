"""Actor-learners in Ray actors, on the machines of a cluster.

This process has the parameters. It sends a copy with each call, and applies each gradient that it
gets back.
"""

from contextlib import ExitStack
from typing import Self

import numpy as np

from birl.asynchronous.actor_learner import ActorLearner, PoolRecord, Work, open_actor_learner, run_worker_step
from birl.asynchronous.parameters import SharedParameters, Weights, WorkerResult
from birl.maths.keys import numbered
from birl.speed import prepare_jax
from birl.types import Metrics, Snapshot
from birl.workers.faults import Failure, Fault, FaultLog
from birl.workers.ray_actors import Actors, connected, machine_died, replying
from birl.workers.supervisor import START_TIMEOUT


class LearnerActor:
    """An actor-learner in a Ray actor."""

    def __init__(self, work: Work, number: int, key: np.ndarray, seed: int) -> None:
        self.work = work
        self.number = number
        self.key = key
        self.seed = seed
        self.learner: ActorLearner | None = None

    @replying
    def step(self, weights: Weights) -> WorkerResult:
        """One worker step with these weights. The first one makes the environments."""
        if self.learner is None:
            prepare_jax()
            self.learner = open_actor_learner(self.work, self.number, self.key, self.seed)
        result, self.learner = run_worker_step(self.learner, weights, self.work)
        return result


class RayPool:
    """Actor-learners in Ray actors, whose gradients are applied here as they arrive."""

    def __init__(self, work: Work, shared: SharedParameters, snapshot: Snapshot | None) -> None:
        self.work = work
        self.shared = shared
        self.count = len(shared.keys)
        self.actors = Actors(self.count)
        self._log = FaultLog(self.count)
        self._record = PoolRecord(work, shared, "a cluster", snapshot)
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(connected(self.work.config.env.ray_address, self.count))
            stack.callback(self.actors.close)
            for number in range(self.count):
                self._start(number)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def faults(self) -> list[Fault]:
        """Every replacement of an actor-learner so far."""
        return self._log.faults

    def run(self, env_steps: int) -> SharedParameters:
        """Learn until so many environment steps are done in all; a copy of the parameters then."""
        while self.shared.env_steps.sum() < env_steps:
            number, answer = self.actors.receive()
            if isinstance(answer, Failure):
                self._replace(number, answer)
                continue
            self.work.apply_gradients(self.shared, answer, self.work.config)
            self.shared.write(number, answer)
            self._record.names = tuple(answer.metrics)
            self._record.ready[number] = True
            self._call(number, self.work.config.env.step_timeout)
        return self.shared.copy()

    def metrics(self) -> Metrics:
        """The metrics of the actor-learners' last steps."""
        return self._record.metrics(self.shared)

    def snapshot(self) -> Snapshot:
        """The number of episodes, which is all that is saved beside the parameters."""
        return self._record.snapshot(self.shared)

    def _start(self, number: int) -> None:
        key = numbered(self.shared.keys[number], self._record.generations[number])  # not to repeat old draws
        self.actors.start(number, LearnerActor, self.work, number, key, self._record.seed(number))
        self._call(number, START_TIMEOUT)

    def _call(self, number: int, seconds: float) -> None:
        weights = self.shared.read()
        self.actors.call(number, lambda actor: actor.step.remote(weights), seconds)

    def _replace(self, number: int, failure: Failure) -> None:
        """Start another actor. Weights, statistics and counts go to it with its first step."""
        place = self.actors.places[number]
        self._record.replaced(number, self.shared, failure, self._log, place, machine_died(failure))
        self._start(number)
