"""Pools run actor-learners. `train_actor_learners` is the training loop of all their algorithms.

With SerialPool, actor-learners take turns in this process: the same seed gives the same run.
"""

from collections.abc import Callable, Iterator
from multiprocessing.reduction import ForkingPickler
from types import TracebackType
from typing import Any, Protocol, Self

import gymnasium as gym
import numpy as np

from birl.asynchronous.actor_learner import (
    ActorLearner,
    ApplyGradients,
    Work,
    WorkerStep,
    make_work,
    open_actor_learner,
    run_worker_step,
)
from birl.asynchronous.parameters import (
    SharedParameters,
    State,
    Weights,
    combine_metrics,
    shared_to_state,
    state_to_shared,
)
from birl.asynchronous.processes import ProcessPool
from birl.asynchronous.replay_learner import ReplayShare
from birl.config import ConfigError
from birl.envs.make import spaces_of
from birl.envs.spaces import has_images
from birl.errors import snapshot_errors
from birl.maths.count import WRAP_AT, count_of
from birl.registry import require_compiled_supported
from birl.speed import prepare_jax
from birl.types import Metrics, Snapshot, Update
from birl.workers.supervisor import child_seed


class Pool(Protocol):
    """A place to run actor-learners."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End all actor-learners."""

    def run(self, env_steps: int) -> SharedParameters:
        """Learn until so many environment steps are done in all; a copy of the parameters then."""

    def metrics(self) -> Metrics:
        """The metrics of the actor-learners' last steps."""

    def snapshot(self) -> Snapshot:
        """Everything needed to continue from the parameters that `run` returned."""


def train_actor_learners(
    config: Any,
    module: str,
    init: Callable[[gym.Space, gym.Space], Any],
    worker_step: WorkerStep,
    apply_gradients: ApplyGradients,
    state: State | None,
    snapshot: Snapshot | None,
    until_end: bool = False,
    replay: Callable[[gym.Space], ReplayShare] | None = None,
) -> Iterator[Update]:
    """Run actor-learners until `total_steps`, yielding every `report_every` steps.

    `module` is the algorithm's. `init` makes a State from observation and action space, `replay` a
    ReplayShare from the action space. With `state` and `snapshot`, training continues there.
    """
    require_compiled_supported(config)
    observation_space, action_space = spaces_of(config.env)
    prepare_jax(config, has_images(observation_space))
    if state is None:
        state = init(observation_space, action_space)
    share = None if replay is None else replay(action_space)
    work = make_work(config, module, worker_step, apply_gradients, state, until_end, share)
    with open_pool(work, state_to_shared(state, work.layouts), snapshot) as pool:
        while state.env_steps < config.run.total_steps:
            shared = pool.run(min(int(state.env_steps) + config.learners.report_every, config.run.total_steps))
            state = shared_to_state(shared, work.layouts, int(state.updates) + 1)
            yield Update(state, pool.metrics(), pool.snapshot, set_env_attribute=_refuse_attribute)


def _refuse_attribute(name: str, value: Any) -> None:
    """Raise ConfigError: each actor-learner has environments of its own."""
    wrong = f"attribute {name!r} cannot be set: actor-learners have environments of their own"
    raise ConfigError(f"{wrong}; use an algorithm without actor-learners, such as a2c, or change env.kwargs")


def open_pool(work: Work, shared: SharedParameters, snapshot: Snapshot | None) -> Pool:
    """The pool that the settings ask for. With `snapshot`, it continues from there."""
    if work.config.learners.pool == "serial":
        return SerialPool(work, shared, snapshot)
    if work.config.learners.pool == "processes":
        require_sendable(work)
        return ProcessPool(work, shared, snapshot)
    from birl.asynchronous.ray_pool import RayPool  # which needs an extra

    return RayPool(work, shared, snapshot)


def require_sendable(work: Work) -> None:
    """Raise ConfigError if the network cannot be sent to other processes."""
    try:
        ForkingPickler.dumps(work)  # as a pipe to a process does it
    except Exception as problem:  # PicklingError, or whatever an object raises that cannot be sent
        remedy = "keep functions out of the fields of its modules and call them by name, or use pool serial"
        wrong = f"the network cannot be sent to the processes of pool {work.config.learners.pool!r}: {problem}"
        raise ConfigError(f"{wrong}; {remedy}") from problem


class SerialPool:
    """Actor-learners that take steps in turn.

    Each acts with the weights as they were after its own last step. So its gradient is as old as
    it would be in n processes of the same speed: the n - 1 others have updated since.
    """

    def __init__(self, work: Work, shared: SharedParameters, snapshot: Snapshot | None) -> None:
        self.work = work
        self.shared = shared
        self.learners: list[ActorLearner] = []
        self.weights = [shared.read() for _ in range(work.config.learners.actor_learners)]
        self.next_learner = 0
        self.names: tuple[str, ...] = ()  # of the metrics
        self._snapshot = snapshot

    def __enter__(self) -> Self:
        try:
            for number in range(self.work.config.learners.actor_learners):
                snapshot = None if self._snapshot is None else _part_of(self._snapshot, number)
                seed = child_seed(self.work.config.run.seed, number)
                key = self.shared.keys[number].copy()
                self.learners.append(open_actor_learner(self.work, number, key, seed, snapshot))
        except BaseException:
            self._close()
            raise
        if self._snapshot is not None:
            self._restore(self._snapshot)
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def run(self, env_steps: int) -> SharedParameters:
        """Learn until so many environment steps are done in all; a copy of the parameters then."""
        while self.shared.env_steps.sum() < env_steps:
            number = self.next_learner
            result, self.learners[number] = run_worker_step(self.learners[number], self.weights[number], self.work)
            self.work.apply_gradients(self.shared, result, self.work.config)
            self.shared.write(number, result)
            self.weights[number] = self.shared.read()
            self.names = tuple(result.metrics)
            self.next_learner = (number + 1) % len(self.learners)
        return self.shared.copy()

    def metrics(self) -> Metrics:
        """The metrics of the actor-learners' last steps."""
        return combine_metrics(self.shared.metrics, self.names)

    def snapshot(self) -> Snapshot:
        """Everything needed to continue from the parameters that `run` returned."""
        arrays: dict[str, np.ndarray] = {"metrics": self.shared.metrics.copy()}
        parts = []
        for learner, weights in zip(self.learners, self.weights, strict=True):
            part = learner.snapshot()
            parts.append(part)
            arrays |= {f"learners/{learner.number}/{name}": array for name, array in part.arrays.items()}
            kept = {"network": weights.network, "older": weights.target_weights, "normalizers": weights.normalizers}
            arrays |= {f"weights/{learner.number}/{name}": array for name, array in kept.items()}
        counts = [[int(weights.env_steps), int(weights.gradient_steps)] for weights in self.weights]
        learners = [part.values for part in parts]
        values = {"turn": self.next_learner, "names": list(self.names), "learners": learners, "weights": counts}
        reasons = [part.reason for part in parts if not part.exact]
        return Snapshot(arrays, values, not reasons, "; ".join(reasons[:1]))

    @snapshot_errors()
    def _restore(self, snapshot: Snapshot) -> None:
        self.next_learner = snapshot.values["turn"]
        self.names = tuple(snapshot.values["names"])
        self.shared.metrics[:] = snapshot.arrays["metrics"]
        for number, (env_steps, gradient_steps) in enumerate(snapshot.values["weights"]):
            self.weights[number] = Weights(
                network=snapshot.arrays[f"weights/{number}/network"],
                target_weights=snapshot.arrays[f"weights/{number}/older"],
                normalizers=snapshot.arrays[f"weights/{number}/normalizers"],
                env_steps=count_of(env_steps),
                gradient_steps=np.int32(gradient_steps % WRAP_AT),
            )

    def _close(self) -> None:
        for learner in self.learners:
            learner.envs.close()


@snapshot_errors()
def _part_of(snapshot: Snapshot, number: int) -> Snapshot:
    """The snapshot of one actor-learner."""
    arrays = snapshot.arrays_under(f"learners/{number}/")
    return Snapshot(arrays, snapshot.values["learners"][number], snapshot.exact, snapshot.reason)
