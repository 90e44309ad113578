"""Asynchronous n-step Q-learning: returns by the explicit sums, and a chain whose Q is known."""

from dataclasses import replace

import numpy as np
import pytest

from birl.algos import async_q
from birl.algos.async_q import async_nstep_q
from birl.config import EnvConfig, RunConfig
from birl.speed import prepare_jax
from tests import oracle
from tests.algos import chain
from tests.algos.worker_steps import CHAIN, assert_errors, learned_chain_values, steps_of, values_at


@pytest.fixture(scope="module", autouse=True)
def compiled_programs_on_disk() -> None:
    prepare_jax()


SMALL = async_nstep_q.Config(
    env=EnvConfig("birl/ProbeMemory-v0", num_envs=1), run=RunConfig(total_steps=1000), hidden_sizes=(8,), discount=0.8
)
CASES = {
    "terminated": SMALL,
    "truncated": replace(SMALL, env=EnvConfig("CartPole-v1", num_envs=1, max_episode_steps=7)),
    "several environments": replace(SMALL, env=EnvConfig("CartPole-v1", num_envs=3, max_episode_steps=7)),
    "longer than an episode": replace(SMALL, rollout_length=20),
}


@pytest.mark.parametrize("config", CASES.values(), ids=CASES)
def test_the_target_is_the_sum_of_rewards_to_the_last_step_and_the_target_networks_best_value_there(config):
    """(Mnih et al. 2016, algorithm S2.)"""
    for step in steps_of(async_nstep_q, config, 12):
        rollout = step.rollout
        best = values_at(step.target_weights, rollout.observations)[1:].max(-1)
        flags = rollout.terminated, rollout.truncated, rollout.valid
        assert_errors(step, oracle.discounted_returns(rollout.rewards, *flags, best, config.discount))


def test_with_rollouts_of_one_step_it_is_one_step_q_learning_and_with_longer_ones_it_is_not():
    for length, same in ((1, True), (5, False)):
        env = EnvConfig("CartPole-v1", num_envs=2, max_episode_steps=9)
        run = RunConfig(total_steps=100)
        networks = []
        for algorithm in (async_nstep_q, async_q):
            config = algorithm.Config(
                env,
                run,
                pool="serial",
                actor_learners=2,
                report_every=100,
                rollout_length=length,
                target_every=20,
                hidden_sizes=(8,),
            )
            *_, last = algorithm.train(config)
            networks.append(values_at(last.state.network, np.eye(4, dtype=np.float32)[None]))
        assert np.array_equal(*networks) == same


CONFIG = async_nstep_q.Config(
    env=EnvConfig(chain.ID, num_envs=4), run=RunConfig(total_steps=12_000), final_explorations=(0.02,), **CHAIN
)


def test_on_a_chain_the_actions_of_the_best_policy_have_its_values():
    # Rewards are those of the actions taken, which are almost always the best policy's.
    learned = learned_chain_values(async_nstep_q, CONFIG)
    np.testing.assert_allclose(learned[:, 1], chain.chain_values(epsilon=0.0)[:, 1], atol=0.04)
    assert np.all(learned.argmax(-1) == 1)
