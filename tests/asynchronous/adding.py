"""An algorithm for actor-learners whose steps can be counted and told to go wrong.

The first eight weights are orders: the action that each actor-learner takes next. Each worker step
adds 1 to all the others.
"""

import jax.numpy as jnp
import numpy as np

from birl.algos import a3c
from birl.asynchronous.actor_learner import ActorLearner, Work
from birl.asynchronous.parameters import (
    Layouts,
    SharedParameters,
    State,
    Weights,
    WorkerResult,
    parameter_layout,
    state_to_shared,
)
from birl.config import EnvConfig, RunConfig
from birl.parts import ActorLearnerConfig
from birl.types import Action, Array, PyTree

ORDERS = 8


def act(
    policy: PyTree, observations: PyTree, memory: PyTree, resets: Array, action_masks: Array | None, key: Array | None
) -> Action:
    return Action(jnp.zeros(resets.shape, jnp.int32) + policy, memory)


def worker_step(weights: Weights, learner: ActorLearner, work: Work) -> WorkerResult:
    rollout = learner.collector.collect(weights.network[learner.number].astype(np.int32), learner.key)
    steps = weights.normalizers[learner.number] + 1  # worker steps of this actor-learner, in any process
    metrics = {"weights/version": float(weights.network[-1])} | learner.collector.episode_stats.metrics()
    env_steps = int(np.count_nonzero(rollout.valid))
    return WorkerResult(np.ones_like(weights.network), 1.0, env_steps, steps, learner.key + np.uint32(1), metrics)


def apply_gradients(shared: SharedParameters, result: WorkerResult, config: a3c.Config) -> None:
    shared.weights[ORDERS:] += result.gradients[ORDERS:]


def make_config(pool: str, env: EnvConfig, actor_learners: int, total_steps: int = 10**9) -> a3c.Config:
    learners = ActorLearnerConfig(pool, actor_learners)  # type: ignore[arg-type]
    return a3c.Config(env, RunConfig(total_steps=total_steps), learners, rollout_length=4)


def make_adding(config: a3c.Config, size: int = ORDERS + 1) -> tuple[Work, SharedParameters]:
    """The work of such actor-learners, and the parameters they begin with."""
    layouts = Layouts(parameter_layout(np.zeros(size, np.float32)), parameter_layout(np.zeros(1, np.float32)))
    work = Work(config, __name__, worker_step, apply_gradients, layouts, memory=())
    n = config.learners.actor_learners
    vector = np.zeros(size, np.float32)
    keys = np.arange(2 * n, dtype=np.uint32).reshape(n, 2)
    none = np.int64(0)
    normalizer: PyTree = np.zeros((n, 1), np.float32)
    return work, state_to_shared(State(vector, None, vector, normalizer, keys, none, none, none), layouts)
