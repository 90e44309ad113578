"""Pools run actor-learners. `train_actor_learners` is the training loop of all their algorithms."""

from collections.abc import Callable, Iterator
from multiprocessing.reduction import ForkingPickler
from types import TracebackType
from typing import Any, Protocol, Self

import gymnasium as gym

from birl.asynchronous.actor_learner import ApplyGradients, Work, WorkerStep, make_work
from birl.asynchronous.parameters import SharedParameters, State, shared_to_state, state_to_shared
from birl.asynchronous.processes import ProcessPool
from birl.asynchronous.replay_cycle import ReplayShare
from birl.asynchronous.serial import SerialPool
from birl.config import ConfigError
from birl.envs.make import spaces_of
from birl.envs.spaces import has_images
from birl.registry import require_compiled_supported
from birl.speed import prepare_jax
from birl.types import Metrics, Snapshot, Update


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
    from birl.asynchronous.ray import RayPool  # which needs an extra

    return RayPool(work, shared, snapshot)


def require_sendable(work: Work) -> None:
    """Raise ConfigError if the network cannot be sent to other processes."""
    try:
        ForkingPickler.dumps(work)  # as a pipe to a process does it
    except Exception as problem:  # PicklingError, or whatever an object raises that cannot be sent
        remedy = "keep functions out of the fields of its modules and call them by name, or use pool serial"
        wrong = f"the network cannot be sent to the processes of pool {work.config.learners.pool!r}: {problem}"
        raise ConfigError(f"{wrong}; {remedy}") from problem
