"""Batches: rollouts with the values and advantages of a network whose outputs are known."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

from birl.maths.distributions import Categorical, mask_logits
from birl.maths.statistics import Moments
from birl.rollouts.batch import make_batch
from birl.types import Rollout

FALSE = [[False]] * 3
TRUE = [[True]] * 3
END_AT_1 = [[False], [True], [False]]  # so the last of three steps is a reset
RESET_AT_2 = [[True], [True], [False]]


class ValueIsObservation(eqx.Module):
    """V(s) = s, and π = (1/4, 3/4) where both actions are allowed."""

    def __call__(self, observations, memory, resets, masks):
        logits = jnp.broadcast_to(jnp.log(jnp.array([1.0, 3.0])), (*resets.shape, 2))
        logits = logits if masks is None else mask_logits(logits, masks)
        return Categorical(logits), observations[..., 0], memory


def rollout_of(terminated=FALSE, truncated=FALSE, valid=TRUE, masks=None):
    """Three steps through the states 1, 2, 3 and 4 with rewards 10, 20 and 30."""
    return Rollout(
        observations=jnp.array([1.0, 2.0, 3.0, 4.0]).reshape(4, 1, 1),
        actions=jnp.array([[0], [1], [1]]),
        rewards=jnp.array([[10.0], [20.0], [30.0]]),
        terminated=jnp.array(terminated),
        truncated=jnp.array(truncated),
        valid=jnp.array(valid),
        memory=(),
        action_masks=masks,
        resets=jnp.array([True]),
    )


def batch_of(rollout, gae_lambda=0.0, moments=None):
    return make_batch((ValueIsObservation(), moments), rollout, rollout.rewards, 0.5, gae_lambda)


@pytest.mark.parametrize(
    ("flags", "gae_lambda", "advantages"),
    [
        ({}, 0.0, [10.0, 19.5, 29.0]),  # r + γV(s') - V(s)
        ({}, 1.0, [27.0, 34.0, 29.0]),  # each plus γ times the next
        ({"terminated": END_AT_1, "valid": RESET_AT_2}, 0.0, [10.0, 18.0, 0.0]),  # no bootstrap
        ({"terminated": END_AT_1, "valid": RESET_AT_2}, 1.0, [19.0, 18.0, 0.0]),
        ({"truncated": END_AT_1, "valid": RESET_AT_2}, 1.0, [19.75, 19.5, 0.0]),  # with a bootstrap
    ],
)
def test_advantages_are_gaes_and_targets_are_advantages_plus_values(flags, gae_lambda, advantages):
    batch = batch_of(rollout_of(**flags), gae_lambda)
    np.testing.assert_allclose(batch.advantages[:, 0], advantages, rtol=1e-6)
    np.testing.assert_allclose(batch.values[:, 0], [1.0, 2.0, 3.0])
    np.testing.assert_allclose(batch.value_targets[:, 0], np.add(advantages, [1.0, 2.0, 3.0]), rtol=1e-6)


def test_the_rewards_may_be_others_than_the_rollouts():
    rollout = rollout_of()
    batch = make_batch((ValueIsObservation(), None), rollout, rollout.rewards / 10, 0.5, 0.0)
    np.testing.assert_allclose(batch.advantages[:, 0], [1.0, 1.5, 2.0], rtol=1e-6)


def test_log_probs_are_those_of_the_actions_and_the_old_distributions():
    batch = batch_of(rollout_of())
    np.testing.assert_allclose(jnp.exp(batch.log_probs[:, 0]), [0.25, 0.75, 0.75], rtol=1e-6)
    np.testing.assert_allclose(jnp.exp(batch.old.log_prob(jnp.zeros((3, 1), int))), np.full((3, 1), 0.25), rtol=1e-6)


def test_every_part_has_a_row_for_each_step_and_none_for_the_last_observation():
    masks = jnp.array([[[True, True]], [[False, True]], [[True, True]], [[True, False]]])
    batch = batch_of(rollout_of(terminated=END_AT_1, valid=RESET_AT_2, masks=masks))
    assert batch.observations.ravel().tolist() == [1.0, 2.0, 3.0]
    assert batch.actions.ravel().tolist() == [0, 1, 1]
    assert batch.valid.ravel().tolist() == [True, True, False]
    assert batch.resets.ravel().tolist() == [True, False, False]  # the observation after a reset is the last one here
    np.testing.assert_array_equal(batch.action_masks, masks[:-1])
    np.testing.assert_allclose(jnp.exp(batch.log_probs[:, 0]), [0.25, 1.0, 0.75], rtol=1e-6)
    assert batch_of(rollout_of()).action_masks is None


def test_observations_are_normalised_before_the_network_sees_them():
    moments = Moments(count=jnp.float32(100), mean=jnp.array([3.0]), variance=jnp.array([4.0]))
    batch = batch_of(rollout_of(), moments=moments)
    np.testing.assert_allclose(batch.observations.ravel(), [-1.0, -0.5, 0.0], atol=1e-6)
    np.testing.assert_allclose(batch.values.ravel(), [-1.0, -0.5, 0.0], atol=1e-6)
