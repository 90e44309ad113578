"""What the State of every algorithm has in common: how it begins, how a rollout is counted."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import gymnasium as gym
import jax.numpy as jnp
import numpy as np

from birl.checks import require_config
from birl.maths.keys import stream
from birl.nets.allowance import spend
from birl.nets.normalize import Normalizer, initial_normalizer, update_normalizer
from birl.registry import require_supported
from birl.types import Array, Rollout

State = TypeVar("State", bound=Any)
Make = Callable[[np.random.Generator, gym.Space, gym.Space], Any]


class Beginning(NamedTuple):
    """What every fresh State begins with, the same for the same seed."""

    network: Any
    normalizer: Normalizer
    key: Array


def begin(
    config: Any,
    kind: type,
    observation_space: gym.Space,
    action_space: gym.Space,
    make: Make,
    key_shape: tuple[int, ...] = (2,),
) -> Beginning:
    """A network made by `make`, a normaliser and a random key, or several, for this Config.

    ConfigError if the algorithm does not support the action space.
    """
    require_config(config, kind)
    require_supported(config, action_space)
    rng = np.random.default_rng(config.run.seed)
    network = make(rng, observation_space, action_space)
    normalizer = initial_normalizer(observation_space, config.env.num_envs, config.normalize)
    spend(math.prod(key_shape))
    return Beginning(network, normalizer, rng.integers(2**32, size=key_shape, dtype=np.uint32))


def count_rollout(state: State, rollout: Rollout, discount: float) -> State:
    """The state with a rollout's steps counted, its moments updated and a new key."""
    return state._replace(
        normalizer=update_normalizer(state.normalizer, rollout, discount),
        key=stream(state.key, "next"),
        env_steps=state.env_steps + rollout.valid.sum(dtype=jnp.int32),
        updates=state.updates + 1,
    )
