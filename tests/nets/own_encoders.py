"""Encoders that a user might write, by name: tests.nets.own_encoders:make_set and others."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from birl.nets.images import Conv, make_conv
from birl.nets.layers import Linear, make_linear


class Squares(eqx.Module):
    """The numbers of an observation and their squares, through a dense layer."""

    layer: Linear
    factor: float  # neither an array nor static: a constant

    def __call__(self, observations):
        return jnp.tanh(self.layer(jnp.concatenate([observations, self.factor * observations**2], axis=-1)))


def make_squares(rng, observation_space):
    return Squares(make_linear(rng, 2 * observation_space.shape[0], 6), 0.5), 6


class Parts(eqx.Module):
    """Each part of a Dict observation by a layer of its own; the layers' outputs are added."""

    layers: dict[str, Linear]

    def __call__(self, observations):
        return jnp.tanh(sum(layer(self.flat(observations[key])) for key, layer in self.layers.items()))

    def flat(self, part):
        return part.astype(jnp.float32).reshape(*part.shape[: part.ndim - 1], -1)


def make_parts(rng, observation_space):
    return Parts({key: make_linear(rng, part.shape[0], 5) for key, part in observation_space.items()}), 5


class Perceptron(eqx.Module):
    """Equinox's own network, which takes one vector and holds functions in its fields."""

    inside: eqx.nn.MLP

    def __call__(self, observations):
        return jnp.vectorize(self.inside, signature="(i)->(o)")(observations)


def make_perceptron(rng, observation_space):
    key = jax.random.key(int(rng.integers(2**31)))
    return Perceptron(eqx.nn.MLP(observation_space.shape[0], 4, 8, 1, key=key)), 4


class Frozen(eqx.Module):
    """A layer that does not learn."""

    layer: Linear

    def __call__(self, observations):
        return jnp.tanh(jax.lax.stop_gradient(self.layer)(observations))


def make_frozen(rng, observation_space):
    return Frozen(make_linear(np.random.default_rng(0), observation_space.shape[0], 6)), 6


class Any(eqx.Module):
    """Whatever the function in its field returns."""

    function: Callable
    weight: object = None

    def __call__(self, observations):
        return self.function(observations)


class Scale(eqx.Module):
    """Observations times a weight."""

    weight: np.ndarray

    def __call__(self, observations):
        return observations * self.weight


def make_numpy(rng, observation_space):
    return Scale(np.ones(4, np.float64)), 4


class Pictures(eqx.Module):
    """A convolution of images [*batch, channels, height, width] of bytes."""

    layer: Conv

    def __call__(self, images):
        x = jnp.moveaxis(images.reshape(-1, *images.shape[-3:]), 1, -1).astype(jnp.float32) / 255
        return jnp.tanh(self.layer(x)).reshape(*images.shape[:-3], -1)


def make_pictures(rng, observation_space):
    channels, height, width = observation_space.shape
    return Pictures(make_conv(rng, 4, channels, 3, stride=4)), 3 * (height // 4) * (width // 4)


# What is wrong with each of these is in test_own_encoder.py.


def make_no_pair(rng, observation_space):
    return make_squares(rng, observation_space)[0]


def make_no_module(rng, observation_space):
    return jnp.tanh, 4


def make_no_width(rng, observation_space):
    return make_squares(rng, observation_space)[0], "6"


def make_zero_width(rng, observation_space):
    return make_squares(rng, observation_space)[0], 0


def make_other_width(rng, observation_space):
    return make_squares(rng, observation_space)[0], 7


def make_flat(rng, observation_space):
    return Any(lambda observations: observations.reshape(-1, observations.shape[-1])), 4


def make_pairs(rng, observation_space):
    return Any(lambda observations: (observations, observations)), 4


def make_integers(rng, observation_space):
    return Any(lambda observations: observations.astype(jnp.int32)), 4


def make_single(rng, observation_space):
    return make_perceptron(rng, observation_space)[0].inside, 4


def make_table(rng, observation_space):
    return Any(lambda observations: observations, np.arange(3)), 4


def make_of_one(rng):
    return make_squares(rng, None)


not_a_function = 3
