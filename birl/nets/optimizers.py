"""Optimisers by name, the gradient step that all algorithms use, and soft updates."""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array

from birl import speed
from birl.config import require
from birl.limits import Rate
from birl.nets.models import ActorCritic
from birl.parts import OptimizerConfig
from birl.types import Metrics, PyTree

LARGE = 16_384  # entries of an array from which it is large, see `group_leaves`


def make_optimizer(config: OptimizerConfig) -> optax.GradientTransformation:
    """The optimiser of these settings, without a learning rate: `gradient_step` applies it."""
    epsilon, decay = config.optimizer_epsilon, config.rmsprop_decay
    match config.optimizer:
        case "adam":
            return optax.scale_by_adam(eps=epsilon)
        case "rmsprop":  # Tieleman & Hinton 2012, as PyTorch has it
            return optax.scale_by_rms(decay=decay, eps=epsilon, initial_scale=0.0, eps_in_sqrt=False)
        case "rmsprop-tf":
            return optax.scale_by_rms(decay=decay, eps=epsilon, initial_scale=1.0, eps_in_sqrt=True)


def initial_optimizer_state(config: OptimizerConfig, parameters: PyTree) -> PyTree:
    """The initial state of the optimiser, made in NumPy so that nothing is compiled."""
    optimizer = make_optimizer(config)
    shapes = jax.eval_shape(lambda tree: optimizer.init(group_leaves(tree)), parameters)
    with jax.ensure_compile_time_eval():  # each array holds one value: take it from the state of scalars
        scalars = optimizer.init([np.float32(0)] * len(jax.eval_shape(group_leaves, parameters)))
    initial = jax.tree.map(lambda leaf, value: np.full(leaf.shape, value, leaf.dtype), shapes, scalars)
    return speed.place_optimizer_state(optimizer, initial, parameters, lambda leaf: leaf.size >= LARGE)


def gradient_step(
    config: OptimizerConfig,
    parameters: PyTree,
    optimizer_state: PyTree,
    gradients: PyTree,
    learning_rate: PyTree,  # a number, or a tree with one for each parameter
    valid: Array | None = None,  # the rows that the gradient is averaged over; None: there is always a valid row
) -> tuple[PyTree, PyTree, Array]:
    """New parameters, new optimiser state, and the gradient's norm before clipping.

    If no row is valid, parameters and state stay as they are: a gradient of zero would still move
    them, by momentum and by decaying statistics.
    """
    groups, norm = clip_by_norm(group_leaves(gradients), config.max_grad_norm)
    moved, next_state = unclipped_step(config, parameters, optimizer_state, groups, learning_rate)
    if valid is not None:
        moved, next_state = jax.tree.map(
            partial(jnp.where, jnp.any(valid)), (moved, next_state), (parameters, optimizer_state)
        )
    return moved, next_state, norm


def unclipped_step(
    config: OptimizerConfig, parameters: PyTree, optimizer_state: PyTree, groups: list[Array], learning_rate: PyTree
) -> tuple[PyTree, PyTree]:
    """New parameters and new optimiser state after a step by gradients from `group_leaves`."""
    steps, next_state = make_optimizer(config).update(groups, optimizer_state)
    rates = jax.tree.broadcast(learning_rate, parameters)
    return jax.tree.map(
        lambda p, s, rate: p - rate * s, parameters, ungroup_leaves(steps, parameters), rates
    ), next_state


def group_leaves(tree: PyTree) -> list[Array]:
    """The large leaves of a tree, then all small leaves as one vector.

    A dozen small arrays cost more to pass in and out than to compute. Large arrays cost more to
    copy: 0.9 of the 3.9 ms of a gradient step of DDPG (256-256).
    """
    leaves = jax.tree.leaves(tree)
    small = [leaf for leaf in leaves if leaf.size < LARGE]
    return [leaf for leaf in leaves if leaf.size >= LARGE] + ([flatten_tree(small)] if small else [])


def ungroup_leaves(groups: list[Array], like: PyTree) -> PyTree:
    """The inverse of `group_leaves`, for a tree of the same structure as `like`."""
    leaves, structure = jax.tree.flatten(like)
    large = iter(groups)
    ends = np.cumsum([leaf.size for leaf in leaves if leaf.size < LARGE])
    small = iter(jnp.split(groups[-1], ends[:-1]) if ends.size else [])
    found = [next(large) if leaf.size >= LARGE else next(small).reshape(leaf.shape) for leaf in leaves]
    return jax.tree.unflatten(structure, found)


def clip_by_norm(gradients: PyTree, max_grad_norm: float | None) -> tuple[PyTree, Array]:
    """Gradients scaled to at most this norm, and their norm before."""
    # Not vdot: it flattens, which would copy all of a matrix that is split over devices to each.
    norm = jnp.sqrt(sum(jnp.tensordot(g, g, g.ndim) for g in jax.tree.leaves(gradients)))
    if max_grad_norm is not None:
        scale = jnp.minimum(1.0, max_grad_norm / (norm + 1e-6))  # one factor for all keeps the direction
        gradients = jax.tree.map(lambda g: g * scale, gradients)
    return gradients, norm


def flatten_tree(tree: PyTree) -> Array:
    """The leaves of a tree as one vector, in the order of asynchronous ParameterLayout."""
    leaves = [leaf.reshape(-1) for leaf in jax.tree.leaves(tree)]
    return jnp.concatenate(leaves) if leaves else jnp.zeros(0)


def first_mean_square(optimizer: str) -> float:
    """The initial mean of squared gradients."""
    return 1.0 if optimizer == "rmsprop-tf" else 0.0


def shared_rmsprop(
    weights: np.ndarray, mean_squares: np.ndarray, gradients: np.ndarray, learning_rate: float, config: OptimizerConfig
) -> None:
    """g ← αg + (1-α)Δθ² and θ ← θ - ηΔθ/√(g + ε), in place (Mnih et al. 2016, eqs. S2 and S3).

    PyTorch's form divides by √g + ε. Other actor-learners may write to both arrays at the same
    time: parts of an update are lost now and then, which costs less than locks. A gradient of all
    zeros means that no step was valid; it leaves g unchanged, too.
    """
    if not gradients.any():
        return
    decay = config.rmsprop_decay
    epsilon = np.float32(config.optimizer_epsilon)
    mean_squares *= np.float32(decay)
    mean_squares += np.float32(1.0 - decay) * gradients * gradients
    roots = np.sqrt(mean_squares + epsilon) if config.optimizer == "rmsprop-tf" else np.sqrt(mean_squares) + epsilon
    weights -= np.float32(learning_rate) * gradients / roots


def soft_update(target: PyTree, parameters: PyTree, rate: Array | float) -> PyTree:
    """(1 - τ) target + τ parameters (Lillicrap et al. 2016, algorithm 1); exact for τ = 0 and 1."""
    return jax.tree.map(lambda t, p: (1.0 - rate) * t + rate * p, target, parameters)


def learning_rates(network: Any, rate: Any, value_rate: Any | None) -> tuple[PyTree, Metrics]:
    """The learning rate of the network, or a tree with that of each parameter; and the metrics."""
    metrics = {"optimizer/learning_rate": rate}
    if value_rate is None:
        return rate, metrics
    rates = jax.tree.map(lambda _: rate, network)
    critic, value_head = jax.tree.map(lambda _: value_rate, (network.critic, network.value_head))
    return replace(rates, critic=critic, value_head=value_head), metrics | {"optimizer/value_learning_rate": value_rate}


def require_value_network(network: Any, value_learning_rate: Rate | None) -> None:
    """Raise ConfigError if there is a value_learning_rate, but no value network apart to use it."""
    if value_learning_rate is None:
        return
    wrong = f"value_learning_rate {value_learning_rate} needs a value network apart from the policy"
    unknown = f"which parameters of {type(network).__name__} are the value's is not known"
    remedy = "use None, or let make_network return birl.nets.models.ActorCritic"
    require(isinstance(network, ActorCritic), f"{wrong}, and {unknown}; {remedy}")
    require(network.critic is not None, f"{wrong}, and this ActorCritic has one trunk for both; use None")
