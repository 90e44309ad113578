"""What actor-learners share, as networks (State) and as they write to it, flat (Board)."""

from typing import NamedTuple

import gymnasium as gym
import jax
import numpy as np

from birl.nets.normalize import Normalizer, initial_normalizer
from birl.nets.optimizers import first_mean_square
from birl.scale.cycle import ReplayShare
from birl.scale.flat import layout_of
from birl.scale.pool import Board, Job, Settings, Work, Write, new_board
from birl.types import Array, PyTree


class State(NamedTuple):
    """Everything that changes while n actor-learners learn P parameters; the same for all algorithms that have them."""

    network: PyTree  # θ
    older: PyTree  # θ⁻: the target network, or the average one; None without either
    squares: Array  # [P] g: the shared RMSProp's mean of squared gradients
    normalizer: Normalizer  # [n, ...] what each actor-learner has seen
    key: Array  # [n, 2]
    env_steps: np.int64  # T
    updates: np.int64  # reports: times that `train` has yielded
    gradient_steps: np.int64


def initial_state(config: Settings, observation_space: gym.Space, network: PyTree, older: PyTree, rng: np.random.Generator) -> State:
    """A State that begins with this network."""
    one = initial_normalizer(observation_space, config.env.num_envs, config.normalize_observations, config.normalize_rewards)
    return State(
        network=network,
        older=older,
        squares=np.full(layout_of(network).size, first_mean_square(config.optimizer), np.float32),
        normalizer=jax.tree.map(lambda x: np.repeat(np.asarray(x)[None], config.actor_learners, axis=0), one),
        key=rng.integers(2**32, size=(config.actor_learners, 2), dtype=np.uint32),
        env_steps=np.int64(0),
        updates=np.int64(0),
        gradient_steps=np.int64(0),
    )


def job_of(
    config: Settings,
    module: str,
    work: Work,
    update: Write,
    state: State,
    until_end: bool = False,
    replay: ReplayShare | None = None,
) -> Job:
    """What the actor-learners of this algorithm do, with such networks; with `until_end`, their turns end with an episode, too."""
    one_normalizer = jax.tree.map(lambda x: x[0], state.normalizer)
    memory = state.network.initial_memory(config.env.num_envs)
    return Job(config, module, work, update, layout_of(state.network), layout_of(one_normalizer), memory, until_end, replay)


def board_of(state: State, job: Job) -> Board:
    """The state as actor-learners share it."""
    older = np.zeros(0, np.float32) if state.older is None else job.network.vector(state.older)
    normalizers = job.normalizer.rows(state.normalizer, job.config.actor_learners)
    counts = int(state.env_steps), int(state.gradient_steps)
    return new_board(job.network.vector(state.network), np.asarray(state.squares), older, normalizers, np.asarray(state.key), *counts)


def state_of(board: Board, job: Job, updates: int) -> State:
    """The state that actor-learners have come to together."""
    return State(
        network=job.network.tree(board.weights),
        older=job.network.tree(board.older) if board.older.size else None,
        squares=board.squares,
        normalizer=job.normalizer.tree(board.normalizers),
        key=board.keys,
        env_steps=np.int64(board.env_steps.sum()),
        updates=np.int64(updates),
        gradient_steps=np.int64(board.gradient_steps.sum()),
    )
