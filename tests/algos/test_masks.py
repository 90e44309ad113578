"""Nothing bootstraps from a forbidden action: at the true action values the error is 0."""

from dataclasses import replace
from functools import partial
from typing import Any

import equinox as eqx
import gymnasium as gym
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from birl.algos import acer, async_q, dqn, qac
from birl.algos.async_q import async_nstep_q, async_sarsa
from birl.config import EnvConfig, RunConfig
from birl.maths.distributions import Categorical, mask_logits
from birl.nets.layers import Linear
from birl.nets.models import make_actor_q_critic

TRUE_VALUE = 1 / (1 - 0.9)  # with a reward of 1 in each step and a discount of 0.9


class Alternating(gym.Env):
    """Reward 1 in each step, truncated after three steps.

    The first action is allowed at even times, the second at odd ones.
    """

    observation_space = spaces.Box(0, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.time = 0
        return self.observe(), self.mask()

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        assert self.mask()["action_mask"][action]
        self.time += 1
        return self.observe(), 1.0, False, self.time == 3, self.mask()

    def observe(self) -> np.ndarray:
        return (np.arange(2) == self.time % 2).astype(np.float32)

    def mask(self) -> dict[str, Any]:
        return {"action_mask": np.arange(2) == self.time % 2}


gym.register("tests/Alternating-v0", entry_point=Alternating, disable_env_checker=True)


class TrueValues(eqx.Module):
    """Q(s, ·) as it is, of a network that has memory or not."""

    table: Any
    width: int = eqx.field(static=True, default=0)

    def initial_memory(self, num_envs):
        return np.zeros((num_envs, self.width), np.float32) if self.width else ()

    def __call__(self, observations, memory, resets):
        return observations @ self.table, memory


class TrueActorQ(eqx.Module):
    """The action values beside a policy that prefers none of the allowed actions."""

    table: Any

    def initial_memory(self, num_envs):
        return ()

    def __call__(self, observations, memory, resets, action_masks):
        action_values = observations @ self.table
        return Categorical(mask_logits(jnp.zeros_like(action_values), action_masks)), action_values, memory


def true_actor_q_critic(table):
    """QAC's network, whose heads stand on the observation itself."""
    network = make_actor_q_critic(
        np.random.default_rng(0), Alternating.observation_space, Alternating.action_space, QAC.network, QAC.actions
    )
    head = network.action_value_head.linear
    return eqx.tree_at(lambda n: n.action_value_head.linear, network, Linear(table, jnp.zeros_like(head.bias)))


LEARNER = {
    "env": EnvConfig("tests/Alternating-v0", num_envs=2),
    "run": RunConfig(total_steps=60),
    "rollout_length": 5,  # an episode and its reset take four: both end in the middle of the other
    "discount": 0.9,
    "learning_rate": 0.0,
}
SHARED = LEARNER | {"pool": "serial", "actor_learners": 2, "report_every": 1}
DQN = dqn.Config(**LEARNER | {"run": RunConfig(total_steps=120)}, update_ratio=0.1, batch_size=16, learning_starts=0)
ACER = acer.Config(**LEARNER, learning_starts=0, replay_ratio=2.0, batch_size=8)
QAC = qac.Config(**LEARNER, critic_learning_rate=0.0, hidden_sizes=())
CASES = {
    "dqn": (dqn, DQN, TrueValues),
    "dqn, three steps": (dqn, replace(DQN, n_step=3), TrueValues),
    "dqn, sequences": (dqn, replace(DQN, core="lstm"), partial(TrueValues, width=1)),
    "acer": (acer, ACER, TrueActorQ),
    "acer, actor-learners": (acer, replace(ACER, pool="serial", actor_learners=2, report_every=1), TrueActorQ),
    "async-q": (async_q, async_q.Config(**SHARED), TrueValues),
    "async-nstep-q": (async_nstep_q, async_nstep_q.Config(**SHARED), TrueValues),
    "async-sarsa": (async_sarsa, async_sarsa.Config(**SHARED), TrueValues),
    "qac": (qac, QAC, true_actor_q_critic),
}


@pytest.mark.parametrize("forbidden_value", [-1000.0, 1000.0])
@pytest.mark.parametrize("name", CASES)
def test_at_the_true_action_values_there_is_no_error_whatever_a_forbidden_action_is_said_to_be_worth(
    name, forbidden_value
):
    algorithm, config, make = CASES[name]
    table = np.where(np.eye(2, dtype=bool), TRUE_VALUE, forbidden_value).astype(np.float32)  # [time, action]
    updates = list(algorithm.train(config, make_network=lambda *_: make(jnp.asarray(table))))
    found = [update.metrics["loss/value"] for update in updates if "loss/value" in update.metrics]
    assert len(found) > 5
    assert max(found) < 1e-6
