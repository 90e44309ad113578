"""CartPole-v1 in JAX (Barto, Sutton and Anderson 1983), with the physics of Gymnasium's."""

from dataclasses import dataclass
from typing import ClassVar

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np

from birl.types import Array

GRAVITY = 9.8
POLE_MASS = 0.1
TOTAL_MASS = 1.0 + POLE_MASS
HALF_LENGTH = 0.5  # of the pole
FORCE = 10.0
SECONDS = 0.02  # of a step
MOST_POSITION = 2.4
MOST_ANGLE = 12 * 2 * np.pi / 360
_BOUNDS = np.array([2 * MOST_POSITION, np.inf, 2 * MOST_ANGLE, np.inf], np.float32)


@dataclass(frozen=True)
class CartPole:
    """A pole on a cart that is pushed left or right; the episode ends when it falls.

    The state is the observation: position, velocity, angle, angular velocity.
    """

    sutton_barto_reward: bool = False  # -1 at the fall and 0 before; False: 1 for each step

    observation_space: ClassVar[gym.Space] = gym.spaces.Box(-_BOUNDS, _BOUNDS)
    action_space: ClassVar[gym.Space] = gym.spaces.Discrete(2)
    max_episode_steps: ClassVar[int] = 500

    def reset(self, key: Array) -> tuple[Array, Array]:
        """Everything near 0."""
        state = jax.random.uniform(key, (4,), minval=-0.05, maxval=0.05)
        return state, state

    def step(self, state: Array, action: Array, key: Array) -> tuple[Array, Array, Array, Array, Array]:
        """One step of Euler's method."""
        _, velocity, angle, spin = state
        force = jnp.where(action == 1, FORCE, -FORCE)
        cosine, sine = jnp.cos(angle), jnp.sin(angle)
        push = (force + POLE_MASS * HALF_LENGTH * spin**2 * sine) / TOTAL_MASS
        inertia = HALF_LENGTH * (4.0 / 3.0 - POLE_MASS * cosine**2 / TOTAL_MASS)
        angular = (GRAVITY * sine - cosine * push) / inertia
        linear = push - POLE_MASS * HALF_LENGTH * angular * cosine / TOTAL_MASS
        change = jnp.stack([velocity, linear, spin, angular])
        state = state + SECONDS * change
        fell = (jnp.abs(state[0]) > MOST_POSITION) | (jnp.abs(state[2]) > MOST_ANGLE)
        reward = jnp.where(fell, -1.0, 0.0) if self.sutton_barto_reward else jnp.float32(1.0)
        return state, state, reward, fell, jnp.bool_(False)
