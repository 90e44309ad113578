"""Dense layers of the policy and of the value that differ."""

import re
from dataclasses import replace

import jax
import numpy as np
import pytest
from gymnasium import spaces

from birl import ALGORITHMS
from birl.config import ConfigError
from birl.registry import algorithm_named
from birl.settings import places_of
from tests.test_contract import assert_same_bits, config_of, fresh_state, run, spaces_of

APART = ("reinforce", "qac", "a2c", "ppo", "trpo", "a3c", "acer", "ddpg", "td3", "sac")
WITH_A_SHARED_TRUNK = ("reinforce", "qac", "a2c", "ppo", "a3c", "acer")
every = pytest.mark.parametrize("name", APART)


def dense_of(encoder_or_critic):
    """The widths of the dense layers."""
    mlp = encoder_or_critic.mlp
    return tuple(layer.weight.shape[1] for layer in mlp.layers)


def widths_of(network):
    """The widths of the policy's dense layers, and of the value's or of each critic's."""
    if "critics" in vars(network):
        return dense_of(network.actor.encoder), {dense_of(critic) for critic in network.critics}
    if "bounds" in vars(network):
        return dense_of(network.actor.encoder), {dense_of(network.critic)}
    return dense_of(network.actor.encoder), {dense_of(network.critic.encoder)}


def test_every_algorithm_with_a_policy_and_a_value_of_their_own_has_both_settings():
    fields = {name: set(places_of(algorithm_named(name).Config)) for name in ALGORITHMS}
    assert {name for name in ALGORITHMS if "policy_hidden_sizes" in fields[name]} == set(APART)
    assert {name for name in ALGORITHMS if "value_hidden_sizes" in fields[name]} == set(APART)
    assert {name for name in ALGORITHMS if "share_trunk" in fields[name]} == set(WITH_A_SHARED_TRUNK)


@every
@pytest.mark.parametrize(
    ("policy_sizes", "value_sizes", "expected"),
    [
        (None, None, ((8,), (8,))),
        ((5, 4), None, ((5, 4), (8,))),
        (None, (6,), ((8,), (6,))),
        ((), (6, 3), ((), (6, 3))),
    ],
)
def test_each_network_has_the_layers_of_its_own_setting(name, policy_sizes, value_sizes, expected):
    config = replace(config_of(name), policy_hidden_sizes=policy_sizes, value_hidden_sizes=value_sizes)
    policy, values = widths_of(fresh_state(name, config).network)
    assert (policy, values) == (expected[0], {expected[1]})


@every
def test_sizes_that_differ_are_trained(name):
    config = replace(config_of(name), policy_hidden_sizes=(5,), value_hidden_sizes=(7, 6))
    last = run(name, config, updates=3).updates[-1]
    assert np.isfinite(last.metrics["loss/value"])
    start = fresh_state(name, config)
    for before, after in zip(jax.tree.leaves(start.network), jax.tree.leaves(last.state.network), strict=True):
        assert np.any(before != after) or not np.any(before)


@every
def test_sizes_that_are_those_of_both_change_nothing(name):
    config = replace(config_of(name), policy_hidden_sizes=(8,), value_hidden_sizes=(8,))
    left, right = (run(name, given, updates=2).updates[-1].state for given in (config, config_of(name)))
    assert_same_bits(left, right)


@pytest.mark.parametrize("name", ["ppo", "acer", "qac"])
def test_a_core_follows_each(name):
    config = replace(config_of(name), policy_hidden_sizes=(5,), value_hidden_sizes=(7,), core="gru", core_size=3)
    network = fresh_state(name, config).network
    assert (network.actor.core.inputs.shape, network.critic.core.inputs.shape) == ((5, 9), (7, 9))
    assert np.isfinite(run(name, config, updates=2).updates[-1].metrics["loss/value"])


@pytest.mark.parametrize("name", ["acer", "qac"])
def test_heads_that_take_a_box_action_have_the_values_width(name):
    config = replace(config_of(name), policy_hidden_sizes=(5,), value_hidden_sizes=(7,))
    observation_space, _ = spaces_of(config)
    network = algorithm_named(name).init(config, observation_space, spaces.Box(-1, 1, (2,), np.float32)).network
    head = network.advantage_head if name == "acer" else network.action_value_head
    assert network.policy_head.linear.weight.shape == (5, 2)
    assert head.joint.weight.shape == (7 + 2, 7)


@pytest.mark.parametrize("name", WITH_A_SHARED_TRUNK)
@pytest.mark.parametrize("field", ["policy_hidden_sizes", "value_hidden_sizes"])
def test_with_a_shared_trunk_they_are_refused_with_a_remedy(name, field):
    config = replace(config_of(name), share_trunk=True, **{field: (5,)})
    message = f"{field} (5,) does not go with share_trunk True: policy and value have one trunk; use hidden_sizes"
    with pytest.raises(ConfigError, match=re.escape(message)):
        algorithm_named(name).validate(config)


@every
@pytest.mark.parametrize("field", ["policy_hidden_sizes", "value_hidden_sizes"])
def test_a_layer_without_units_is_refused(name, field):
    with pytest.raises(ConfigError, match=rf"^{field} \(8, 0\) must each be at least 1"):
        algorithm_named(name).validate(replace(config_of(name), **{field: (8, 0)}))


def test_reinforce_without_a_baseline_has_no_value_to_give_layers_to():
    config = replace(config_of("reinforce"), baseline=False, value_hidden_sizes=(5,))
    message = r"value_hidden_sizes \(5,\) does not go with baseline False: no value is learned; use None, or baseline"
    with pytest.raises(ConfigError, match=message):
        algorithm_named("reinforce").validate(config)
