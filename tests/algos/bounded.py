"""For the tests of actors and critics: bounded probes, known networks, hand-made batches."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from typing import Any

import equinox as eqx
import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from birl.config import EnvConfig, RunConfig
from birl.envs.probes import NOTHING, ConstantReward, OneStep, Truncation
from birl.nets.critics import ActorCritics, critic_values
from birl.nets.heads import ActionBounds
from birl.rollouts.learning import Batch
from birl.rollouts.replay import Indices, Replay
from birl.types import Rollout, Transitions, Update

UNEVEN = spaces.Box(-2, 3, (1,), np.float32)  # no symmetry to hide behind
VECTOR = spaces.Box(-np.inf, np.inf, (3,), np.float32)


class BoundedConstant(ConstantReward):
    """One step, reward 1, then the end. Q = 1."""

    action_space = UNEVEN


class BoundedTruncation(Truncation):
    """Reward 1 each step, cut after five. Q = 1 / (1 - γ)."""

    action_space = UNEVEN


def sides(sign: float, action: np.ndarray) -> float:
    """Best near the one side of the box at +1, 2.5, and near the other at -1, -1.5."""
    return -((float(action[0]) - (2.5 if sign > 0 else -1.5)) ** 2)


def register_bounded_probes() -> None:
    """Make them known to Gymnasium; may be called again."""
    probes: dict[str, tuple[Callable[..., gym.Env], dict[str, Any]]] = {
        "tests/BoundedConstant-v0": (BoundedConstant, {}),
        "tests/BoundedTruncation-v0": (BoundedTruncation, {}),
        "tests/BoundedSides-v0": (OneStep, {"action_space": UNEVEN, "reward": sides}),
    }
    for env_id, (probe, kwargs) in probes.items():
        if env_id not in gym.registry:
            gym.register(env_id, entry_point=probe, kwargs=kwargs)


def probe_config(algorithm: Any, env_id: str, **settings: Any) -> Any:
    """Small settings with which these probes are learned in a second or two."""
    register_bounded_probes()
    small = algorithm.Config(
        env=EnvConfig(env_id, num_envs=4),
        run=RunConfig(total_steps=5000),
        rollout_length=16,
        update_ratio=0.5,
        learning_starts=200,
        batch_size=64,
        replay_size=5000,
        discount=0.9,
        target_rate=0.05,
        actor_learning_rate=3e-3,
        critic_learning_rate=1e-2,
        hidden_sizes=(32,),
    )
    return replace(small, **settings)


def learned(algorithm: Any, env_id: str, **settings: Any) -> Update:
    """The last update of a run on a probe."""
    with closing(algorithm.train(probe_config(algorithm, env_id, **settings))) as training:
        *_, last = training
    return last


def best_action(algorithm: Any, state: Any, observation: np.ndarray) -> float:
    """What the policy does there where it does not explore."""
    return float(
        algorithm.act(algorithm.policy(state), observation[None], (), np.zeros(1, bool), None, None).actions[0, 0]
    )


def values_at(state: Any, observation: np.ndarray = NOTHING, action: float = 0.5) -> list[float]:
    """Both critics' values of one action of the environment."""
    return critic_values(
        state.network.critics, observation[None], state.network.bounds.to_unit(np.array([[action]], np.float32))
    )[:, 0].tolist()


def critics_of(network: ActorCritics, *constants: float) -> Any:
    """The network's critics with these values, whatever the state and the action."""
    return tuple(
        eqx.tree_at(
            lambda c: (c.head.weight, c.head.bias), critic, (jnp.zeros_like(critic.head.weight), jnp.full(1, constant))
        )
        for critic, constant in zip(network.critics, constants, strict=True)
    )


def transitions(count: int, actions: int = 2, seed: int = 0) -> Transitions:
    """A batch of anything, some of it terminated, actions on [-1, 1]."""
    rng = np.random.default_rng(seed)
    observations, following = rng.normal(size=(2, count, 3)).astype(np.float32)
    return Transitions(
        observations=observations,
        actions=rng.uniform(-1, 1, (count, actions)).astype(np.float32),
        rewards=rng.normal(size=count).astype(np.float32),
        discounts=rng.choice([0.0, 0.81, 0.9], count).astype(np.float32),
        next_observations=following,
    )


def sampled(steps: Transitions, noise: Any = None) -> Batch:
    """These transitions as a replay gives them, all equally likely."""
    return Batch(steps, np.ones(steps.rewards.shape, np.float32), noise)


def rollout_of(length: int, actions: int = 2) -> Rollout:
    """Steps of one environment in which nothing happened."""
    nothing = np.zeros((length, 1), bool)
    return Rollout(
        observations=np.zeros((length + 1, 1, 3), np.float32),
        actions=np.zeros((length, 1, actions), np.float32),
        rewards=np.zeros((length, 1), np.float32),
        terminated=nothing,
        truncated=nothing,
        valid=~nothing,
        memory=(),
    )


def noise_of(*shape: int) -> jax.Array:
    """Standard normal numbers for batches of two-dimensional actions."""
    return jax.random.normal(jnp.array([0, 1], jnp.uint32), (*shape, 2))


def terminated_and_cut(discount: float) -> Transitions:
    """Three steps from a replay: it goes on, terminates, is truncated; the rewards are 1, 2, 4."""
    rollout = rollout_of(6)._replace(
        rewards=np.array([1, 2, 0, 4, 0, 0], np.float32)[:, None],
        terminated=np.array([0, 1, 0, 0, 0, 0], bool)[:, None],
        truncated=np.array([0, 0, 0, 1, 0, 0], bool)[:, None],
        valid=np.array([1, 1, 0, 1, 0, 1], bool)[:, None],
    )
    replay = Replay(6, rollout, discount)
    replay.add(rollout)
    return replay.gather(Indices(np.array([0, 1, 3]), np.zeros(3, int), np.ones(3, np.float32)))


def bare(actor: Callable[[Any], Any], *critics: Callable[[Any, Any], Any]) -> Any:
    """A network of plain functions."""
    return ActorCritics(actor, critics, ActionBounds((-2.0, -2.0), (3.0, 3.0)))


def parameters_equal(left: Any, right: Any) -> bool:
    """To the bit."""
    return all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True))
