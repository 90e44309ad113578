"""For the tests of actor-critics: a rollout of a policy that is not uniform, and its values."""

from collections.abc import Iterator
from functools import cache
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from birl.envs.make import make_envs
from birl.maths.statistics import Moments
from birl.nets.heads import SquashedHead
from birl.rollouts.source import Collector
from birl.types import Envs, Rollout


def first_weights(network: Any) -> Any:
    """The weights of the policy head."""
    head = network.policy_head
    return (head.head if isinstance(head, SquashedHead) else head).linear.weight


def changed(state: Any) -> Any:
    """A state as after some learning: a policy far from uniform, moments not the initial ones."""
    network = eqx.tree_at(first_weights, state.network, replace_fn=lambda weight: 50 * weight)
    moments = jax.tree.map(
        lambda m: Moments(m.count + 9, m.mean + 0.3, 2 * m.variance),
        state.normalizer.observations,
        is_leaf=lambda m: isinstance(m, Moments),
    )
    return state._replace(network=network, normalizer=state.normalizer._replace(observations=moments))


def recording_collector(envs: Envs, algorithm: Any, state: Any, length: int) -> Collector:
    """A collector that keeps with each action the distribution that it was drawn from."""
    observations, masks = envs.reset(0)
    memory = state.network.initial_memory(envs.num_envs)
    inputs = observations, memory, np.zeros(envs.num_envs, bool), masks, state.key
    behaviour = jax.eval_shape(algorithm.act, algorithm.policy(state), *inputs).behaviour
    empty = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), behaviour)
    return Collector(envs, algorithm.act, length, memory, behaviour=empty)


def behaviour_log_probs(rollout: Rollout) -> jax.Array:
    """[T, B] of the actions, by the distributions that they were drawn from."""
    return jax.tree.map(jnp.asarray, rollout.behaviour).log_prob(jnp.asarray(rollout.actions))


@cache
def collected(algorithm: Any, config: Any) -> tuple[Any, Rollout]:
    """A state and its second rollout, which starts in the middle of episodes."""
    with make_envs(config.env, config.run.seed) as envs:
        state = changed(algorithm.init(config, envs.observation_space, envs.action_space))
        collector = recording_collector(envs, algorithm, state, config.rollout_length)
        collector.start(config.run.seed)
        collector.collect(algorithm.policy(state), np.array([0, 1], np.uint32))
        return state, collector.collect(algorithm.policy(state), state.key)


def answers(state: Any, *observations: Any) -> Iterator[tuple[float, np.ndarray]]:
    """The value of each observation at an episode's start, and the policy's best action there."""
    for observation in observations:
        batch = jax.tree.map(lambda x: np.asarray(x)[None, None], observation)
        distribution, values, _ = jax.jit(lambda network, *inputs: network(*inputs))(
            state.network, batch, state.network.initial_memory(1), np.zeros((1, 1), bool), None
        )
        yield float(values[0, 0]), np.asarray(distribution.mode()[0, 0])


def sign(number: float) -> np.ndarray:
    return np.array([number], np.float32)


def assert_same_bits(left: Any, right: Any) -> None:
    assert jax.tree.structure(left) == jax.tree.structure(right)
    jax.tree.map(np.testing.assert_array_equal, left, right)
