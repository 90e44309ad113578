"""Acrobot-v1 in JAX (Sutton 1996), with the physics of Gymnasium's."""

from dataclasses import dataclass
from typing import ClassVar

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np

from birl.types import Array

GRAVITY = 9.8
MASS = 1.0  # of each link
LENGTH = 1.0  # of the first link
HALF_LENGTH = 0.5  # of each link: where its mass is
INERTIA = 1.0  # of each link
SECONDS = 0.2  # of a step
MOST_SPIN = np.array([4 * np.pi, 9 * np.pi])  # radians a second, of each joint
_BOUNDS = np.array([1, 1, 1, 1, *MOST_SPIN], np.float32)


@dataclass(frozen=True)
class Acrobot:
    """Two links that hang from a hinge; a motor at the elbow swings their end up.

    The state is the angles of the two joints, 0 hanging down, and their angular velocities. The
    observation has the cosine and the sine of each angle instead of the angle.
    """

    observation_space: ClassVar[gym.Space] = gym.spaces.Box(-_BOUNDS, _BOUNDS)
    action_space: ClassVar[gym.Space] = gym.spaces.Discrete(3)
    max_episode_steps: ClassVar[int] = 500

    def reset(self, key: Array) -> tuple[Array, Array]:
        """Both links nearly at rest, hanging down."""
        state = jax.random.uniform(key, (4,), minval=-0.1, maxval=0.1)
        return state, observe(state)

    def step(self, state: Array, action: Array, key: Array) -> tuple[Array, Array, Array, Array, Array]:
        """One step of the Runge-Kutta method of fourth order."""
        torque = action - 1.0
        first = slopes(state, torque)
        second = slopes(state + SECONDS / 2 * first, torque)
        third = slopes(state + SECONDS / 2 * second, torque)
        fourth = slopes(state + SECONDS * third, torque)
        state = state + SECONDS / 6 * (first + 2 * second + 2 * third + fourth)
        angles = state[:2] - 2 * jnp.pi * jnp.round(state[:2] / (2 * jnp.pi))
        state = jnp.concatenate([angles, jnp.clip(state[2:], -MOST_SPIN, MOST_SPIN)])
        reached = -jnp.cos(angles[0]) - jnp.cos(angles[0] + angles[1]) > 1.0
        return state, observe(state), jnp.where(reached, 0.0, -1.0), reached, jnp.bool_(False)


def observe(state: Array) -> Array:
    """[6] what the policy sees of a state."""
    cosines, sines = jnp.cos(state[:2]), jnp.sin(state[:2])
    return jnp.stack([cosines[0], sines[0], cosines[1], sines[1], state[2], state[3]])


def slopes(state: Array, torque: Array) -> Array:
    """[4] the time derivative of a state (Sutton and Barto 1998, section 11.3)."""
    shoulder, elbow, shoulder_spin, elbow_spin = state
    cosine, sine = jnp.cos(elbow), jnp.sin(elbow)
    coupling = MASS * LENGTH * HALF_LENGTH
    both = 2 * MASS * HALF_LENGTH**2 + MASS * LENGTH**2 + 2 * coupling * cosine + 2 * INERTIA  # d₁
    second = MASS * HALF_LENGTH**2 + coupling * cosine + INERTIA  # d₂
    second_weight = MASS * HALF_LENGTH * GRAVITY * jnp.sin(shoulder + elbow)  # φ₂
    weight = MASS * (HALF_LENGTH + LENGTH) * GRAVITY * jnp.sin(shoulder) + second_weight
    turning = weight - coupling * sine * elbow_spin * (elbow_spin + 2 * shoulder_spin)  # φ₁
    push = torque + second / both * turning - coupling * sine * shoulder_spin**2 - second_weight
    elbow_change = push / (MASS * HALF_LENGTH**2 + INERTIA - second**2 / both)
    shoulder_change = -(second * elbow_change + turning) / both
    return jnp.stack([shoulder_spin, elbow_spin, shoulder_change, elbow_change])
