"""The state of Gymnasium's vector CartPole, copied into a snapshot and back."""

from typing import TypeGuard

import gymnasium as gym
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv

from birl.envs.generators import generator_state, plain, set_generator_state
from birl.types import Snapshot


def is_native(vector_env: gym.vector.VectorEnv) -> TypeGuard[CartPoleVectorEnv]:
    """Whether the state of this vector environment can be copied.

    A wrapper around it does not count: it may have state of its own.
    """
    return type(vector_env) is CartPoleVectorEnv


def save_native(env: CartPoleVectorEnv) -> Snapshot:
    """CartPole's arrays, and the one generator that all its environments share."""
    if env.state is None:
        return Snapshot(exact=False, reason="the environments have not been reset yet")
    arrays = {"state": env.state.copy(), "steps": env.steps.copy(), "prev_done": env.prev_done.copy()}
    return Snapshot(arrays, {"tier": "native", "generator": plain(generator_state(env.np_random))})


def load_native(env: CartPoleVectorEnv, snapshot: Snapshot) -> None:
    """Put the environments where they were when `save_native` was called."""
    env.reset(seed=0)  # sets up whatever is not part of the state
    env.state = snapshot.arrays["state"].copy()  # type: ignore[assignment]
    env.steps = snapshot.arrays["steps"].copy()
    env.prev_done = snapshot.arrays["prev_done"].copy()
    set_generator_state(env.np_random, snapshot.values["generator"])
