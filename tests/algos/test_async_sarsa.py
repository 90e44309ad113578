"""Asynchronous one-step Sarsa: the next action in a target, and a chain with known Q."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from birl.algos.async_q import async_sarsa
from birl.config import EnvConfig, RunConfig
from birl.speed import prepare_jax
from tests.algos import chain
from tests.algos.worker_steps import CHAIN, assert_errors, learned_chain_values, steps_of, taken, values_at


@pytest.fixture(scope="module", autouse=True)
def compiled_programs_on_disk() -> None:
    prepare_jax()


SMALL = async_sarsa.Config(
    env=EnvConfig("birl/ProbeMemory-v0", num_envs=1),
    run=RunConfig(total_steps=1000),
    rollout_length=3,
    hidden_sizes=(8,),
    final_explorations=(0.5,),
    exploration_chances=(1.0,),
)
CASES = {
    "terminated": SMALL,
    "truncated": replace(SMALL, env=EnvConfig("CartPole-v1", num_envs=1, max_episode_steps=7)),
    "several environments": replace(SMALL, env=EnvConfig("CartPole-v1", num_envs=3, max_episode_steps=7)),
    "two steps": replace(SMALL, env=EnvConfig(chain.ID, num_envs=1), rollout_length=2),
}


def average(step, epsilon: float) -> np.ndarray:
    """[T, B] Σ_a π(a|s') Q(s', a; θ⁻) of the ε-greedy policy on θ."""
    values, target_weights = (
        values_at(network, step.rollout.observations)[1:] for network in (step.network, step.target_weights)
    )
    return (1 - epsilon) * taken(target_weights, values.argmax(-1)) + epsilon * target_weights.mean(-1)


@pytest.mark.parametrize("config", CASES.values(), ids=CASES)
def test_the_target_has_the_target_networks_value_of_the_next_action_also_if_the_next_step_takes_it(config):
    """(Mnih et al. 2016, section 4; Sutton & Barto 2018, eq. 6.7.) No gradient is applied."""
    steps = steps_of(async_sarsa, config, 30)
    for step, following in pairwise(steps):
        rollout = step.rollout
        next_actions = np.concatenate([rollout.actions[1:], following.rollout.actions[:1]])
        next_values = taken(values_at(step.target_weights, rollout.observations)[1:], next_actions)
        next_values = np.where(rollout.truncated, average(step, 0.5), next_values)
        assert_errors(step, rollout.rewards + config.discount * np.where(rollout.terminated, 0.0, next_values))
    going_on = [
        step for step in steps if (step.rollout.valid & ~step.rollout.terminated & ~step.rollout.truncated)[-1].any()
    ]
    assert len(going_on) >= 10
    assert any(step.rollout.truncated.any() for step in steps) == (config is not SMALL)


def test_on_a_chain_q_converges_to_that_of_the_policy_that_acts():
    config = async_sarsa.Config(
        env=EnvConfig(chain.ID, num_envs=4), run=RunConfig(total_steps=20_000), final_explorations=(0.5,), **CHAIN
    )
    values = learned_chain_values(async_sarsa, config)
    np.testing.assert_allclose(values, chain.chain_values(epsilon=0.5), atol=0.04)
    assert np.all(values.argmax(-1) == 1), "the policy whose values these are"
    assert np.abs(chain.chain_values(epsilon=0.0) - chain.chain_values(epsilon=0.5)).max() > 0.12
