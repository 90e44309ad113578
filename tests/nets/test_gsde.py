"""gSDE's heads: which gradients they pass on, their first policy, and what they refuse."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from birl.algos import sac
from birl.config import ConfigError
from birl.maths.distributions import DiagonalGaussian
from birl.maths.gaussians import BoundedGaussian, StateDependentGaussian
from birl.nets.critics import MEAN_RANGE, make_sac_actor
from birl.nets.heads import make_gaussian_head
from birl.parts import ActionConfig

jit = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
BOX = spaces.Box(np.array([-2, 0], np.float32), np.array([3, 1], np.float32))
FEATURES = np.random.default_rng(1).normal(size=(3, 2, 5)).astype(np.float32)
GSDE = ActionConfig(gsde=True, log_std=-2.0)
SAC = sac.Config().network, sac.Config(gsde=True).actions


def head_for(actions, space=BOX):
    return make_gaussian_head(np.random.default_rng(0), space, 5, actions)


@pytest.mark.parametrize(
    ("changes", "kind", "inner"),
    [
        ({}, DiagonalGaussian, None),
        ({"gsde": True}, StateDependentGaussian, None),
        ({"squash_actions": True}, BoundedGaussian, DiagonalGaussian),
        ({"squash_actions": True, "state_dependent_std": True}, BoundedGaussian, DiagonalGaussian),
        ({"squash_actions": True, "gsde": True}, BoundedGaussian, StateDependentGaussian),
    ],
)
def test_each_choice_of_settings_gets_its_distribution_with_the_first_log_std(changes, kind, inner):
    distribution = jit(lambda head: head(FEATURES, None))(head_for(ActionConfig(log_std=-2.0, **changes)))
    assert type(distribution) is kind
    gaussian = distribution.gaussian if inner else distribution
    assert type(gaussian) is (inner or kind)
    variances = np.sum(FEATURES**2, axis=-1, keepdims=True) if changes.get("gsde") else np.ones((3, 2, 1))
    np.testing.assert_allclose(gaussian.log_std, np.tile(0.5 * np.log(variances) - 2, 2), rtol=1e-4)
    assert np.all(np.abs(gaussian.mean) < 0.1)


def test_ppos_features_are_not_changed_by_the_deviation_and_sacs_are():
    def entropy(features):
        return head_for(GSDE)(features, None).entropy().sum()

    assert not np.any(jit(jax.grad(entropy))(jnp.asarray(FEATURES)))
    actor = make_sac_actor(np.random.default_rng(0), spaces.Box(-1, 1, (3,)), 2, *SAC)
    gradient = jit(jax.grad(lambda actor: actor(jnp.ones((4, 3))).gaussian.entropy().sum()))(actor)
    assert any(np.any(leaf != 0) for leaf in jax.tree.leaves(gradient.encoder))


def test_the_log_std_and_the_mean_are_learned():
    def log_prob(head):
        return head(FEATURES, None).log_prob(jnp.ones((3, 2, 2))).sum()

    gradient = jit(jax.grad(log_prob))(head_for(GSDE))
    assert np.all(gradient.log_std != 0)
    assert np.all(gradient.linear.weight != 0)


def test_sacs_mean_is_clipped_before_tanh():
    actor = make_sac_actor(np.random.default_rng(0), spaces.Box(-1, 1, (3,)), 2, *SAC)
    means = jit(lambda actor, observations: actor(observations))(actor, np.full((1, 3), 1e6, np.float32)).gaussian.mean
    np.testing.assert_array_equal(np.abs(means), MEAN_RANGE[1])


@pytest.mark.parametrize("space", [spaces.Discrete(3), spaces.MultiBinary(2), spaces.Dict(a=BOX)])
def test_gsde_is_refused_by_name_for_actions_other_than_a_box(space):
    with pytest.raises(ConfigError, match=r"gsde True needs Box actions, and action space .* is none; use gsde False"):
        head_for(GSDE, space)


@pytest.mark.parametrize("space", [spaces.Discrete(3), spaces.Dict(a=BOX), spaces.Box(0, np.inf, (2,), np.float32)])
def test_squashed_actions_are_refused_by_name_without_a_bounded_box(space):
    with pytest.raises(ConfigError, match=r"squash_actions True: .* finite bounds.*; or use squash_actions False"):
        head_for(ActionConfig(squash_actions=True), space)


def test_a_matrix_is_for_a_rollout_or_for_as_many_steps_as_said():
    assert GSDE.steps_per_matrix(128) == 128
    assert replace(GSDE, gsde_every=4).steps_per_matrix(128) == 4
    assert replace(GSDE, gsde=False).steps_per_matrix(128) == 1
