"""Actor-critics: shared and separate trunks, action values, and where gradients flow."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from birl.nets.models import make_actor_critic, make_actor_q_critic
from birl.parts import ActionConfig, NetworkConfig

T, B = 3, 2
BOX = spaces.Box(-1, 1, (4,), np.float32)
OBSERVATIONS = np.random.default_rng(0).standard_normal((T, B, 4)).astype(np.float32)
NEVER = np.zeros((T, B), bool)
# Little optimisation, to save compile time.
jit = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})


def network_for(action_space, core="feedforward", share_trunk=False, log_std=0.0):
    network = NetworkConfig(hidden_sizes=(8,), core=core, core_size=6, share_trunk=share_trunk)
    return make_actor_critic(np.random.default_rng(1), BOX, action_space, network, ActionConfig(log_std=log_std))


def test_initial_scales_are_root_2_hidden_0_01_policy_and_1_value():
    network = network_for(spaces.Discrete(3))
    for trunk in (network.actor, network.critic):
        np.testing.assert_allclose(np.linalg.norm(trunk.encoder.mlp.layers[0].weight, axis=1), np.sqrt(2), rtol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(network.policy_head.linear.weight, axis=0), 0.01, rtol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(network.value_head.weight, axis=0), 1.0, rtol=1e-5)


def test_the_trunks_of_actor_and_critic_start_with_different_weights():
    network = network_for(spaces.Discrete(3))
    assert not np.any(network.actor.encoder.mlp.layers[0].weight == network.critic.encoder.mlp.layers[0].weight)


@pytest.mark.parametrize("share_trunk", [False, True])
@pytest.mark.parametrize("core", ["feedforward", "lstm", "lnlstm", "gru"])
def test_outputs_have_time_and_environment_axes_for_every_core_and_trunk(core, share_trunk):
    network = network_for(spaces.Discrete(3), core, share_trunk)
    memory = network.initial_memory(B)
    distribution, values, after = jax.eval_shape(network, OBSERVATIONS, memory, NEVER, None)
    assert values.shape == (T, B)
    assert distribution.logits.shape == (T, B, 3)
    assert jax.tree.map(np.shape, after) == jax.tree.map(np.shape, memory)
    assert (network.critic is None) == share_trunk
    leaves = {"feedforward": 0, "lstm": 2, "lnlstm": 2, "gru": 1}[core]
    assert len(jax.tree.leaves(memory)) == leaves * (1 if share_trunk else 2)


def moved_by(network, loss):
    """The names of the parts whose parameters have a gradient."""
    gradients = jit(jax.grad(loss))(network)
    parts = {name: getattr(gradients, name) for name in ("actor", "critic", "policy_head", "value_head")}
    return {name for name, part in parts.items() if any(np.any(leaf) for leaf in jax.tree.leaves(part))}


def value_sum(network):
    return network(OBSERVATIONS, network.initial_memory(B), NEVER, None)[1].sum()


def mode_log_prob(network):
    distribution = network(OBSERVATIONS, network.initial_memory(B), NEVER, None)[0]
    return distribution.log_prob(jnp.zeros((T, B), jnp.int32)).sum()


def test_with_separate_trunks_policy_and_value_share_no_parameters():
    network = network_for(spaces.Discrete(3), "gru")
    assert moved_by(network, value_sum) == {"critic", "value_head"}
    assert moved_by(network, mode_log_prob) == {"actor", "policy_head"}


def test_with_a_shared_trunk_both_losses_have_a_gradient_in_it():
    network = network_for(spaces.Discrete(3), "gru", share_trunk=True)
    assert moved_by(network, value_sum) == {"actor", "value_head"}
    assert moved_by(network, mode_log_prob) == {"actor", "policy_head"}


def test_actor_and_critic_have_separate_memories():
    network = network_for(spaces.Discrete(3), "gru")
    call = jit(lambda network, memory: network(OBSERVATIONS, memory, NEVER, None))
    actor, critic = network.initial_memory(B)
    ones = np.ones((B, 6), np.float32)
    plain, value, _ = call(network, (actor, critic))
    changed_policy, same_value, _ = call(network, (ones, critic))
    same_policy, changed_value, _ = call(network, (actor, ones))
    np.testing.assert_array_equal(plain.logits, same_policy.logits)
    np.testing.assert_array_equal(value, same_value)
    assert np.all(value != changed_value)
    assert np.all(plain.logits != changed_policy.logits)


# Action values


def q_network_for(action_space, core="feedforward", share_trunk=False):
    network = NetworkConfig(hidden_sizes=(8,), core=core, core_size=6, share_trunk=share_trunk)
    return make_actor_q_critic(np.random.default_rng(1), BOX, action_space, network, ActionConfig())


def action_values(network, actions):
    _, features, _ = network(OBSERVATIONS, network.initial_memory(B), NEVER, None)
    return network.action_value_head(features, actions)


@pytest.mark.parametrize("share_trunk", [False, True])
@pytest.mark.parametrize("core", ["feedforward", "lstm"])
@pytest.mark.parametrize(
    ("space", "one", "other"),
    [
        (spaces.Discrete(3), 0, 2),
        (spaces.MultiDiscrete([2, 3]), [0, 2], [0, 1]),
        (spaces.MultiBinary(4), [0, 1, 1, 0], [0, 1, 1, 1]),
        (spaces.Box(-2, 3, (2, 3), np.float32), [0.0] * 6, [0.0] * 5 + [0.5]),
    ],
    ids=["Discrete", "MultiDiscrete", "MultiBinary", "Box"],
)
def test_an_action_value_depends_on_every_part_of_the_action_in_each_space(space, one, other, core, share_trunk):
    network = q_network_for(space, core, share_trunk)
    first, second = (
        jit(action_values)(network, np.broadcast_to(np.array(action), (T, B, *np.shape(action))))
        for action in (one, other)
    )
    assert first.shape == (T, B)
    assert np.all(first != second)
    assert (network.critic is None) == share_trunk


def test_the_action_selects_its_output_and_expected_averages_them_by_the_policy():
    network = q_network_for(spaces.Discrete(3))
    distribution, features, _ = network(OBSERVATIONS, (), NEVER, None)
    outputs = np.asarray(network.action_value_head.linear(features))
    actions = np.array([[0, 1], [2, 0], [1, 2]])
    np.testing.assert_allclose(
        action_values(network, actions), np.take_along_axis(outputs, actions[..., None], -1)[..., 0], rtol=1e-6
    )
    probabilities = np.asarray(jax.nn.softmax(distribution.logits))
    np.testing.assert_allclose(
        network.action_value_head.expected(features, distribution), (probabilities * outputs).sum(-1), rtol=1e-5
    )


def test_with_separate_trunks_policy_and_action_values_share_no_parameters():
    network = q_network_for(spaces.Box(-1, 1, (2,), np.float32), "gru")
    actions = np.zeros((T, B, 2), np.float32)
    gradients = jit(jax.grad(lambda network: action_values(network, actions).sum()))(network)
    parts = ("actor", "critic", "policy_head", "action_value_head")
    moved = {part for part in parts if any(np.any(leaf) for leaf in jax.tree.leaves(getattr(gradients, part)))}
    assert moved == {"critic", "action_value_head"}
