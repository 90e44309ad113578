"""Policy heads: a distribution for every action space, masks, and the parts of Dict and Tuple."""

from functools import partial

import equinox as eqx
import jax
import numpy as np
import pytest
from gymnasium import spaces

from birl.config import ConfigError
from birl.maths.distributions import Bernoulli, Categorical, DiagonalGaussian, Joint, MultiCategorical
from birl.nets.heads import make_policy_head

T, B = 3, 2
# Columns: aim (2), gear (1), rest/0 (2), rest/1 (2).
HYBRID = spaces.Dict(
    {
        "gear": spaces.Discrete(3, start=-1),
        "aim": spaces.Box(-2, 3, (2,), np.float32),
        "rest": spaces.Tuple((spaces.MultiBinary(2), spaces.MultiDiscrete([2, 3]))),
    }
)
# Little optimisation, to save compile time.
jit = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})


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


def test_a_masked_action_has_probability_0_and_the_others_add_up_to_1():
    head = make_policy_head(np.random.default_rng(0), spaces.Discrete(3), 5, 0.0)
    masks = np.array([[[True, False, True], [True, True, True]]])
    call = jit(lambda head, features, masks: head(features, masks))
    logits = call(head, np.zeros((1, 2, 5), np.float32), masks).logits
    np.testing.assert_allclose(jax.nn.softmax(logits), [[[0.5, 0, 0.5], [1 / 3] * 3]], atol=1e-6)


def test_a_multi_discrete_mask_is_the_masks_of_all_choices_concatenated():
    head = make_policy_head(np.random.default_rng(0), spaces.MultiDiscrete([2, 3]), 5, 0.0)
    masks = np.array([[[False, True, True, False, False]]])
    mode = jit(lambda head, features, masks: head(features, masks).mode())(head, np.zeros((1, 1, 5), np.float32), masks)
    np.testing.assert_array_equal(mode, [[[1, 0]]])


def test_the_parts_of_a_dict_are_split_from_one_layer_in_the_order_of_the_columns():
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


def test_the_mask_of_a_dict_applies_only_to_its_discrete_parts():
    head = make_policy_head(np.random.default_rng(0), HYBRID, 5, 0.0)
    features = np.ones((1, 1, 5), np.float32)
    masks = np.array([[[False, False, True, True, False, False, True, True]]])
    call = jit(lambda head, features, masks: head(features, masks))
    aim, gear, bits, choices = call(head, features, masks).parts
    free = call(head, features, np.ones_like(masks)).parts
    np.testing.assert_allclose(jax.nn.softmax(gear.logits)[0, 0], [0, 0, 1])
    np.testing.assert_allclose(jax.nn.softmax(choices.logits[..., :2])[0, 0], [1, 0])
    assert (jax.nn.softmax(choices.logits[..., 2:])[0, 0] > 0).tolist() == [False, True, True]
    np.testing.assert_array_equal(aim.mean, free[0].mean)
    np.testing.assert_array_equal(bits.logits, free[2].logits)


def test_a_tuple_without_a_box_has_no_log_std():
    assert make_policy_head(np.random.default_rng(0), spaces.Tuple((spaces.Discrete(2),)), 5, 0.0).log_std is None


@pytest.mark.parametrize(("space", "widths"), [(spaces.Box(-2, 3, (2, 3), np.float32), 6), (HYBRID, 2)])
def test_a_state_dependent_std_is_log_std_in_every_state_at_first_and_then_depends_on_the_state(space, widths):
    head = make_policy_head(np.random.default_rng(0), space, 5, -0.5, state_dependent_std=True)
    features = np.random.default_rng(1).normal(size=(T, B, 5)).astype(np.float32)

    def log_stds(head):
        distribution = head(features, None)
        return distribution.parts[0].log_std if isinstance(distribution, Joint) else distribution.log_std

    np.testing.assert_array_equal(log_stds(head), np.full((T, B, widths), -0.5, np.float32))
    plain = make_policy_head(np.random.default_rng(0), space, 5, -0.5)
    np.testing.assert_array_equal(head.linear.weight, plain.linear.weight)
    gradient = jax.grad(lambda head: log_stds(head).sum())(head).log_std_layer
    np.testing.assert_allclose(gradient.weight, np.tile(features.sum((0, 1))[:, None], widths), rtol=1e-5)
    moved = eqx.tree_at(lambda head: head.log_std_layer, head, gradient)
    assert np.ptp(log_stds(moved)) > 0.1


def test_a_state_dependent_std_is_refused_where_no_action_is_a_number():
    with pytest.raises(
        ConfigError, match=r"state_dependent_std True needs Box actions, and action space Discrete\(3\)"
    ):
        make_policy_head(np.random.default_rng(0), spaces.Discrete(3), 5, 0.0, state_dependent_std=True)
