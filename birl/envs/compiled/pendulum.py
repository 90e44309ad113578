"""Pendulum-v1 in JAX, with the physics of Gymnasium's."""

from dataclasses import dataclass
from typing import ClassVar

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np

from birl.types import Array

SECONDS = 0.05  # of a step
MOST_SPIN = 8.0  # radians a second
MOST_TORQUE = 2.0
_BOUNDS = np.array([1, 1, MOST_SPIN], np.float32)


@dataclass(frozen=True)
class Pendulum:
    """A rod on a hinge with a motor too weak to lift it at once; it should stand up and stay.

    The state is the angle, 0 upright, and the angular velocity; the observation has the cosine and
    the sine of the angle instead.
    """

    g: float = 10.0  # the acceleration of gravity

    observation_space: ClassVar[gym.Space] = gym.spaces.Box(-_BOUNDS, _BOUNDS)
    action_space: ClassVar[gym.Space] = gym.spaces.Box(-MOST_TORQUE, MOST_TORQUE, (1,))
    max_episode_steps: ClassVar[int] = 200

    def reset(self, key: Array) -> tuple[Array, Array]:
        """Any angle, slowly turning."""
        most = jnp.array([jnp.pi, 1.0])
        state = jax.random.uniform(key, (2,), minval=-most, maxval=most)
        return state, observe(state)

    def step(self, state: Array, action: Array, key: Array) -> tuple[Array, Array, Array, Array, Array]:
        """One step of semi-implicit Euler's method; the reward is of the state before it."""
        angle, spin = wrapped(state[0]), state[1]
        torque = jnp.clip(action[0], -MOST_TORQUE, MOST_TORQUE)
        reward = -(angle**2 + 0.1 * spin**2 + 0.001 * torque**2)
        spin = spin + SECONDS * (1.5 * self.g * jnp.sin(angle) + 3.0 * torque)
        spin = jnp.clip(spin, -MOST_SPIN, MOST_SPIN)
        # Gymnasium counts the turns; a small angle has more exact digits.
        state = jnp.stack([wrapped(angle + SECONDS * spin), spin])
        return state, observe(state), reward, jnp.bool_(False), jnp.bool_(False)


def observe(state: Array) -> Array:
    """[3] what the policy sees of a state."""
    return jnp.stack([jnp.cos(state[0]), jnp.sin(state[0]), state[1]])


def wrapped(angle: Array) -> Array:
    """The same angle between -π and π."""
    return angle - 2 * jnp.pi * jnp.round(angle / (2 * jnp.pi))
