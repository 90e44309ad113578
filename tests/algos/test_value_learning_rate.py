"""PPO and A2C with a learning rate of its own for the value network."""

import re
from dataclasses import replace
from itertools import product

import jax
import numpy as np
import pytest

from birl.cli.train_options import training_config
from birl.config import ConfigError
from birl.maths.schedules import linear
from birl.nets.models import make_actor_critic
from birl.registry import algorithm_named
from birl.types import PyTree
from tests.nets.remembering import make_remembering
from tests.test_contract import assert_same_bits, config_of, fresh_state, run
from tests.tiers import sooner

both = pytest.mark.parametrize("name", ["ppo", "a2c"])


def moved(before: PyTree, after: PyTree) -> set[bool]:
    """Whether the weights of each layer have changed."""
    pairs = zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True)
    return {bool(np.any(left != right)) for left, right in pairs if left.ndim == 2}


FALLING = linear(2e-3, 1e-4)
PAIRS = [("ppo", "feedforward", 1e-3), ("ppo", "gru", FALLING), ("a2c", "feedforward", FALLING), ("a2c", "gru", 1e-3)]


@pytest.mark.parametrize(
    ("name", "core", "rate"), sooner(PAIRS, product(["ppo", "a2c"], ["feedforward", "gru"], [1e-3, FALLING]))
)
def test_equal_to_the_learning_rate_it_changes_nothing_but_rounding(name, core, rate):
    plain = replace(config_of(name), learning_rate=rate, core=core, core_size=4)
    left, right = (run(name, config).updates for config in (plain, replace(plain, value_learning_rate=rate)))
    for one, other in zip(left, right, strict=True):
        for mine, theirs in zip(jax.tree.leaves(one.state), jax.tree.leaves(other.state), strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-7)  # they are two programs
        assert "optimizer/value_learning_rate" not in one.metrics
        assert other.metrics["optimizer/value_learning_rate"] == other.metrics["optimizer/learning_rate"]


@both
def test_each_half_moves_by_its_own_rate(name):
    still = replace(config_of(name), learning_rate=1e-3, value_learning_rate=0.0)
    before, after = fresh_state(name, still).network, run(name, still).updates[-1].state.network
    assert moved((before.critic, before.value_head), (after.critic, after.value_head)) == {False}
    assert moved((before.actor, before.policy_head), (after.actor, after.policy_head)) == {True}
    still = replace(config_of(name), learning_rate=0.0, value_learning_rate=1e-3)
    after = run(name, still).updates[-1].state.network
    assert moved((before.critic, before.value_head), (after.critic, after.value_head)) == {True}
    assert moved((before.actor, before.policy_head), (after.actor, after.policy_head)) == {False}


def test_one_step_of_the_value_is_as_long_as_its_rate_says():
    slow = replace(config_of("a2c"), learning_rate=1e-3, value_learning_rate=1e-3)
    fast = replace(slow, value_learning_rate=4e-3)
    start = fresh_state("a2c", slow).network
    one, four = (run("a2c", config, updates=1).updates[-1].state.network for config in (slow, fast))
    steps = [np.asarray(network.value_head.weight - start.value_head.weight) for network in (one, four)]
    np.testing.assert_allclose(steps[1], 4 * steps[0], rtol=1e-3, atol=1e-7)
    assert_same_bits(one.actor, four.actor)


@both
def test_with_a_shared_trunk_it_is_refused_with_a_remedy(name):
    config = replace(config_of(name), share_trunk=True, value_learning_rate=1e-3)
    message = "value_learning_rate 0.001 does not go with share_trunk True: policy and value have one trunk; "
    with pytest.raises(ConfigError, match=re.escape(message + "use learning_rate for both, or share_trunk False")):
        algorithm_named(name).validate(config)


@both
def test_with_a_network_of_the_users_own_it_is_refused_before_the_first_step(name):
    config = replace(config_of(name), value_learning_rate=1e-3)
    message = "value_learning_rate 0.001 needs a value network apart from the policy, and which parameters of "
    with pytest.raises(ConfigError, match=re.escape(message + "Remembering are the value's is not known; use None")):
        next(algorithm_named(name).train(config, make_network=make_remembering))
    shared = replace(config, share_trunk=True)

    def make_shared(rng, observation_space, action_space):
        return make_actor_critic(rng, observation_space, action_space, shared.network, shared.actions)

    with pytest.raises(ConfigError, match="this ActorCritic has one trunk for both; use None"):
        next(algorithm_named(name).train(config, make_network=make_shared))


@both
def test_a_network_of_the_users_own_that_is_birls_actor_critic_has_it(name):
    config = replace(config_of(name), value_learning_rate=1e-3)

    def make_network(rng, observation_space, action_space):
        return make_actor_critic(rng, observation_space, action_space, config.network, config.actions)

    update = next(algorithm_named(name).train(config, make_network=make_network))
    assert update.metrics["optimizer/value_learning_rate"] == np.float32(1e-3)


def test_on_the_command_line_it_is_a_number_a_schedule_or_none():
    words = ["--value-learning-rate", "linear:1e-3:0", "--policy-hidden-sizes", "32", "16", "--value-hidden-sizes"]
    config, _ = training_config("ppo", "CartPole-v1", words)
    assert config.value_learning_rate == linear(1e-3, 0.0)
    assert (config.network.policy_hidden_sizes, config.network.value_hidden_sizes) == ((32, 16), ())
    config, _ = training_config("ppo", "CartPole-v1", ["--value-learning-rate", "0.5"])
    assert config.value_learning_rate == 0.5
    config, _ = training_config("ppo", "CartPole-v1", ["--value-learning-rate", "None"])
    assert config.value_learning_rate is None
