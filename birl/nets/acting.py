"""Acting with a policy, and evaluating its network over a whole rollout."""

from functools import partial
from typing import Any, NamedTuple

import jax

from birl import speed
from birl.nets.models import ActorCritic, Distribution
from birl.nets.normalize import normalize_observations
from birl.nets.recurrent import rollout_resets
from birl.types import Act, Action, Array, PyTree, Rollout


class RolloutEvaluation(NamedTuple):
    """A network's outputs for a rollout, its last observation included."""

    observations: PyTree  # [T+1, B, ...] normalised
    resets: Array  # [T+1, B] where memory is reset
    distributions: Distribution  # [T+1, B]
    values: Array  # [T+1, B]; QAC and ACER: the critic's features [T+1, B, F], or Q(s, ·) [T+1, B, A]


@jax.jit
def act(
    policy: PyTree, observations: PyTree, memory: PyTree, resets: Array, action_masks: Array | None, key: Array | None
) -> Action:
    """Actions for B observations, sampled, or the most likely ones if there is no key."""
    network, moments = policy
    observations = _one_step(normalize_observations(moments, observations))
    return _act(network, observations, memory, resets, action_masks, key)


def evaluate_rollout(policy: PyTree, rollout: Rollout) -> RolloutEvaluation:
    """Distributions and values at every observation of a rollout, by one pass over all of it."""
    network, moments = policy
    resets = rollout_resets(rollout)
    observations = normalize_observations(moments, rollout.observations)
    masks = rollout.action_masks
    if rollout.extras is None:
        distributions, values, _ = network(observations, rollout.memory, resets, masks)
    else:
        distributions, values = speed.evaluate_cached(
            network, observations, rollout.memory, resets, masks, rollout.extras
        )
    return RolloutEvaluation(observations, resets, distributions, values)


def without_first(tree: PyTree) -> PyTree:
    """[T+1, ...] leaves without the first row: the successor of each step."""
    return jax.tree.map(lambda x: x[1:], tree)


def without_last(tree: PyTree) -> PyTree:
    """[T+1, ...] leaves without the last row, where no action was taken."""
    return jax.tree.map(lambda x: x[:-1], tree)


_one_step = partial(jax.tree.map, lambda x: x[None])  # [B, ...] leaves as [1, B, ...]


def _act(network: Any, observations: PyTree, memory: PyTree, resets: Array, masks: Array | None, key: Any) -> Action:
    """Act on normalised observations [1, B, ...]."""
    distribution, _, memory = network(observations, memory, resets[None], _one_step(masks))
    distribution = jax.tree.map(lambda x: x[0], distribution)
    actions = distribution.mode() if key is None else distribution.sample(key)
    return Action(actions, memory, distribution)


@partial(jax.jit, static_argnames="keep")
def _act_keeping(
    policy: PyTree,
    observations: PyTree,
    memory: PyTree,
    resets: Array,
    action_masks: Array | None,
    key: Array | None,
    keep: speed.Keep,
) -> Action:
    """Act, and keep an image encoder's features, or the outputs of all its layers."""
    network, moments = policy
    observations = _one_step(normalize_observations(moments, observations))
    images = speed.cache_images(_shared_encoder(network), observations)
    action = _act(network, images, memory, resets, action_masks, key)
    return action._replace(extras=speed.kept_outputs(images, keep))


# One object each, for programs are kept by the function that they were made of.
_KEEPING = {keep: partial(_act_keeping, keep=keep) for keep in ("features", "layers")}


def act_in_rollouts(chosen: Act, config: Any) -> Act:
    """How to act while collecting: `act` may keep what `evaluate_rollout` would compute again."""
    keep = speed.images_to_keep(config) if chosen is act else None
    return chosen if keep is None else _KEEPING[keep]


def _shared_encoder(network: Any) -> Any:
    """The encoder of the whole observation if policy and value share it; otherwise None."""
    if not isinstance(network, ActorCritic) or network.critic is not None:
        return None
    encoder = network.actor.encoder
    return encoder.parts[0] if not encoder.keys else None
