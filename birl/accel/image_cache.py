"""Encoder activations that acting has computed, kept for the update that learns from the same
images.

A2C learns with the policy that collected, so its forward pass was computed already: all layers'
outputs are kept, and the gradient goes back through them. PPO keeps the last layer's, for its one
pass over the rollout before the epochs.
"""

from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array

from birl.accel.image_encoder import CachedImages, FastImageEncoder
from birl.types import PyTree

Keep = Literal["features", "layers"]  # which encoder activations to cache: the last layer's, or all


# Algorithms that evaluate each rollout with the policy that collected it: PPO once before its
# epochs, A2C in its loss, which is differentiated.
KEPT: dict[str, Keep] = {"birl.algos.ppo": "features", "birl.algos.a2c": "layers"}


def images_to_keep(config: Any) -> Keep | None:
    """The activations to keep while collecting for the algorithm of this Config; None: none."""
    return KEPT.get(type(config).__module__)


def cache_images(encoder: Any, images: PyTree) -> PyTree:
    """Images [T, B, ...] with their encoder's activations; unchanged for any other encoder."""
    if not isinstance(encoder, FastImageEncoder):
        return images
    return CachedImages(images, encoder.outputs(images))


def kept_outputs(images: PyTree, keep: Keep) -> PyTree:
    """What to keep of these images' activations; None if there are none."""
    if not isinstance(images, CachedImages):
        return None
    if keep == "layers":
        return images.outputs
    return (*[None] * (len(images.outputs) - 1), images.outputs[-1])


def evaluate_cached(
    network: Any, observations: Array, memory: PyTree, resets: Array, masks: Array | None, extras: PyTree
) -> tuple[PyTree, PyTree]:
    """The network's distributions and values [T+1, B] of a rollout whose activations were kept."""
    outputs = jax.tree.map(lambda *steps: jnp.concatenate(steps), *extras)
    cached = CachedImages(observations[:-1], outputs)
    *acted, memory = network(cached, memory, resets[:-1], None if masks is None else masks[:-1])
    # The last observation was not acted on: it is encoded now, and nothing is learned from it.
    *last, _ = network(observations[-1:], memory, resets[-1:], None if masks is None else masks[-1:])
    last = jax.lax.stop_gradient(last)
    distributions, values = jax.tree.map(lambda *parts: jnp.concatenate(parts), acted, last)
    return distributions, values
