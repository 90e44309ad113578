"""Turns of an actor-learner, watched: what it began with, lived through and found."""

from functools import cache, partial
from types import ModuleType
from typing import Any, NamedTuple

import jax
import numpy as np

from birl.algos import async_nstep_q, async_q, async_sarsa
from birl.asynchronous.actor_learner import Result, Weights, Work, open_learner, run_worker_step
from birl.asynchronous.parameters import make_work, shared_parameters_of
from birl.envs.make import spaces_of
from birl.maths.schedules import linear
from birl.rollouts.collector import Collector
from birl.types import Array, PyTree, Rollout
from tests.algos import chain

THREE = (async_q, async_sarsa, async_nstep_q)


class Turn(NamedTuple):
    """What went in, what happened, what came out."""

    work: Work
    weights: Weights
    key: np.ndarray
    rollout: Rollout
    result: Result

    @property
    def network(self) -> Any:
        return self.work.network.tree(self.weights.network)

    @property
    def target_weights(self) -> Any:
        return self.work.network.tree(self.weights.target_weights)


class Watched:
    """A collector that keeps what it has collected."""

    def __init__(self, collect: Collector) -> None:
        self.collect, self.timed, self.metrics = collect, collect.timed, collect.metrics

    def __call__(self, policy: PyTree, key: Array) -> Rollout:
        self.rollout = self.collect(policy, key)
        return self.rollout


def shaken(network: Any, seed: int) -> Any:
    """A network with other parameters."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda p: np.asarray(p + 0.5 * rng.standard_normal(p.shape), np.float32), network)


@cache
def turns_of(algorithm: ModuleType, config: Any, count: int) -> list[Turn]:
    """Turns in which nothing is written to the shared parameters; the target network is another
    one. ε has come to its end.
    """
    state = algorithm.init(config, *spaces_of(config.env))
    steps = np.int32(config.run.total_steps)
    state = state._replace(network=shaken(state.network, 1), target_weights=shaken(state.network, 2), env_steps=steps)
    work = make_work(config, algorithm.__name__, algorithm.worker_step, algorithm.update, state, until_end=True)
    shared, turns = shared_parameters_of(state, work), []
    learner = open_learner(work, 0, shared.keys[0], config.run.seed)
    learner = learner._replace(collect=Watched(learner.collect))
    for _ in range(count):
        key, weights = learner.key, shared.read()
        result, learner = run_worker_step(learner, weights, work)
        watched = learner.collect
        turns.append(Turn(work, weights, key, watched.rollout, result))
    learner.envs.close()
    return turns


def gradients_of(
    algorithm: ModuleType, turn: Turn, rollout: Rollout, target_weights: Any = None
) -> tuple[np.ndarray, dict[str, Any]]:
    """What this turn would have found with that rollout, or with another target network."""
    weights = (
        turn.weights
        if target_weights is None
        else turn.weights._replace(target_weights=turn.work.network.vector(target_weights))
    )
    epsilon = [np.float32(turn.result.metrics["exploration/epsilon"])] if algorithm is async_sarsa else []
    layouts = turn.work.network, turn.work.normalizer
    found, _, _, metrics = algorithm.gradients(
        weights, np.int32(0), turn.key, *epsilon, rollout, layouts, turn.work.config
    )
    return np.asarray(found), metrics


@partial(jax.jit, static_argnames="num_envs")
def _ask(network: Any, observations: Array, num_envs: int) -> Array:
    resets = np.zeros(observations.shape[:2], bool)
    return network(observations, network.initial_memory(num_envs), resets)[0]


def values_at(network: Any, observations: np.ndarray) -> np.ndarray:
    """[T, B, A] Q of a network without memory."""
    return np.asarray(_ask(network, observations, observations.shape[1]), np.float64)


def taken(action_values: np.ndarray, actions: np.ndarray) -> np.ndarray:
    return np.take_along_axis(action_values, actions[..., None], axis=-1)[..., 0]


def assert_errors(turn: Turn, targets: np.ndarray) -> None:
    """The turn's loss is the mean square of how far Q(s, a) is from these targets, over the valid
    steps.
    """
    errors = (targets - taken(values_at(turn.network, turn.rollout.observations)[:-1], turn.rollout.actions))[
        turn.rollout.valid
    ]
    np.testing.assert_allclose(turn.result.metrics["loss/value"], np.mean(errors**2), rtol=1e-4)
    np.testing.assert_allclose(turn.result.metrics["value/td_error"], np.mean(np.abs(errors)), rtol=1e-4)


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
