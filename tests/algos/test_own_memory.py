"""Networks of the user's own that remember: what an algorithm asks of `core` it asks of them."""

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest

from birl.algos import a2c, a3c, async_q, dqn, ppo, trpo
from birl.config import ConfigError, EnvConfig, RunConfig
from birl.envs.make import make_envs
from birl.registry import algorithm_named
from birl.run.policy import make_policy
from tests.nets.remembering import COUNT_START, make_remembering, make_remembering_values

# With the row of a reset, every rollout of 5 begins an episode.
ENV = EnvConfig("CartPole-v1", num_envs=3, max_episode_steps=4)
COMMON = {"env": ENV, "run": RunConfig(total_steps=1000), "rollout_length": 5}
POOL = {"pool": "serial", "actor_learners": 2, "report_every": 20}
CASES = {
    "ppo": (ppo.Config(**COMMON, minibatches=3, epochs=1), make_remembering),
    "a2c": (a2c.Config(**COMMON), make_remembering),
    "a3c": (a3c.Config(**COMMON, **POOL), make_remembering),
    "async-q": (async_q.Config(**COMMON, **POOL), make_remembering_values),
    "dqn": (
        dqn.Config(**COMMON, learning_starts=0, update_ratio=1 / 15, batch_size=4, burn_in=1),
        make_remembering_values,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_recurrent_network_of_the_users_own_is_trained(name):
    config, make_network = CASES[name]
    *_, last = islice(algorithm_named(name).train(config, make_network=make_network), 4)
    assert np.isfinite(last.metrics["loss/value"])
    assert last.metrics["episode/count"] > 0
    assert np.any(last.state.network.inside.bias if name in ("async-q", "dqn") else last.state.network.bias)


def test_a_policy_begins_an_episode_with_the_initial_memory_of_the_parameters_it_has_now():
    config, make_network = CASES["ppo"]
    with make_envs(ENV, 0) as envs:
        state = ppo.init(config, envs.observation_space, envs.action_space, make_network)
        policy = make_policy(config, state, envs.observation_space, envs.action_space)
        changed = replace(state.network, start=np.float32(-3.0))
        policy.set_parameters(ppo.policy(state._replace(network=changed)))
    _, memory = policy.act(np.zeros(4, np.float32))
    assert (memory["count"].tolist(), memory["slots"].tolist()) == ([COUNT_START + 1], [[[-2.0, -2.0]] * 3])
    _, memory = policy.act(np.zeros(4, np.float32), memory)
    assert (memory["count"].tolist(), memory["row"].tolist()) == ([COUNT_START + 2], [[[5.0, 5.0]]])
    _, memory = policy.act_batch(np.zeros((2, 4), np.float32), policy.initial_memory(2), np.ones(2, bool))
    assert memory["slots"].tolist() == [[[-2.0, -2.0]] * 3] * 2


@pytest.mark.parametrize("algorithm", [ppo, trpo])
def test_minibatches_that_do_not_divide_the_environments_are_refused_as_with_core(algorithm):
    config = algorithm.Config(**COMMON | {"rollout_length": 4}, minibatches=2)
    with pytest.raises(ConfigError, match="num_envs 3 does not divide into 2 minibatches; use one of 1, 3"):
        next(algorithm.train(config, make_network=make_remembering))
    with pytest.raises(ConfigError, match="num_envs 3 does not divide into 2 minibatches; use one of 1, 3"):
        next(algorithm.train(replace(config, core="lstm")))


def test_trpo_thins_out_environments_where_there_is_memory():
    config = trpo.Config(**COMMON, minibatches=3, fisher_every=4)
    with pytest.raises(ConfigError, match="fisher_every 4 exceeds num_envs 3; use a number from 1 to 3"):
        next(trpo.train(config, make_network=make_remembering))


def test_dqn_draws_sequences_for_it_and_so_none_by_priority():
    config, make_network = CASES["dqn"]
    with pytest.raises(ConfigError, match="prioritized samples single steps, and a recurrent network learns from seq"):
        next(dqn.train(replace(config, prioritized=True, burn_in=0), make_network=make_network))
