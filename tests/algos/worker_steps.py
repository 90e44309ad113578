"""Worker steps of the asynchronous Q algorithms, with everything that went in and came out."""

from functools import cache, partial
from types import ModuleType
from typing import Any, NamedTuple

import jax
import numpy as np

from birl.algos import async_q
from birl.algos.async_q import async_nstep_q, async_sarsa
from birl.asynchronous.actor_learner import Work, make_work, open_actor_learner, run_worker_step
from birl.asynchronous.parameters import Weights, WorkerResult, state_to_shared
from birl.envs.make import spaces_of
from birl.maths.schedules import linear
from birl.nets.values import values_of
from birl.rollouts.source import Collector
from birl.types import Array, PyTree, Rollout
from tests.algos import chain

THREE = {"async_q": async_q, "async_sarsa": async_sarsa, "async_nstep_q": async_nstep_q}


class WatchedStep(NamedTuple):
    """A worker step: what went in, what happened, what came out."""

    work: Work
    weights: Weights
    key: np.ndarray
    rollout: Rollout
    result: WorkerResult

    @property
    def network(self) -> Any:
        return self.work.layouts.network.tree(self.weights.network)

    @property
    def target_weights(self) -> Any:
        return self.work.layouts.network.tree(self.weights.target_weights)


class Watched:
    """A collector that keeps what it has collected."""

    def __init__(self, collector: Collector) -> None:
        self.collector = collector
        self.episode_stats = collector.episode_stats

    def collect(self, policy: PyTree, key: Array) -> Rollout:
        self.rollout = self.collector.collect(policy, key)
        return self.rollout


def perturbed(network: Any, seed: int) -> Any:
    """A network with other parameters."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda p: np.asarray(p + 0.5 * rng.standard_normal(p.shape), np.float32), network)


@cache
def steps_of(algorithm: ModuleType, config: Any, count: int) -> list[WatchedStep]:
    """Worker steps whose gradients are not applied, with another target network and the final ε."""
    state = algorithm.init(config, *spaces_of(config.env))
    end = np.int32(config.run.total_steps)
    state = state._replace(
        network=perturbed(state.network, 1), target_weights=perturbed(state.network, 2), env_steps=end
    )
    work = make_work(config, async_q.__name__, algorithm.worker_step, algorithm.apply_gradients, state, until_end=True)
    shared = state_to_shared(state, work.layouts)
    steps = []
    learner = open_actor_learner(work, 0, shared.keys[0], config.run.seed)
    watched = Watched(learner.collector)
    learner = learner._replace(collector=watched)
    for _ in range(count):
        key = learner.key
        weights = shared.read()
        result, learner = run_worker_step(learner, weights, work)
        steps.append(WatchedStep(work, weights, key, watched.rollout, result))
    learner.envs.close()
    return steps


def gradients_of(step: WatchedStep, rollout: Rollout, target_weights: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
    """The gradient and metrics of this step with that rollout, or with another target network."""
    work, weights = step.work, step.weights
    if target_weights is not None:
        weights = weights._replace(target_weights=work.layouts.network.vector(target_weights))
    epsilon = np.float32(step.result.metrics["exploration/epsilon"])
    found, _, _, metrics = async_q.gradients(
        weights, np.int32(0), step.key, epsilon, rollout, work.layouts, work.config
    )
    return np.asarray(found), metrics


@partial(jax.jit, static_argnames="num_envs")
def _ask(network: Any, observations: Array, num_envs: int) -> Array:
    resets = np.zeros(observations.shape[:2], bool)
    return values_of(network, observations, network.initial_memory(num_envs), resets)[0].mean()


def values_at(network: Any, observations: np.ndarray) -> np.ndarray:
    """[T, B, A] Q of a network without memory."""
    return np.asarray(_ask(network, observations, observations.shape[1]), np.float64)


def taken(action_values: np.ndarray, actions: np.ndarray) -> np.ndarray:
    return np.take_along_axis(action_values, actions[..., None], axis=-1)[..., 0]


def assert_errors(step: WatchedStep, targets: np.ndarray) -> None:
    """The step's loss is the mean squared error of Q(s, a) to these targets, over valid rows."""
    values = taken(values_at(step.network, step.rollout.observations)[:-1], step.rollout.actions)
    errors = (targets - values)[step.rollout.valid]
    np.testing.assert_allclose(step.result.metrics["loss/value"], np.mean(errors**2), rtol=1e-4)
    np.testing.assert_allclose(step.result.metrics["value/td_error"], np.mean(np.abs(errors)), rtol=1e-4)


def learned_chain_values(algorithm: ModuleType, config: Any) -> np.ndarray:
    """[4, 2] Q of the chain's states after training."""
    *_, last = algorithm.train(config)
    return values_at(last.state.network, chain.OBSERVATIONS[None])[0]


CHAIN: dict[str, Any] = {
    "pool": "serial",
    "actor_learners": 2,
    "report_every": 5000,
    "target_every": 500,
    "discount": chain.DISCOUNT,
    "hidden_sizes": (),
    "learning_rate": linear(3e-2, 1e-4),
    "exploration_chances": (1.0,),
    "exploration_fraction": 0.01,
}
