"""Encoder activations that acting has computed, kept for the update that learns from the same
images.

A2C learns with the policy that collected, so its forward pass was computed already: all layers'
outputs are kept, and the gradient goes back through them. PPO keeps the last layer's, for its one
pass over the rollout before the epochs.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array

from birl.accel.image_encoder import CachedImages, FastImageEncoder
from birl.types import Act, Action, PyTree, Rollout

Keep = Literal["features", "layers"]  # which encoder activations to cache: the last layer's, or all


# Algorithms that evaluate each rollout with the policy that collected it: PPO once before its
# epochs, A2C in its loss, which is differentiated.
KEPT: dict[str, Keep] = {"birl.algos.ppo": "features", "birl.algos.a2c": "layers"}
ACT = "birl.nets.models", "act"  # it takes images with their activations


def act_in_rollouts(act: Act, config: Any, shared_encoder: Callable[[Any], Any]) -> Act:
    """`act`, which keeps an image encoder's activations if the update can use them."""
    keep = KEPT.get(type(config).__module__)
    if keep is None or (act.__module__, act.__name__) != ACT:
        return act
    return act_keeping(act, keep, shared_encoder)


@cache  # one object each, for programs are kept by the function that they were made of
def act_keeping(act: Act, keep: Keep, shared_encoder: Callable[[Any], Any]) -> Act:
    """`act`, which keeps the encoder's features, or the outputs of all its layers."""

    @jax.jit
    def acting(
        policy: Any, observations: PyTree, memory: PyTree, resets: Array, masks: Array | None, key: Array | None
    ) -> Action:
        encoder = shared_encoder(policy.network)
        if not isinstance(encoder, FastImageEncoder):
            return act(policy, observations, memory, resets, masks, key)
        outputs = encoder.outputs(observations[None])  # [1, B, ...] of each layer
        images = CachedImages(observations, jax.tree.map(lambda x: x[0], outputs))
        kept = outputs if keep == "layers" else (*[None] * (len(outputs) - 1), outputs[-1])
        return act(policy, images, memory, resets, masks, key)._replace(extras=kept)

    return acting


def evaluate_network(network: Any, observations: PyTree, resets: Array, rollout: Rollout) -> tuple[PyTree, PyTree]:
    """The network's distributions and values [T+1, B], with the activations that were kept."""
    masks = rollout.action_masks
    if rollout.extras is None:
        return network(observations, rollout.memory, resets, masks)[:2]
    outputs = jax.tree.map(lambda *steps: jnp.concatenate(steps), *rollout.extras)
    cached = CachedImages(observations[:-1], outputs)
    *acted, memory = network(cached, rollout.memory, resets[:-1], None if masks is None else masks[:-1])
    # The last observation was not acted on: it is encoded now, and nothing is learned from it.
    *last, _ = network(observations[-1:], memory, resets[-1:], None if masks is None else masks[-1:])
    last = jax.lax.stop_gradient(last)
    distributions, values = jax.tree.map(lambda *parts: jnp.concatenate(parts), acted, last)
    return distributions, values
