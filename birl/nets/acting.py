"""A policy at work: actions for observations, and the same network over a whole rollout."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from birl.nets.images import Seen
from birl.nets.models import ActorCriticLike, Distribution, see
from birl.nets.normalize import normalize_observations
from birl.nets.recurrent import rollout_resets
from birl.types import Action, Array, PyTree, Rollout

ActorCriticPolicy = tuple[
    ActorCriticLike, PyTree
]  # the network, and the moments by which its observations are normalised


class Evaluation(NamedTuple):
    """What a network makes of a rollout, its last observation included."""

    observations: PyTree  # [T+1, B, ...] normalised
    resets: Array  # [T+1, B] where memory starts anew
    distributions: Distribution  # [T+1, B]
    values: Array  # [T+1, B]; of an ActorQCritic or DuelingActor, the critic's features [T+1, B, F]; of an ActorQ, Q(s, ·) [T+1, B, A]


@jax.jit
def act(
    policy: ActorCriticPolicy,
    observations: PyTree,
    memory: PyTree,
    resets: Array,
    action_masks: Array | None,
    key: Array | None,
) -> Action:
    """Actions for B observations: sampled, or the most likely ones if there is no key; the
    distributions they come from; what was seen.
    """
    network, moments = policy
    one_step = partial(jax.tree.map, lambda x: x[None])
    observations = see(network, one_step(normalize_observations(moments, observations)))
    distribution, _, memory = network(observations, memory, resets[None], one_step(action_masks))
    distribution = jax.tree.map(lambda x: x[0], distribution)
    actions = distribution.mode() if key is None else distribution.sample(key)
    return Action(actions, memory, distribution, observations.outputs if isinstance(observations, Seen) else None)


def evaluate_rollout(policy: ActorCriticPolicy, rollout: Rollout) -> Evaluation:
    """Distributions and values at every observation of a rollout, by one pass over all of it."""
    network, moments = policy
    resets = rollout_resets(rollout)
    observations = normalize_observations(moments, rollout.observations)
    masks = rollout.action_masks
    if rollout.seen is None:
        distributions, values, _ = network(observations, rollout.memory, resets, masks)
        return Evaluation(observations, resets, distributions, values)
    # The last observation was not acted on: it is seen now, and nothing is learned from it.
    outputs = jax.tree.map(lambda *steps: jnp.concatenate(steps), *rollout.seen)
    *acted, memory = network(Seen(observations[:-1], outputs), rollout.memory, resets[:-1], without_last(masks))
    *last, _ = jax.lax.stop_gradient(
        network(observations[-1:], memory, resets[-1:], None if masks is None else masks[-1:])
    )
    return Evaluation(observations, resets, *jax.tree.map(lambda *parts: jnp.concatenate(parts), acted, last))


def without_first(tree: PyTree) -> PyTree:
    """[T+1, ...] leaves without the first row: what follows each step."""
    return jax.tree.map(lambda x: x[1:], tree)


def without_last(tree: PyTree) -> PyTree:
    """[T+1, ...] leaves without the last row, where no action was taken."""
    return jax.tree.map(lambda x: x[:-1], tree)
