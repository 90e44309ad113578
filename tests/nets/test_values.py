"""Q networks: plain and dueling, with and without memory."""

import equinox as eqx
import jax
import numpy as np
import pytest
from gymnasium import spaces

from birl.config import ConfigError
from birl.nets.values import make_q_network, max_q_values, q_of_actions, rollout_values
from birl.parts import NetworkConfig, ValueConfig
from birl.types import Rollout

T, B, A = 3, 2, 5
BOX = spaces.Box(-1, 1, (4,), np.float32)
OBSERVATIONS = np.random.default_rng(0).standard_normal((T, B, 4)).astype(np.float32)
NEVER = np.zeros((T, B), bool)


def network_for(dueling: bool, core: str = "feedforward", kind: str = "mean"):
    network = NetworkConfig(hidden_sizes=(8,), activation="relu", core=core, core_size=6)
    return make_q_network(
        np.random.default_rng(1), BOX, spaces.Discrete(A), network, ValueConfig(kind, dueling=dueling)
    )


def values_of(network) -> np.ndarray:
    return np.asarray(network(OBSERVATIONS, network.initial_memory(B), NEVER)[0].mean())


@pytest.mark.parametrize("core", ["feedforward", "lstm", "gru"])
@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("kind", ["mean", "quantiles", "categorical"])
def test_there_is_a_value_for_each_action_and_a_memory_for_each_environment(kind, dueling, core):
    network = network_for(dueling, core, kind)
    values, memory = network(OBSERVATIONS, network.initial_memory(B), NEVER)
    assert values.mean().shape == (T, B, A)
    assert jax.tree.map(np.shape, memory) == jax.tree.map(np.shape, network.initial_memory(B))


def test_dueling_values_have_the_state_value_as_their_mean():
    """Wang et al. 2016, eq. 9: the mean over actions of V + A - mean A is V."""
    network = network_for(dueling=True)
    features, _ = network.trunk(OBSERVATIONS, (), NEVER)
    np.testing.assert_allclose(values_of(network).mean(-1), network.value_head(features)[..., 0], atol=1e-6)


@pytest.mark.parametrize(("kind", "each"), [("quantiles", 50), ("categorical", 51)])
def test_dueling_outputs_have_those_of_the_state_as_their_mean_each_of_them(kind, each):
    network = network_for(True, kind=kind)
    values, _ = network(OBSERVATIONS, (), NEVER)
    outputs = values.values if kind == "quantiles" else values.logits
    features, _ = network.trunk(OBSERVATIONS, (), NEVER)
    assert outputs.shape == (T, B, A, each)
    np.testing.assert_allclose(outputs.mean(-2), network.value_head(features), atol=1e-5)
    advantages = network.head(features).reshape(T, B, A, each)
    np.testing.assert_allclose(np.diff(outputs, axis=-2), np.diff(advantages, axis=-2), atol=1e-5)


def test_dueling_values_differ_as_the_advantages_do():
    network = network_for(dueling=True)
    advantages = network.head(network.trunk(OBSERVATIONS, (), NEVER)[0])
    np.testing.assert_allclose(np.diff(values_of(network), axis=-1), np.diff(advantages, axis=-1), atol=1e-6)
    assert np.ptp(values_of(network), axis=-1).min() > 0.1


def test_dueling_values_ignore_a_constant_in_the_advantages_but_not_in_the_state_value():
    network = network_for(dueling=True)
    shifted = eqx.tree_at(lambda n: n.head.bias, network, replace_fn=lambda bias: bias + 3.0)
    np.testing.assert_allclose(values_of(shifted), values_of(network), atol=1e-5)
    raised = eqx.tree_at(lambda n: n.value_head.bias, network, replace_fn=lambda bias: bias + 3.0)
    np.testing.assert_allclose(values_of(raised), values_of(network) + 3.0, atol=1e-5)
    plain = network_for(dueling=False)
    lifted = eqx.tree_at(lambda n: n.head.bias, plain, replace_fn=lambda bias: bias + 3.0)
    np.testing.assert_allclose(values_of(lifted), values_of(plain) + 3.0, atol=1e-5)


def test_initial_scales_are_root_2_hidden_and_1_heads():
    network = network_for(dueling=True)
    np.testing.assert_allclose(
        np.linalg.norm(network.trunk.encoder.mlp.layers[0].weight, axis=1), np.sqrt(2), rtol=1e-5
    )
    for head in (network.head, network.value_head):
        np.testing.assert_allclose(np.linalg.norm(head.weight, axis=0), 1.0, rtol=1e-5)
    assert network_for(dueling=False).value_head is None


def test_memory_is_reset_where_an_episode_begins():
    network = network_for(False, "gru")
    resets = np.array([[False, False], [True, False], [False, False]])
    values = network(OBSERVATIONS, network.initial_memory(B) + 0.5, resets)[0].mean()
    alone = network(OBSERVATIONS[1:, :1], network.initial_memory(1), NEVER[1:, :1])[0].mean()
    np.testing.assert_allclose(values[1:, :1], alone, atol=1e-6)
    on = network(OBSERVATIONS[1:, 1:], network.initial_memory(1), NEVER[1:, 1:])[0].mean()
    assert np.abs(values[1:, 1:] - on).max() > 1e-3


@pytest.mark.parametrize(
    "space", [spaces.Box(-1, 1, (2,), np.float32), spaces.MultiDiscrete([2, 3]), spaces.MultiBinary(2)]
)
def test_a_space_that_is_not_discrete_is_refused(space):
    with pytest.raises(ConfigError, match=rf"action space {type(space).__name__}.* is not Discrete"):
        make_q_network(np.random.default_rng(0), BOX, space, NetworkConfig())


@pytest.mark.parametrize("core", ["feedforward", "gru"])
def test_rollout_values_start_from_the_memory_and_reset_it_after_a_reset_step(core):
    network = network_for(dueling=False, core=core)
    valid = np.array([[True, False], [True, True]])
    memory = jax.tree.map(lambda m: m + 0.5, network.initial_memory(B))
    rollout = Rollout(OBSERVATIONS, None, None, None, None, valid, memory)
    resets = np.array([[False, False], [False, True], [False, False]])
    np.testing.assert_allclose(
        rollout_values(network, None, rollout), network(OBSERVATIONS, memory, resets)[0].mean(), atol=1e-6
    )


def test_max_q_values_are_those_of_allowed_actions_and_q_of_actions_of_given_ones():
    values = np.array([[1.0, 3.0, 2.0], [5.0, 4.0, 6.0]], np.float32)
    np.testing.assert_array_equal(q_of_actions(values, np.array([2, 0])), [2.0, 5.0])
    np.testing.assert_array_equal(max_q_values(values, None), [3.0, 6.0])
    masks = np.array([[True, False, True], [False, True, False]])
    np.testing.assert_array_equal(max_q_values(values, masks), [2.0, 4.0])
