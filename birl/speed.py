"""The only module that imports birl/accel. Everything there only makes Birl faster.

Each function here is the plain form of the function of the same name in birl/accel, which is called
in its place. BIRL_ACCEL=0 switches birl/accel off. If the folder is deleted, it is off too.
"""

import functools
import importlib
import importlib.util
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np

from birl.maths.keys import step_keys
from birl.types import Act, ActAt, Action, Array, PyTree, Rollout, StartActing

Tree = TypeVar("Tree")
Function = TypeVar("Function", bound=Callable[..., Any])

_plain = ContextVar("plain", default=False)  # whether to trace plain forms, for export


@functools.cache
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


def faster_in(module: str, traced: bool = False) -> Callable[[Function], Function]:
    """A function whose fast form is in this module of birl/accel.

    `traced`: it is part of programs, and has its plain form within `plain_forms`.
    """

    def decorate(plain: Function) -> Function:
        @functools.wraps(plain)
        def chosen(*inputs: Any, **options: Any) -> Any:
            if not accel_enabled() or (traced and _plain.get()):
                return plain(*inputs, **options)
            return getattr(importlib.import_module(f"birl.accel.{module}"), plain.__name__)(*inputs, **options)

        return chosen  # type: ignore[return-value]

    return decorate


@faster_in("setup")
def prepare_jax(config: Any = None, images: bool = False) -> None:
    """Set up JAX's threads, devices and compilation cache for an algorithm's Config.

    Call it before the first network is made, with `images` if observations hold some. Without a
    Config it is for child processes.
    """


@faster_in("setup")
def cache_directory() -> Path | None:
    """Where compiled programs are kept between runs; None if they are not kept."""
    return None


@faster_in("devices")
def replicate_unplaced(tree: Tree) -> Tree:
    """The tree with its arrays where a compiled update leaves them, so that it is compiled once."""
    return tree


@faster_in("devices")
def has_several_devices(tree: Tree) -> bool:
    """Whether arrays of the tree lie on several devices, as `replicate_unplaced` leaves them."""
    return False


@faster_in("devices")
def place_like(leaf: Any, array: Any) -> Any:
    """The array on the devices of this leaf."""
    return array


@faster_in("devices")
def place_optimizer_state(optimizer: Any, state: PyTree, parameters: PyTree, is_large: Callable[[Any], bool]) -> PyTree:
    """An optimiser's state on the devices of its parameters."""
    return state


@faster_in("products", traced=True)
def for_product(weight: Array) -> Array:
    """These weights in the form in which XLA computes their gradient fastest."""
    return weight


def start_acting(act: Callable[..., Action], policy: PyTree, inputs: PyTree, key: Array, length: int) -> StartActing:
    """How to act in rollouts of this length: in NumPy if that is faster, else by compiled calls."""
    return take_apart(act, policy, inputs, key, length) or compiled_acting(act, policy, length)


@faster_in("numpy_acting")
def take_apart(
    act: Callable[..., Action], policy: PyTree, inputs: PyTree, key: Array, length: int
) -> StartActing | None:
    """How to act in NumPy; None if a compiled call is faster."""
    return None


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


@faster_in("image_encoder")
def fast_image_encoder(encoder: Any, activation: Callable[[Array], Array]) -> Any:
    """The encoder in a form that is divided among the CPU cores."""
    return encoder


@faster_in("image_encoder")
def is_fast_encoder(node: Any) -> bool:
    """Whether this is what `fast_image_encoder` returned for a plain encoder."""
    return False


@faster_in("convolution", traced=True)
def convolve(x: Array, weight: Array, bias: Array, stride: int) -> Array:
    """A valid convolution of images [N, height, width, channels]; weights [rows, columns, in, out].

    Other forms of a convolution can be ten times slower on a CPU.
    """
    axes = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(x, weight, (stride, stride), "VALID", dimension_numbers=axes) + bias


@faster_in("image_cache")
def act_in_rollouts(act: Act, config: Any, shared_encoder: Callable[[Any], Any]) -> Act:
    """How to act while collecting: it may keep what `evaluate_network` would compute again."""
    return act


@faster_in("image_cache")
def evaluate_network(network: Any, observations: PyTree, resets: Array, rollout: Rollout) -> tuple[PyTree, PyTree]:
    """The network's distributions and values [T+1, B] for these observations of a rollout."""
    return network(observations, rollout.memory, resets, rollout.action_masks)[:2]
