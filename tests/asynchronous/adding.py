"""An algorithm for actor-learners whose turns can be counted and told to go wrong.

The first eight weights are orders: the action that each actor-learner takes next. Each turn adds 1
to all the others.
"""

import jax.numpy as jnp
import numpy as np

from birl.algos import a3c
from birl.asynchronous.actor_learner import ActorLearner, Result, SharedParameters, Weights, Work, new_shared_parameters
from birl.asynchronous.flat import layout_of
from birl.config import EnvConfig, RunConfig
from birl.types import Action, Array, PyTree

ORDERS = 8


def act(
    policy: PyTree, observations: PyTree, memory: PyTree, resets: Array, action_masks: Array | None, key: Array | None
) -> Action:
    return Action(jnp.zeros(resets.shape, jnp.int32) + policy, memory)


def worker_step(weights: Weights, learner: ActorLearner, work: Work) -> Result:
    rollout = learner.collect(weights.network[learner.number].astype(np.int32), learner.key)
    seen = weights.normalizers[learner.number] + 1  # turns of this actor-learner, whatever process it was in
    metrics = {"weights/version": float(weights.network[-1])} | learner.collect.metrics()
    return Result(
        np.ones_like(weights.network),
        1.0,
        int(np.count_nonzero(rollout.valid)),
        seen,
        learner.key + np.uint32(1),
        metrics,
    )


def update(shared: SharedParameters, result: Result, config: a3c.Config) -> None:
    shared.weights[ORDERS:] += result.gradients[ORDERS:]


def make_config(pool: str, env: EnvConfig, actor_learners: int, total_steps: int = 10**9) -> a3c.Config:
    return a3c.Config(env, RunConfig(total_steps=total_steps), pool, actor_learners, rollout_length=4)  # type: ignore[arg-type]


def make_job(config: a3c.Config, size: int = ORDERS + 1) -> tuple[Work, SharedParameters]:
    """A job and the board it begins with."""
    work = Work(
        config,
        __name__,
        worker_step,
        update,
        layout_of(np.zeros(size, np.float32)),
        layout_of(np.zeros(1, np.float32)),
        (),
    )
    n, vector = config.actor_learners, np.zeros(size, np.float32)
    keys = np.arange(2 * n, dtype=np.uint32).reshape(n, 2)
    return work, new_shared_parameters(vector, vector, vector[:0], np.zeros((n, 1), np.float32), keys, 0, 0)
