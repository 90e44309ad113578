"""Optimisers by name, and the one gradient step that every algorithm takes."""

from functools import partial
from typing import Any, Literal, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array

from birl.accel.devices import is_on_several, place_of, replicated
from birl.config import require
from birl.types import PyTree

LARGE = 16_384  # numbers in an array

# Two RMSProps. PyTorch's divides by √g + ε, and its mean square g starts at 0; so the first step of
# a parameter has length η/√(1-α). TensorFlow's, with which OpenAI Baselines ran A2C and ACER,
# divides by √(g + ε), and g starts at 1; so the first steps are short.
RMSPropName = Literal["rmsprop", "rmsprop-tf"]
OptimizerName = Literal["adam", "rmsprop", "rmsprop-tf"]


def make_optimizer(name: OptimizerName, epsilon: float = 1e-5, decay: float = 0.99) -> optax.GradientTransformation:
    """The direction of the step; its length is the learning rate's, given at each
    `gradient_step`.
    """
    match name:
        case "adam":
            return optax.scale_by_adam(eps=epsilon)
        case "rmsprop":
            return optax.scale_by_rms(decay=decay, eps=epsilon, initial_scale=0.0, eps_in_sqrt=False)
        case "rmsprop-tf":
            return optax.scale_by_rms(decay=decay, eps=epsilon, initial_scale=1.0, eps_in_sqrt=True)


def initial_optimizer_state(optimizer: optax.GradientTransformation, parameters: PyTree) -> PyTree:
    """The optimiser's first state. Each of its arrays has one value, so no function is compiled for
    each shape.
    """
    shapes = jax.eval_shape(lambda tree: optimizer.init(grouped(tree)), parameters)
    with jax.ensure_compile_time_eval():
        of_scalars = optimizer.init([np.float32(0)] * len(jax.eval_shape(grouped, parameters)))
    first = jax.tree.map(lambda leaf, value: np.full(leaf.shape, value, leaf.dtype), shapes, of_scalars)
    leaves = jax.tree.leaves(parameters)
    if not any(map(is_on_several, leaves)):
        return first
    places = [place_of(leaf) for leaf in leaves if leaf.size >= LARGE]
    of_small = [replicated()] if len(places) < len(leaves) else []
    return optax.tree_map_params(optimizer, jax.device_put, first, places + of_small)


def gradient_step(
    optimizer: optax.GradientTransformation,
    parameters: PyTree,
    optimizer_state: PyTree,
    gradients: PyTree,
    learning_rate: Array | float,
    max_grad_norm: float | None,
    valid: Array | None = None,  # the rows over which the gradient is a mean; None: there are always some
) -> tuple[PyTree, PyTree, Array]:
    """Parameters and optimiser state after one step down the gradient, and the gradient's norm
    before it was clipped.

    If no row is valid there is no gradient, and both stay as they are: momentum would move them,
    and statistics would fade.
    """
    groups, norm = clip_by_norm(grouped(gradients), max_grad_norm)
    steps, next_state = optimizer.update(groups, optimizer_state)
    moved = jax.tree.map(lambda p, s: p - learning_rate * s, parameters, ungrouped(steps, parameters))
    if valid is not None:
        moved, next_state = jax.tree.map(
            partial(jnp.where, jnp.any(valid)), (moved, next_state), (parameters, optimizer_state)
        )
    return moved, next_state, norm


def grouped(tree: PyTree) -> list[Array]:
    """A tree's large leaves, and all small ones as one vector at the end.

    A dozen small arrays cost more to hand in and out than to compute; large ones cost more to copy:
    0.9 of the 3.9 ms of a gradient step of DDPG (256-256).
    """
    leaves = jax.tree.leaves(tree)
    small = [leaf for leaf in leaves if leaf.size < LARGE]
    return [leaf for leaf in leaves if leaf.size >= LARGE] + ([flatten_tree(small)] if small else [])


def ungrouped(groups: list[Array], like: PyTree) -> PyTree:
    """The tree of which these are the groups, in the shape of another."""
    leaves, structure = jax.tree.flatten(like)
    large = iter(groups)
    ends = np.cumsum([leaf.size for leaf in leaves if leaf.size < LARGE])
    small = iter(jnp.split(groups[-1], ends[:-1]) if ends.size else [])
    found = [next(large) if leaf.size >= LARGE else next(small).reshape(leaf.shape) for leaf in leaves]
    return jax.tree.unflatten(structure, found)


def clip_by_norm(gradients: PyTree, max_grad_norm: float | None) -> tuple[PyTree, Array]:
    """Gradients of at most this norm, and the norm they had."""
    # Not vdot, which would make vectors of them: of a matrix that lies on several devices, that is
    # all of it on each.
    norm = jnp.sqrt(sum(jnp.tensordot(g, g, g.ndim) for g in jax.tree.leaves(gradients)))
    if max_grad_norm is not None:
        scale = jnp.minimum(1.0, max_grad_norm / (norm + 1e-6))  # one factor for all: the direction stays
        gradients = jax.tree.map(lambda g: g * scale, gradients)
    return gradients, norm


def flatten_tree(tree: PyTree) -> Array:
    """A tree's leaves as one vector, as scale.flat.Layout has them."""
    leaves = [leaf.reshape(-1) for leaf in jax.tree.leaves(tree)]
    return jnp.concatenate(leaves) if leaves else jnp.zeros(0)


class RMSProp(Protocol):
    """The settings of an algorithm's Config for an RMSProp whose statistics are shared."""

    @property
    def optimizer(self) -> str: ...  # an RMSPropName
    @property
    def optimizer_epsilon(self) -> float: ...
    @property
    def rmsprop_decay(self) -> float: ...


def first_mean_square(optimizer: str) -> float:
    """What the mean of squared gradients starts from."""
    return 1.0 if optimizer == "rmsprop-tf" else 0.0


def shared_rmsprop(
    weights: np.ndarray, mean_squares: np.ndarray, gradients: np.ndarray, learning_rate: float, config: RMSProp
) -> None:
    """g ← αg + (1-α)Δθ² and θ ← θ - ηΔθ/√(g + ε), in place (Mnih et al. 2016, eq. S2 and S3); with
    PyTorch's form, √g + ε.

    Others may write to both meanwhile: now and then a part of an update is lost, which costs less
    than waiting for each other. A gradient of 0 everywhere is that of a turn without a valid step,
    and leaves g alone, too.
    """
    if not gradients.any():
        return
    decay, epsilon = config.rmsprop_decay, np.float32(config.optimizer_epsilon)
    mean_squares *= np.float32(decay)
    mean_squares += np.float32(1.0 - decay) * gradients * gradients
    roots = np.sqrt(mean_squares + epsilon) if config.optimizer == "rmsprop-tf" else np.sqrt(mean_squares) + epsilon
    weights -= np.float32(learning_rate) * gradients / roots


def soft_update(target: PyTree, parameters: PyTree, rate: Array | float) -> PyTree:
    """(1 - τ) target + τ parameters (Lillicrap et al. 2016, algorithm 1); with a rate of exactly 1
    or 0, one of the two to the bit.
    """
    return jax.tree.map(lambda t, p: (1.0 - rate) * t + rate * p, target, parameters)
