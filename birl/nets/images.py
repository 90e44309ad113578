"""Images to features: convolutions, then a dense layer. birl/accel has a faster form of it."""

from typing import Any

import equinox as eqx
import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jaxtyping import Array, Float

from birl import speed
from birl.config import ConfigError
from birl.envs.spaces import SMALLEST_SIDE, channels_come_first, holds_pixels, is_image, parts_of
from birl.nets.layers import (
    ACTIVATIONS,
    LayerNorm,
    Linear,
    NamedActivation,
    make_layer_norm,
    make_linear,
    orthogonal,
    zeros,
)
from birl.types import PyTree

# (kernel, channels, stride) of each convolution, and the dense layer after them.
CONVOLUTIONS: dict[str, tuple[tuple[tuple[int, int, int], ...], int | None]] = {
    "cnn": (((8, 32, 4), (4, 64, 2), (3, 64, 1)), 512),  # Mnih et al. 2015
    "cnn_2013": (((8, 16, 4), (4, 32, 2)), 256),  # Mnih et al. 2013, and A3C in 2016: a third of the arithmetic
    "cnn_small": (((8, 8, 4), (4, 16, 2)), 128),
    "cnn_tiny": (((3, 16, 1), (3, 32, 2)), 128),  # for images from 8 x 8 on
    "conv_only": (((8, 32, 4), (4, 64, 2), (3, 64, 1)), None),
}
LARGE = 64  # pixels: the side of an image from which the convolutions of cnn are worth their time


class Conv(eqx.Module):
    """A valid convolution of images [N, height, width, channels]."""

    weight: Float[Array, "rows columns inputs outputs"]
    bias: Float[Array, " outputs"]
    stride: int = eqx.field(static=True)

    def __call__(self, x: Array) -> Array:
        return speed.convolve(x, self.weight, self.bias, self.stride)


class ImageEncoder(eqx.Module):
    """Convolutions, then optionally a dense layer; images of either channel order, of numbers or
    bytes.
    """

    convolutions: tuple[Conv, ...]
    dense: Linear | None
    channels_first: bool = eqx.field(static=True)
    scale: float = eqx.field(static=True)  # of the pixels: 1/255 for bytes
    activation: str = eqx.field(static=True)
    norm: LayerNorm | None = None  # of the dense layer's outputs

    def __call__(self, observations: Array) -> Array:
        activate = ACTIVATIONS[self.activation]
        leading = observations.shape[:-3]
        x = observations.reshape(-1, *observations.shape[-3:]).astype(jnp.float32) * self.scale
        x = jnp.moveaxis(x, 1, -1) if self.channels_first else x
        for number, layer in enumerate(self.convolutions):
            x = layer(activate(x) if number else x)
        if self.dense is not None:
            x = self.dense(activate(x).reshape(len(x), -1))
        x = x if self.norm is None else self.norm(x)
        return activate(x).reshape(*leading, -1)


def make_image_encoder(
    rng: np.random.Generator, space: spaces.Box, name: str, activation: str, layer_norm: bool = False
) -> tuple[Any, int]:
    """The convolutions of this name for images of this space, and their number of features.

    It is an ImageEncoder, or its faster form. `layer_norm` normalises the dense layer's outputs.
    """
    channels_first = channels_come_first(space)
    channels, height, width = space.shape if channels_first else (space.shape[-1], *space.shape[:2])
    shapes, dense_size = CONVOLUTIONS[name]
    convolutions = []
    for kernel, outputs, stride in shapes:
        convolutions.append(make_conv(rng, kernel, channels, outputs, stride))
        height, width, channels = (height - kernel) // stride + 1, (width - kernel) // stride + 1, outputs
        if min(height, width) < 1:
            raise ConfigError(too_small(name, space))
    features = height * width * channels
    dense = make_linear(rng, features, dense_size) if dense_size else None
    norm = make_layer_norm(dense_size) if dense_size and layer_norm else None
    scale = 1 / 255 if holds_pixels(space) else 1.0
    encoder = ImageEncoder(tuple(convolutions), dense, channels_first, scale, activation, norm)
    return speed.fast_image_encoder(encoder, NamedActivation(activation)), dense_size or features


def plain_encoders(tree: PyTree) -> PyTree:
    """The tree with every image encoder in its plain form, with the same parameters."""

    def plain(node: Any) -> Any:
        if not speed.is_fast_encoder(node):
            return node
        return ImageEncoder(
            node.convolutions, node.dense, node.channels_first, node.scale, node.activation.name, node.norm
        )

    return jax.tree.map(plain, tree, is_leaf=speed.is_fast_encoder)


def make_conv(rng: np.random.Generator, kernel: int, inputs: int, outputs: int, stride: int) -> Conv:
    """A convolution with orthogonal weights of scale √2."""
    weight = orthogonal(rng, kernel * kernel * inputs, outputs, np.sqrt(2)).reshape(kernel, kernel, inputs, outputs)
    return Conv(weight, zeros(outputs), stride)


def too_small(name: str, space: spaces.Box) -> str:
    """The message for images that are smaller than the convolutions need."""
    least = max(SMALLEST_SIDE, smallest_side(name))
    tiny = "--encoder cnn_tiny, " if name != "cnn_tiny" and is_image(space) else ""
    return (
        f"encoder {name!r} needs larger images than {space.shape}, at least {least}x{least}; "
        f"use 84x84, {tiny}or --encoder mlp"
    )


def encoder_for(space: spaces.Box) -> str:
    """The encoder that the name auto stands for: the largest whose time such images are worth."""
    side = min(space.shape[1:] if channels_come_first(space) else space.shape[:2])
    fitting = "cnn_small" if side >= smallest_side("cnn_small") else "cnn_tiny"
    return "cnn" if side >= LARGE else fitting


def encoders_chosen(space: gym.Space, name: str) -> list[str]:
    """What to say of the encoders that auto chose for the images in observations of this space."""
    parts = [(f" {key}", part) for key, part in parts_of(space)] or [("", space)]
    images = [(part, image.shape, encoder_for(image)) for part, image in parts if name == "auto" and is_image(image)]
    return [f"observation{part} is an image of shape {shape}: encoder {encoder}" for part, shape, encoder in images]


def smallest_side(name: str) -> int:
    """The least height and width of an image that these convolutions can read."""
    side = 1
    for kernel, _, stride in reversed(CONVOLUTIONS[name][0]):
        side = (side - 1) * stride + kernel
    return side
