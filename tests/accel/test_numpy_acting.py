"""An act function taken apart against the same function, compiled whole."""

import warnings
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from birl.accel import numpy_acting as stepwise
from birl.accel.numpy_acting import take_apart
from birl.maths.distributions import Categorical
from birl.maths.keys import step_keys
from birl.nets import values
from birl.nets.layers import ACTIVATIONS
from birl.nets.models import act, make_actor_critic
from birl.nets.normalize import initial_normalizer, update_observation_moments
from birl.nets.values import make_q_network
from birl.parts import ActionConfig, NetworkConfig, NormalizeConfig, ValueConfig
from birl.speed import compiled_acting
from birl.types import Action

ENVS, LENGTH = 5, 3
VECTOR = spaces.Box(-np.inf, np.inf, (4,), np.float32)
KEY = np.array([3, 5], np.uint32)
ACTIONS = {
    "discrete": spaces.Discrete(3),
    "box": spaces.Box(-1.0, 1.0, (2,), np.float32),
    "multi discrete": spaces.MultiDiscrete([2, 3]),
    "multi binary": spaces.MultiBinary(4),
}
OBSERVATIONS = {
    "vector": VECTOR,
    "discrete": spaces.Discrete(6),
    "multi discrete": spaces.MultiDiscrete([3, 2]),
    "bytes": spaces.Box(0, 255, (3,), np.uint8),
    "dict": spaces.Dict({"a": VECTOR, "b": spaces.Discrete(3)}),
}


def batch(space, seed=0):
    space.seed(seed)
    return jax.tree.map(lambda *rows: np.stack(rows), *[space.sample() for _ in range(ENVS)])


def make_policy(observations=VECTOR, actions=ACTIONS["discrete"], normalised=False, **settings):
    network = make_actor_critic(
        np.random.default_rng(0), observations, actions, NetworkConfig(**settings), ActionConfig()
    )
    # With the policy head's initial weights all actions would be equally likely.
    network = jax.tree.map(lambda x: x + 0.3 * np.sin(np.arange(x.size, dtype=np.float32)).reshape(x.shape), network)
    moments = initial_normalizer(observations, ENVS, NormalizeConfig(normalize_observations=normalised)).observations
    return network, update_observation_moments(
        moments, jax.tree.map(lambda o: jnp.asarray(o)[None], batch(observations, 1))
    )


def inputs_of(policy, observations=VECTOR, masks=None):
    return batch(observations), policy[0].initial_memory(ENVS), np.arange(ENVS) % 2 == 0, masks


def assert_same(first, second):
    assert jax.tree.structure(first) == jax.tree.structure(second)
    for one, other in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        np.testing.assert_allclose(one, other, rtol=2e-6, atol=2e-6)


def check(policy, inputs, act=act):
    """At every step the parts give what the whole gives; which steps differ from one another."""
    start = take_apart(act, policy, inputs, KEY, LENGTH)
    assert start is not None
    in_parts = start(policy, KEY)
    whole = compiled_acting(act, policy, LENGTH)(policy, KEY)
    found = [in_parts(t, *inputs) for t in range(LENGTH)]
    assert all(isinstance(leaf, np.ndarray) for action in found for leaf in jax.tree.leaves(action))
    for t, action in enumerate(found):
        assert_same(action, whole(t, *inputs))
    return found


@pytest.mark.parametrize("actions", ACTIONS.values(), ids=ACTIONS)
def test_actions_of_every_space_are_those_of_the_compiled_function(actions):
    policy = make_policy(actions=actions)
    assert isinstance(check(policy, inputs_of(policy))[0], Action)


@pytest.mark.parametrize("observations", OBSERVATIONS.values(), ids=OBSERVATIONS)
def test_observations_of_every_space_without_images(observations):
    policy = make_policy(observations)
    check(policy, inputs_of(policy, observations))


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_activation(activation):
    policy = make_policy(activation=activation)
    check(policy, inputs_of(policy))


def test_normalised_observations_masks_and_one_trunk():
    policy = make_policy(normalised=True, share_trunk=True)
    masks = np.array(
        [[True, False, False], [False, True, True], [True, True, True], [False, False, True], [True, False, True]]
    )
    for action in check(policy, inputs_of(policy, masks=masks)):
        assert masks[np.arange(ENVS), action.actions].all()


@pytest.mark.parametrize("core", ["gru", "lstm", "lnlstm"])
def test_memory_goes_in_and_comes_out_and_is_emptied_by_a_reset(core, monkeypatch):
    monkeypatch.setattr(stepwise, "MOST_OPERATIONS", 1000)
    policy = make_policy(core=core, core_size=6, hidden_sizes=(8,))
    observations, memory, resets, masks = inputs_of(policy)
    memory = jax.tree.map(lambda m: np.asarray(m) + 0.5, memory)
    check(policy, (observations, memory, resets, masks))


@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("kind", ["mean", "quantiles", "categorical"])
def test_actions_of_every_kind_of_values(kind, dueling):
    settings = ValueConfig(kind, num_quantiles=7, num_atoms=5, dueling=dueling)
    network = make_q_network(np.random.default_rng(0), VECTOR, ACTIONS["discrete"], NetworkConfig(), settings)
    masks = np.arange(3 * ENVS).reshape(ENVS, 3) % 4 != 0
    for epsilon in (0.0, 0.5):
        for action in check((network, None, np.float32(epsilon)), inputs_of((network, None), masks=masks), values.act):
            assert masks[np.arange(ENVS), action.actions].all()


def test_each_step_draws_anew_and_each_key_too():
    policy = make_policy(actions=ACTIONS["box"])
    inputs = inputs_of(policy)
    start = take_apart(act, policy, inputs, KEY, LENGTH)
    drawn = [start(policy, key)(t, *inputs).actions.tobytes() for key in (KEY, KEY + 1) for t in range(LENGTH)]
    assert len(set(drawn)) == 2 * LENGTH


def test_the_keys_of_steps_are_none_that_an_algorithm_splits_off():
    split = {
        tuple(row) for count in range(2, 20) for row in np.asarray(jax.random.split(jnp.asarray(KEY), count)).tolist()
    }
    steps = {tuple(row) for row in np.asarray(step_keys(jnp.asarray(KEY), 19)).tolist()}
    assert len(steps) == 19
    assert not split & steps


def test_the_parts_follow_the_policy_they_are_started_with():
    policy = make_policy()
    inputs = inputs_of(policy)
    start = take_apart(act, policy, inputs, KEY, LENGTH)
    other = jax.tree.map(lambda x: -x, policy)
    assert_same(start(other, KEY)(1, *inputs), compiled_acting(act, other, LENGTH)(other, KEY)(1, *inputs))
    assert (
        start(other, KEY)(1, *inputs).behaviour.logits.tolist()
        != start(policy, KEY)(1, *inputs).behaviour.logits.tolist()
    )


def test_a_large_network_an_image_and_an_unknown_operation_are_left_whole():
    image = spaces.Box(0, 255, (36, 36, 1), np.uint8)
    for space, policy in (
        (VECTOR, make_policy(hidden_sizes=(1024, 1024))),
        (image, make_policy(image, encoder="cnn_small")),
    ):
        assert take_apart(act, policy, inputs_of(policy, space), KEY, LENGTH) is None
    policy = make_policy()
    sorting = partial(_with_logits, lambda logits: jnp.sort(logits, axis=-1))
    assert take_apart(sorting, policy, inputs_of(policy), KEY, LENGTH) is None


def test_a_value_spread_over_an_axis_is_spread_where_numpy_would_not():
    """Column sums of [B, 1] spread to [B, 3]; spread again by a product; and a spread result."""
    policy = make_policy()
    spread = partial(_with_logits, lambda logits: jnp.broadcast_to(logits[:, :1], logits.shape) @ jnp.ones((3, 3)))
    check(policy, inputs_of(policy), spread)

    def constant(policy, observations, memory, resets, masks, key):
        actions = jnp.argmax(observations, axis=-1).astype(jnp.int32)
        return Action(actions, memory, jnp.broadcast_to(observations.sum(), actions.shape))

    check(policy, inputs_of(policy), constant)


@pytest.mark.parametrize("weight", [(3, 2), (ENVS, 3, 2)], ids=["one for all", "one each"])
def test_a_matrix_for_all_rows_and_one_for_each_of_them(weight):
    def product(policy, observations, memory, resets, masks, key):
        rows = observations[:, None, :3]
        return Action((rows @ policy)[:, 0], memory, rows.sum((1, 2)))

    policy = np.random.default_rng(0).standard_normal(weight, np.float32)
    check(policy, (batch(VECTOR), (), np.zeros(ENVS, bool), None), product)


def test_an_overflow_says_nothing_as_in_the_compiled_function():
    policy = make_policy()
    steep = partial(_with_logits, lambda logits: jnp.where(logits > 0, logits, jnp.exp(-1e4 * logits)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check(policy, inputs_of(policy), steep)


def test_a_module_of_the_users_own_is_taken_apart_too():
    class Own(eqx.Module):
        weight: jax.Array

        def __call__(self, observations, memory, resets, masks):
            return Categorical(jnp.sin(observations) @ self.weight), observations[..., 0], memory

    policy = Own(jnp.asarray(np.random.default_rng(0).standard_normal((4, 3)), jnp.float32)), None
    inputs = batch(VECTOR), (), np.zeros(ENVS, bool), None
    assert take_apart(act, policy, inputs, KEY, LENGTH) is None  # it has a sine, which NumPy is not used for
    whole = compiled_acting(act, policy, LENGTH)(policy, KEY)
    assert_same(whole(0, *inputs), act(policy, *inputs, np.asarray(step_keys(jnp.asarray(KEY), LENGTH))[0]))


def _with_logits(change, policy, observations, memory, resets, masks, key):
    """Actions of the observations' first three columns as logits, changed."""
    distribution = Categorical(change(observations[:, :3]))
    actions = distribution.sample(key)
    return Action(actions, memory, distribution.log_prob(actions))
