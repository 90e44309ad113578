"""What actor-learners share, as networks (State) and as they write to it, flat (Board)."""

from typing import NamedTuple

import gymnasium as gym
import jax
import numpy as np

from birl.asynchronous.actor_learner import (
    ApplyGradients,
    Settings,
    SharedParameters,
    Work,
    WorkerStep,
    new_shared_parameters,
)
from birl.asynchronous.flat import layout_of
from birl.asynchronous.replay_cycle import ReplayShare
from birl.nets.normalize import Normalizer, initial_normalizer
from birl.nets.optimizers import first_mean_square
from birl.types import Array, PyTree


class State(NamedTuple):
    """Everything that changes while n actor-learners learn P parameters; the same for all
    algorithms that have them.
    """

    network: PyTree  # θ
    target_weights: PyTree  # θ⁻: the target network, or the average one; None without either
    mean_squares: Array  # [P] g: the shared RMSProp's mean of squared gradients
    normalizer: Normalizer  # [n, ...] what each actor-learner has seen
    key: Array  # [n, 2]
    env_steps: np.int64  # T
    updates: np.int64  # reports: times that `train` has yielded
    gradient_steps: np.int64


def initial_state(
    config: Settings, observation_space: gym.Space, network: PyTree, target_weights: PyTree, rng: np.random.Generator
) -> State:
    """A State that begins with this network."""
    one = initial_normalizer(
        observation_space, config.env.num_envs, config.normalize_observations, config.normalize_rewards
    )
    return State(
        network=network,
        target_weights=target_weights,
        mean_squares=np.full(layout_of(network).size, first_mean_square(config.optimizer), np.float32),
        normalizer=jax.tree.map(lambda x: np.repeat(np.asarray(x)[None], config.actor_learners, axis=0), one),
        key=rng.integers(2**32, size=(config.actor_learners, 2), dtype=np.uint32),
        env_steps=np.int64(0),
        updates=np.int64(0),
        gradient_steps=np.int64(0),
    )


def make_work(
    config: Settings,
    module: str,
    worker_step: WorkerStep,
    update: ApplyGradients,
    state: State,
    until_end: bool = False,
    replay: ReplayShare | None = None,
) -> Work:
    """What the actor-learners of this algorithm do, with such networks; with `until_end`, their
    turns end with an episode, too.
    """
    one_normalizer = jax.tree.map(lambda x: x[0], state.normalizer)
    memory = state.network.initial_memory(config.env.num_envs)
    return Work(
        config,
        module,
        worker_step,
        update,
        layout_of(state.network),
        layout_of(one_normalizer),
        memory,
        until_end,
        replay,
    )


def shared_parameters_of(state: State, work: Work) -> SharedParameters:
    """The state as actor-learners share it."""
    target_weights = (
        np.zeros(0, np.float32) if state.target_weights is None else work.network.vector(state.target_weights)
    )
    normalizers = work.normalizer.rows(state.normalizer, work.config.actor_learners)
    counts = int(state.env_steps), int(state.gradient_steps)
    return new_shared_parameters(
        work.network.vector(state.network),
        np.asarray(state.mean_squares),
        target_weights,
        normalizers,
        np.asarray(state.key),
        *counts,
    )


def state_of(shared: SharedParameters, work: Work, updates: int) -> State:
    """The state that actor-learners have come to together."""
    return State(
        network=work.network.tree(shared.weights),
        target_weights=work.network.tree(shared.target_weights) if shared.target_weights.size else None,
        mean_squares=shared.mean_squares,
        normalizer=work.normalizer.tree(shared.normalizers),
        key=shared.keys,
        env_steps=np.int64(shared.env_steps.sum()),
        updates=np.int64(updates),
        gradient_steps=np.int64(shared.gradient_steps.sum()),
    )
