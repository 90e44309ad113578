"""ACER's networks for Discrete and Box actions."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from birl.algos import acer
from birl.config import ConfigError
from birl.nets.actor_q import empty_behaviour, make_actor_q
from birl.parts import ActionConfig, NetworkConfig

T, B = 3, 2
SEEN = spaces.Box(-1, 1, (4,), np.float32)
DISCRETE = spaces.Discrete(5)
BOX = spaces.Box(-1, 1, (2, 3), np.float32)
OBSERVATIONS = np.random.default_rng(0).standard_normal((T, B, 4)).astype(np.float32)
NEVER = np.zeros((T, B), bool)


def network_for(space: spaces.Space, **settings):
    network = NetworkConfig(hidden_sizes=(8,), core_size=6, **settings)
    return make_actor_q(np.random.default_rng(1), SEEN, space, network, ActionConfig())


@pytest.mark.parametrize("core", ["feedforward", "lstm", "gru"])
@pytest.mark.parametrize("share_trunk", [False, True])
def test_discrete_actions_have_a_value_each_and_box_actions_have_values_and_advantages(core, share_trunk):
    for space in (DISCRETE, BOX):
        network = network_for(space, core=core, share_trunk=share_trunk)
        distribution, found, memory = network(OBSERVATIONS, network.initial_memory(B), NEVER, None)
        assert jax.tree.map(np.shape, memory) == jax.tree.map(np.shape, network.initial_memory(B))
        actions = distribution.sample(jax.random.key(0))
        if space is DISCRETE:
            assert found.shape == distribution.logits.shape == (T, B, 5)
        else:
            assert distribution.mean.shape == (T, B, 6)
            assert network.values(found).shape == network.advantages(found, actions).shape == (T, B)


def test_the_advantage_depends_on_the_action_and_the_value_does_not():
    network = network_for(BOX)
    _, features, _ = network(OBSERVATIONS, (), NEVER, None)
    found = [np.asarray(network.advantages(features, jnp.full((T, B, 6), number))) for number in (0.0, 1.0)]
    assert np.abs(found[0] - found[1]).min() > 1e-3


def test_the_actors_trunk_affects_the_action_values_only_if_it_is_shared():
    for share_trunk in (False, True):
        network = network_for(DISCRETE, share_trunk=share_trunk)
        changed = eqx.tree_at(lambda n: n.actor.encoder.mlp.layers[0].bias, network, replace_fn=lambda bias: bias + 1.0)
        found = [np.asarray(n(OBSERVATIONS, (), NEVER, None)[1]) for n in (network, changed)]
        assert np.any(found[0] != found[1]) == share_trunk


def test_a_masked_action_has_probability_0():
    masks = np.ones((T, B, 5), bool)
    masks[..., 2] = False
    distribution, _, _ = network_for(DISCRETE)(OBSERVATIONS, (), NEVER, jnp.asarray(masks))
    probabilities = np.asarray(jax.nn.softmax(distribution.logits))
    assert (probabilities[..., 2] == 0).all()
    assert (probabilities[..., [0, 1, 3, 4]] > 0.1).all()


def test_initial_scales_are_0_01_policy_and_1_values():
    discrete, box = network_for(DISCRETE), network_for(BOX)
    for network in (discrete, box):
        np.testing.assert_allclose(np.linalg.norm(network.policy_head.linear.weight, axis=0), 0.01, rtol=1e-5)
    for head in (discrete.action_values_head, box.value_head, box.advantage_head.linear):
        np.testing.assert_allclose(np.linalg.norm(head.weight, axis=0), 1.0, rtol=1e-5)


@pytest.mark.parametrize("space", [DISCRETE, BOX], ids=["Discrete", "Box"])
def test_empty_behaviour_has_the_shapes_of_the_distributions_that_act_returns(space):
    network = network_for(space)
    action = jax.eval_shape(acer.act, (network, None), OBSERVATIONS[0], (), NEVER[0], None, np.zeros(2, np.uint32))
    kept = empty_behaviour(space, B)
    assert type(kept) is type(action.behaviour)
    assert [(x.shape, x.dtype) for x in jax.tree.leaves(kept)] == [
        (x.shape, x.dtype) for x in jax.tree.leaves(action.behaviour)
    ]


@pytest.mark.parametrize(
    "space", [spaces.MultiDiscrete([2, 3]), spaces.MultiBinary(2), spaces.Dict({"what": spaces.Discrete(2)})]
)
def test_other_spaces_are_refused(space):
    with pytest.raises(ConfigError, match=rf"action space {type(space).__name__}.* is neither Discrete nor a Box"):
        network_for(space)
