"""Which leaves the policy depends on, found by tracing."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from birl.config import ConfigError
from birl.nets.dependence import leaves_used, require_own_critic, split_actor_critic
from birl.nets.models import make_actor_critic
from birl.parts import ActionConfig, NetworkConfig

NUMBERS = spaces.Box(-1, 1, (3,), np.float32)
OBSERVATIONS = np.zeros((5, 2, 3), np.float32)
SMALL = NetworkConfig(hidden_sizes=(4,), activation="relu", core_size=3)


def network_of(action_space=None, **settings):
    action_space = action_space or spaces.Discrete(2)
    network = replace(SMALL, **settings)
    return make_actor_critic(np.random.default_rng(0), NUMBERS, action_space, network, ActionConfig())


def paths(tree) -> set[str]:
    return {jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(tree)}


def test_a_leaf_is_used_if_the_result_depends_on_it_through_scan_or_jit():
    def function(tree):
        summed, _ = jax.lax.scan(lambda total, x: (total + x * tree["scale"], None), 0.0, tree["xs"])
        ignored = jnp.sum(tree["ignored"]) + tree["scale"]
        return jax.jit(lambda a, b: (a, b))(summed, ignored)[0]

    used = leaves_used(function, {"scale": jnp.float32(2.0), "xs": jnp.ones(3), "ignored": jnp.ones(2)})
    assert used == {"scale": True, "xs": True, "ignored": False}


@pytest.mark.parametrize("core", ["feedforward", "lstm", "lnlstm", "gru"])
def test_the_policy_depends_on_its_trunk_and_its_head(core):
    network = network_of(core=core)
    actor, critic = split_actor_critic(network, OBSERVATIONS)
    assert {path.split(".")[1] for path in paths(actor)} == {"actor", "policy_head"}
    assert {path.split(".")[1] for path in paths(critic)} == {"critic", "value_head"}
    assert paths(actor) | paths(critic) == paths(network)


def test_the_policy_depends_on_its_log_std():
    actor, _ = split_actor_critic(network_of(spaces.Box(-1, 1, (2,), np.float32)), OBSERVATIONS)
    assert ".policy_head.log_std" in paths(actor)


def test_a_shared_trunk_belongs_to_the_policy():
    _, critic = split_actor_critic(network_of(share_trunk=True), OBSERVATIONS)
    assert paths(critic) == {".value_head.weight", ".value_head.bias"}


def test_the_two_parts_combine_to_the_network_bit_for_bit():
    network = network_of(core="gru")
    again = eqx.combine(*split_actor_critic(network, OBSERVATIONS))
    assert jax.tree.structure(again) == jax.tree.structure(network)
    jax.tree.map(np.testing.assert_array_equal, again, network)


def test_the_critics_own_leaves_are_found_for_a_dict_space():
    space = spaces.Dict({"a": NUMBERS, "b": spaces.Discrete(3)})
    network = make_actor_critic(np.random.default_rng(0), space, spaces.Discrete(2), SMALL, ActionConfig())
    assert {path.split(".")[1] for path in paths(require_own_critic(network, space))} == {"critic", "value_head"}


class AllShared(eqx.Module):
    """The value is one of the policy's logits."""

    weight: jax.Array

    def initial_memory(self, num_envs):
        return ()

    def __call__(self, observations, memory, resets, action_masks):
        logits = observations @ self.weight
        return logits, logits[..., 0], memory


def test_a_critic_without_parameters_of_its_own_is_refused():
    with pytest.raises(
        ConfigError, match="the policy of AllShared uses all of its parameters; give its value function"
    ):
        require_own_critic(AllShared(jnp.ones((3, 2))), NUMBERS)
