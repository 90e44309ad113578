"""A rollout with values, advantages and value targets: what PPO and TRPO learn from."""

from typing import NamedTuple

from birl.maths.returns import gae
from birl.nets.models import evaluate_rollout, without_last
from birl.types import Array, PyTree, Rollout


class Batch(NamedTuple):
    """Leaves [T, B, ...]."""

    observations: PyTree  # normalised
    actions: PyTree
    log_probs: Array  # of the policy that collected the rollout
    advantages: Array
    value_targets: Array
    values: Array
    valid: Array
    resets: Array
    action_masks: Array | None
    old: PyTree  # the distributions that the actions were sampled from; None where they are not needed


def make_batch(policy: PyTree, rollout: Rollout, rewards: Array, discount: float, gae_lambda: float) -> Batch:
    """The rollout as a Batch, by one pass of the network; advantages are GAE's of these rewards."""
    observations, resets, distributions, values = evaluate_rollout(policy, rollout)
    flags = rollout.terminated, rollout.truncated, rollout.valid
    advantages = gae(rewards, values[:-1], values[1:], *flags, discount, gae_lambda)
    old = without_last(distributions)
    return Batch(
        observations=without_last(observations),
        actions=rollout.actions,
        log_probs=old.log_prob(rollout.actions),
        advantages=advantages,
        value_targets=advantages + values[:-1],
        values=values[:-1],
        valid=rollout.valid,
        resets=resets[:-1],
        action_masks=without_last(rollout.action_masks),
        old=old,
    )
