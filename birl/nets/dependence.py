"""Which parameters an output depends on, to split any network into its policy and its critic."""

from collections.abc import Callable

import equinox as eqx
import gymnasium as gym
import jax
import numpy as np
from gymnasium import spaces
from jax.interpreters.partial_eval import dce_jaxpr

from birl.config import require
from birl.nets.models import ActorCriticLike
from birl.types import PyTree


def leaves_used(function: Callable[[PyTree], PyTree], tree: PyTree) -> PyTree:
    """The tree with True for each leaf that the function's result depends on.

    The function is traced, not computed.
    """
    leaves, structure = jax.tree.flatten(tree)
    traced = jax.make_jaxpr(lambda *leaves: function(jax.tree.unflatten(structure, leaves)))(*leaves)
    _, used = dce_jaxpr(traced.jaxpr, [True] * len(traced.jaxpr.outvars))
    return jax.tree.unflatten(structure, used)


def split_actor_critic(network: ActorCriticLike, observations: PyTree) -> tuple[PyTree, PyTree]:
    """The leaves that the policy depends on, and all others; None in the place of missing leaves.

    eqx.combine joins them. Of the observations [T, B, ...], only shape and type matter.
    """
    observations = jax.tree.map(lambda o: np.zeros((1, 1, *o.shape[2:]), o.dtype), observations)
    resets = np.zeros((1, 1), bool)
    memory = network.initial_memory(1)
    used = leaves_used(lambda network: network(observations, memory, resets, None)[0], network)
    return eqx.partition(network, used)


def require_own_critic(network: ActorCriticLike, space: gym.Space) -> PyTree:
    """The leaves that only the critic depends on; ConfigError if there are none."""
    parts = dict(space.spaces) if isinstance(space, spaces.Dict) else space
    observations = jax.tree.map(
        lambda part: np.zeros((1, 1, *part.shape), part.dtype), parts, is_leaf=lambda part: isinstance(part, gym.Space)
    )
    _, critic = split_actor_critic(network, observations)
    wrong = f"the policy of {type(network).__name__} uses all of its parameters"
    require(len(jax.tree.leaves(critic)) > 0, f"{wrong}; give its value function parameters of its own")
    return critic
