"""Actor-critics: heads for every action space, trunks shared and apart, and where gradients go."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from birl.algos import ppo
from birl.config import ConfigError
from birl.maths.distributions import Bernoulli, Categorical, DiagonalGaussian, Joint, MultiCategorical
from birl.nets.models import make_actor_critic, make_actor_q_critic, make_policy_head

T, B = 3, 2
BOX = spaces.Box(-1, 1, (4,), np.float32)
OBSERVATIONS = np.random.default_rng(0).standard_normal((T, B, 4)).astype(np.float32)
NEVER = np.zeros((T, B), bool)
# Columns: aim (2), gear (1), rest/0 (2), rest/1 (2).
HYBRID = spaces.Dict(
    {
        "gear": spaces.Discrete(3, start=-1),
        "aim": spaces.Box(-2, 3, (2,), np.float32),
        "rest": spaces.Tuple((spaces.MultiBinary(2), spaces.MultiDiscrete([2, 3]))),
    }
)
# Hardly optimised: else the tests would mostly compile.
jit = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})


def network_for(action_space, core="feedforward", share_trunk=False, log_std=0.0):
    settings = ppo.Config(hidden_sizes=(8,), core=core, core_size=6, share_trunk=share_trunk, log_std=log_std)
    return make_actor_critic(np.random.default_rng(1), BOX, action_space, settings)


def test_initial_scales_are_root_2_hidden_0_01_policy_and_1_value():
    network = network_for(spaces.Discrete(3))
    np.testing.assert_allclose(
        np.linalg.norm(network.actor.encoder.mlp.layers[0].weight, axis=1), np.sqrt(2), rtol=1e-5
    )
    np.testing.assert_allclose(
        np.linalg.norm(network.critic.encoder.mlp.layers[0].weight, axis=1), np.sqrt(2), rtol=1e-5
    )
    np.testing.assert_allclose(np.linalg.norm(network.policy_head.linear.weight, axis=0), 0.01, rtol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(network.value_head.weight, axis=0), 1.0, rtol=1e-5)


def test_the_trunks_of_actor_and_critic_start_different():
    network = network_for(spaces.Discrete(3))
    assert not np.any(network.actor.encoder.mlp.layers[0].weight == network.critic.encoder.mlp.layers[0].weight)


@pytest.mark.parametrize(
    ("space", "kind", "outputs", "action_shape"),
    [
        (spaces.Discrete(3), Categorical, 3, ()),
        (spaces.MultiDiscrete([2, 3]), MultiCategorical, 5, (2,)),
        (spaces.MultiBinary(4), Bernoulli, 4, (4,)),
        (spaces.Box(-2, 3, (2,), np.float32), DiagonalGaussian, 2, (2,)),
        (spaces.Box(-2, 3, (2, 3), np.float32), DiagonalGaussian, 6, (6,)),
        (HYBRID, Joint, 2 + 3 + 2 + 5, (2 + 1 + 2 + 2,)),
    ],
)
def test_each_action_space_gets_its_distribution(space, kind, outputs, action_shape):
    head = make_policy_head(np.random.default_rng(0), space, 5, log_std=-0.5)
    distribution = jit(lambda head, features: head(features, None))(head, np.ones((T, B, 5), np.float32))
    assert type(distribution) is kind
    assert head.linear.weight.shape == (5, outputs)
    assert jax.eval_shape(lambda d: d.mode(), distribution).shape == (T, B, *action_shape)
    if kind is DiagonalGaussian:
        np.testing.assert_array_equal(distribution.log_std, np.full((T, B, outputs), np.float32(-0.5)))


def test_an_action_space_without_a_head_is_refused_by_name():
    with pytest.raises(ConfigError, match=r"action space Text.* is not supported; use Discrete"):
        make_policy_head(np.random.default_rng(0), spaces.Text(3), 5, 0.0)


def test_a_masked_action_has_probability_0_and_the_others_share_the_rest():
    head = make_policy_head(np.random.default_rng(0), spaces.Discrete(3), 5, 0.0)
    masks = np.array([[[True, False, True], [True, True, True]]])
    logits = jit(lambda head, features, masks: head(features, masks))(
        head, np.zeros((1, 2, 5), np.float32), masks
    ).logits
    np.testing.assert_allclose(jax.nn.softmax(logits), [[[0.5, 0, 0.5], [1 / 3] * 3]], atol=1e-6)


def test_a_multi_discrete_mask_is_all_parts_side_by_side():
    head = make_policy_head(np.random.default_rng(0), spaces.MultiDiscrete([2, 3]), 5, 0.0)
    masks = np.array([[[False, True, True, False, False]]])
    mode = jit(lambda head, features, masks: head(features, masks).mode())(head, np.zeros((1, 1, 5), np.float32), masks)
    np.testing.assert_array_equal(mode, [[[1, 0]]])


def test_the_parts_of_a_tree_are_cut_from_one_layer_in_the_order_of_the_columns():
    head = make_policy_head(np.random.default_rng(0), HYBRID, 5, log_std=-0.5)
    features = np.random.default_rng(1).normal(size=(T, B, 5)).astype(np.float32)
    outputs = features @ np.asarray(head.linear.weight)
    aim, gear, bits, choices = jit(lambda head, features: head(features, None))(head, features).parts
    np.testing.assert_allclose(
        np.concatenate([aim.mean, gear.logits, bits.logits, choices.logits], -1), outputs, atol=1e-6
    )
    assert (gear.sizes, choices.sizes) == ((3,), (2, 3))
    np.testing.assert_array_equal(aim.log_std, np.full((T, B, 2), -0.5, np.float32))
    assert head.log_std.shape == (2,)


def test_the_mask_of_a_tree_forbids_choices_of_its_discrete_parts_and_touches_nothing_else():
    head = make_policy_head(np.random.default_rng(0), HYBRID, 5, 0.0)
    features, masks = np.ones((1, 1, 5), np.float32), np.array([[[False, False, True, True, False, False, True, True]]])
    call = jit(lambda head, features, masks: head(features, masks))
    (aim, gear, bits, choices), free = (
        call(head, features, masks).parts,
        call(head, features, np.ones_like(masks)).parts,
    )
    np.testing.assert_allclose(jax.nn.softmax(gear.logits)[0, 0], [0, 0, 1])
    np.testing.assert_allclose(jax.nn.softmax(choices.logits[..., :2])[0, 0], [1, 0])
    assert (jax.nn.softmax(choices.logits[..., 2:])[0, 0] > 0).tolist() == [False, True, True]
    np.testing.assert_array_equal(aim.mean, free[0].mean)
    np.testing.assert_array_equal(bits.logits, free[2].logits)


def test_a_tree_without_numbers_has_no_deviation_to_learn():
    assert make_policy_head(np.random.default_rng(0), spaces.Tuple((spaces.Discrete(2),)), 5, 0.0).log_std is None


@pytest.mark.parametrize("share_trunk", [False, True])
@pytest.mark.parametrize("core", ["feedforward", "lstm", "lnlstm", "gru"])
def test_values_and_distributions_cover_time_and_environments_for_every_core_and_trunk(core, share_trunk):
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
    """Names of the parts whose parameters the gradient of a loss reaches."""
    gradients = jit(jax.grad(loss))(network)
    parts = {name: getattr(gradients, name) for name in ("actor", "critic", "policy_head", "value_head")}
    return {name for name, part in parts.items() if any(np.any(leaf) for leaf in jax.tree.leaves(part))}


def value_sum(network):
    return network(OBSERVATIONS, network.initial_memory(B), NEVER, None)[1].sum()


def mode_log_prob(network):
    distribution = network(OBSERVATIONS, network.initial_memory(B), NEVER, None)[0]
    return distribution.log_prob(jnp.zeros((T, B), jnp.int32)).sum()


def test_with_trunks_apart_policy_and_value_share_no_parameters():
    network = network_for(spaces.Discrete(3), "gru")
    assert moved_by(network, value_sum) == {"critic", "value_head"}
    assert moved_by(network, mode_log_prob) == {"actor", "policy_head"}


def test_with_a_shared_trunk_both_losses_reach_it():
    network = network_for(spaces.Discrete(3), "gru", share_trunk=True)
    assert moved_by(network, value_sum) == {"actor", "value_head"}
    assert moved_by(network, mode_log_prob) == {"actor", "policy_head"}


def test_the_critic_has_a_memory_of_its_own():
    network = network_for(spaces.Discrete(3), "gru")
    call = jit(lambda network, memory: network(OBSERVATIONS, memory, NEVER, None))
    (actor, critic), ones = network.initial_memory(B), np.ones((B, 6), np.float32)
    plain, value, _ = call(network, (actor, critic))
    changed_policy, same_value, _ = call(network, (ones, critic))
    same_policy, changed_value, _ = call(network, (actor, ones))
    np.testing.assert_array_equal(plain.logits, same_policy.logits)
    np.testing.assert_array_equal(value, same_value)
    assert np.all(value != changed_value)
    assert np.all(plain.logits != changed_policy.logits)


# Action values


def q_network_for(action_space, core="feedforward", share_trunk=False):
    settings = ppo.Config(hidden_sizes=(8,), core=core, core_size=6, share_trunk=share_trunk)
    return make_actor_q_critic(np.random.default_rng(1), BOX, action_space, settings)


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


def test_an_output_for_each_action_is_picked_by_it_and_averaged_by_the_policy():
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


def test_with_trunks_apart_policy_and_action_values_share_no_parameters():
    network, actions = q_network_for(spaces.Box(-1, 1, (2,), np.float32), "gru"), np.zeros((T, B, 2), np.float32)
    gradients = jit(jax.grad(lambda network: action_values(network, actions).sum()))(network)
    parts = ("actor", "critic", "policy_head", "action_value_head")
    assert {part for part in parts if any(np.any(leaf) for leaf in jax.tree.leaves(getattr(gradients, part)))} == {
        "critic",
        "action_value_head",
    }
