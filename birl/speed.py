"""The only module that imports birl/accel. Everything there only makes Birl faster.

Each part has a plain form here.

BIRL_ACCEL=0 switches birl/accel off. If the folder is deleted, it is off too.
"""

import importlib.util
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar

import jax
import numpy as np

from birl.maths.keys import step_keys
from birl.types import ActAt, Action, Array, PyTree, StartActing

Tree = TypeVar("Tree")
Keep = Literal["features", "layers"]  # which encoder activations to cache: the last layer's, or all


_plain = ContextVar("plain", default=False)  # whether to trace plain forms, for export


@cache
def accel_enabled() -> bool:
    """Whether birl/accel is there and not switched off."""
    return os.environ.get("BIRL_ACCEL", "1") != "0" and importlib.util.find_spec("birl.accel") is not None


@contextmanager
def plain_forms() -> Iterator[None]:
    """Within it, products and convolutions are traced in their plain forms."""
    before = _plain.set(True)
    try:
        yield
    finally:
        _plain.reset(before)


def is_fast_encoder(node: Any) -> bool:
    """Whether this is what `fast_image_encoder` returned for a plain encoder."""
    if not accel_enabled():
        return False
    from birl.accel.image_encoder import FastImageEncoder

    return isinstance(node, FastImageEncoder)


def prepare_jax(config: Any = None, images: bool = False) -> None:
    """Set up JAX's threads, devices and compilation cache for an algorithm's Config.

    Call it before the first network is made, with `images` if observations hold some. Without a
    Config it is for child processes.
    """
    if accel_enabled():
        from birl.accel.setup import prepare_jax as prepare

        prepare(config, images)


def cache_directory() -> Path | None:
    """Where compiled programs are kept between runs; None if they are not kept."""
    if not accel_enabled():
        return None
    from birl.accel.setup import cache_directory as directory

    return directory()


def replicate_unplaced(tree: Tree) -> Tree:
    """The tree with its arrays where a compiled update leaves them, so that it is compiled once."""
    if not accel_enabled():
        return tree
    from birl.accel.devices import replicate_unplaced as replicate

    return replicate(tree)


def is_on_several(tree: Tree) -> bool:
    """Whether arrays of the tree lie on several devices, as `replicate_unplaced` leaves them."""
    if not accel_enabled():
        return False
    from birl.accel.devices import is_on_several as on_several

    return any(map(on_several, jax.tree.leaves(tree)))


def place_like(leaf: Any, array: Any) -> Any:
    """The array on the devices of this leaf."""
    if not accel_enabled():
        return array
    from birl.accel.devices import place_like as place

    return place(leaf, array)


def place_optimizer_state(optimizer: Any, state: PyTree, parameters: PyTree, is_large: Callable[[Any], bool]) -> PyTree:
    """An optimiser's state on the devices of its parameters."""
    if not accel_enabled():
        return state
    from birl.accel.devices import place_optimizer_state as place

    return place(optimizer, state, parameters, is_large)


def for_product(weight: Array) -> Array:
    """These weights in the form in which XLA computes their gradient fastest."""
    if not accel_enabled() or _plain.get():
        return weight
    from birl.accel.products import for_product as prepared

    return prepared(weight)


def start_acting(act: Callable[..., Action], policy: PyTree, inputs: PyTree, key: Array, length: int) -> StartActing:
    """How to act in rollouts of this length: in NumPy if that is faster, else by compiled calls."""
    if not accel_enabled():
        return compiled_acting(act, policy, length)
    from birl.accel.numpy_acting import take_apart

    return take_apart(act, policy, inputs, key, length) or compiled_acting(act, policy, length)


def compiled_acting(act: Callable[..., Action], policy: PyTree, length: int) -> StartActing:
    """How to act by one compiled call a step."""
    structure = jax.tree.structure(policy)
    # Flat arrays: to flatten a policy of Equinox modules at each call takes 44 µs more.
    whole = jax.jit(lambda leaves, *inputs: act(jax.tree.unflatten(structure, leaves), *inputs))
    keys_of = jax.jit(step_keys, static_argnames="length")

    def start(policy: PyTree, key: Array, steps_per_key: int = 1) -> ActAt:
        leaves = jax.tree.leaves(policy)
        keys = np.asarray(keys_of(key, length=length))
        return lambda t, *inputs: whole(leaves, *inputs, keys[t - t % steps_per_key])

    return start


def fast_image_encoder(encoder: Any, activation: Callable[[Array], Array]) -> Any:
    """The encoder in a form that is divided among the CPU cores."""
    if not accel_enabled():
        return encoder
    from birl.accel.image_encoder import fast_image_encoder as fast

    return fast(encoder, activation)


def convolve(x: Array, weight: Array, bias: Array, stride: int) -> Array:
    """A valid convolution of images [N, height, width, channels]; weights [rows, columns, in, out].

    Other forms of a convolution can be ten times slower on a CPU.
    """
    if not accel_enabled() or _plain.get():
        axes = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(x, weight, (stride, stride), "VALID", dimension_numbers=axes) + bias
    from birl.accel.convolution import convolve as fast

    return fast(x, weight, bias, stride, channels_first=False)


def images_to_keep(config: Any) -> Keep | None:
    """The encoder activations that acting keeps for the update of this Config's algorithm."""
    if not accel_enabled():
        return None
    from birl.accel.image_cache import images_to_keep as to_keep

    return to_keep(config)


def cache_images(encoder: Any, images: PyTree) -> PyTree:
    """Images with their encoder's activations, for networks to use instead of computing them."""
    if not accel_enabled():
        return images
    from birl.accel.image_cache import cache_images as with_activations

    return with_activations(encoder, images)


def kept_outputs(images: PyTree, keep: Keep) -> PyTree:
    """The activations to keep for the update; None if there are none."""
    if not accel_enabled():
        return None
    from birl.accel.image_cache import kept_outputs as kept

    return kept(images, keep)


def evaluate_cached(
    network: Any, observations: Array, memory: PyTree, resets: Array, masks: Array | None, extras: PyTree
) -> tuple[PyTree, PyTree]:
    """Distributions and values [T+1, B] of a rollout whose activations were kept."""
    from birl.accel.image_cache import evaluate_cached as evaluate

    return evaluate(network, observations, memory, resets, masks, extras)
