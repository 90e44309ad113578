"""Asynchronous one-step Q-learning: targets by hand, a chain with known Q, and processes."""

from dataclasses import replace

import numpy as np
import pytest

from birl.algos import async_q
from birl.config import EnvConfig, RunConfig
from birl.speed import prepare_jax
from tests.algos import chain
from tests.algos.worker_steps import CHAIN, assert_errors, learned_chain_values, steps_of, values_at


@pytest.fixture(scope="module", autouse=True)
def compiled_programs_on_disk() -> None:
    prepare_jax()


SMALL = async_q.Config(
    env=EnvConfig("birl/ProbeMemory-v0", num_envs=1), run=RunConfig(total_steps=1000), hidden_sizes=(8,)
)
CASES = {
    "terminated": SMALL,
    "truncated": replace(SMALL, env=EnvConfig("CartPole-v1", num_envs=1, max_episode_steps=7)),
    "several environments": replace(SMALL, env=EnvConfig("CartPole-v1", num_envs=3, max_episode_steps=7)),
}


@pytest.mark.parametrize("config", CASES.values(), ids=CASES)
def test_the_target_is_the_reward_and_the_target_networks_best_value_after_it_unless_the_episode_terminated(config):
    """(Mnih et al. 2016, algorithm 1.)"""
    steps = steps_of(async_q, config, 12)
    for step in steps:
        best = values_at(step.target_weights, step.rollout.observations)[1:].max(-1)
        assert_errors(step, step.rollout.rewards + config.discount * np.where(step.rollout.terminated, 0.0, best))
    flag = "terminated" if config is SMALL else "truncated"
    assert any(getattr(step.rollout, flag).any() for step in steps)


def test_on_a_chain_q_converges_to_that_of_the_best_policy_whatever_is_done():
    config = async_q.Config(
        env=EnvConfig(chain.ID, num_envs=4), run=RunConfig(total_steps=15_000), final_explorations=(0.8,), **CHAIN
    )
    np.testing.assert_allclose(learned_chain_values(async_q, config), chain.chain_values(epsilon=0.0), atol=0.04)


def test_two_actor_learners_in_processes_learn_together_and_end():
    config = async_q.Config(
        env=EnvConfig("birl/ProbeObservationAction-v0", num_envs=4), run=RunConfig(total_steps=3000), actor_learners=2
    )
    *_, last = async_q.train(replace(config, learning_rate=3e-3, hidden_sizes=(16,)))
    assert int(last.state.env_steps) >= 3000
    np.testing.assert_allclose(
        values_at(last.state.network, np.array([[[-1.0], [1.0]]], np.float32))[0], [[1, -1], [-1, 1]], atol=0.3
    )
