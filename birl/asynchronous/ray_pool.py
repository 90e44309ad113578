"""Actor-learners in Ray actors, on the machines of a cluster.

This process has the parameters. It sends a copy with each call, and applies each gradient that it
gets back.
"""

import warnings
from contextlib import ExitStack
from typing import Self

import numpy as np

from birl.asynchronous.actor_learner import ActorLearner, Work, open_actor_learner, run_worker_step
from birl.asynchronous.parameters import SharedParameters, Weights, WorkerResult, combine_metrics
from birl.errors import InexactResume, snapshot_errors
from birl.maths.keys import numbered
from birl.speed import prepare_jax
from birl.types import Metrics, Snapshot
from birl.workers.faults import Failure, Fault, FaultLog
from birl.workers.ray_actors import Actors, connected, machine_died, replying
from birl.workers.supervisor import START_TIMEOUT, child_seed


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
        self.names: tuple[str, ...] = ()  # of the metrics
        self.actors = Actors(self.count)
        self._log = FaultLog(self.count)
        self._generations = [0] * self.count
        self._ready = [False] * self.count
        self._first_step = int(shared.env_steps.sum())
        self._episodes = 0  # of actor-learners that were replaced
        self._stack = ExitStack()
        if snapshot is not None:
            with snapshot_errors():
                self._episodes = int(snapshot.values["episodes"])
            reason = work.why_inexact("a cluster")
            warnings.warn(f"this resume is not exact: {reason}", InexactResume, stacklevel=3)

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
            self.names = tuple(answer.metrics)
            self._ready[number] = True
            self._call(number, self.work.config.env.step_timeout)
        return self.shared.copy()

    def metrics(self) -> Metrics:
        """The metrics of the actor-learners' last steps."""
        metrics = combine_metrics(self.shared.metrics, self.names)
        return metrics | {"episode/count": self._episodes + metrics["episode/count"]}

    def snapshot(self) -> Snapshot:
        """What is saved beside the parameters: only the number of episodes."""
        values = {"episodes": self.metrics()["episode/count"]}
        return Snapshot({}, values, exact=False, reason=self.work.why_inexact("a cluster"))

    def _start(self, number: int) -> None:
        generation = self._generations[number]
        seed = child_seed(self.work.config.run.seed, number, self._first_step, generation)
        key = numbered(self.shared.keys[number], generation)  # a replacement does not repeat old draws
        self.actors.start(number, LearnerActor, self.work, number, key, seed)
        self._call(number, START_TIMEOUT)

    def _call(self, number: int, seconds: float) -> None:
        weights = self.shared.read()
        self.actors.call(number, lambda actor: actor.step.remote(weights), seconds)

    def _replace(self, number: int, failure: Failure) -> None:
        """Start another actor. Weights, statistics and counts go to it with its first step."""
        pid, machine = self.actors.places[number]
        steps = int(self.shared.env_steps.sum())
        fault = Fault(f"actor-learner {number}", number, steps, pid, failure.reason, machine)
        started = self._ready[number] or self._generations[number] > 0 or machine_died(failure)
        episodes = self.shared.take_episode_count(self.names, number)
        self._log.report(fault, failure, episodes > 0, started)
        self._episodes += episodes
        self._generations[number] += 1
        self._start(number)
