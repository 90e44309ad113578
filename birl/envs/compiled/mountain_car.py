"""MountainCar-v0 and MountainCarContinuous-v0 in JAX (Moore 1990): Gymnasium's physics."""

from dataclasses import dataclass
from typing import ClassVar

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np

from birl.types import Array

GRAVITY = 0.0025
LEAST_POSITION = -1.2
MOST_POSITION = 0.6
MOST_SPEED = 0.07
_LOW = np.array([LEAST_POSITION, -MOST_SPEED], np.float32)
_HIGH = np.array([MOST_POSITION, MOST_SPEED], np.float32)


@dataclass(frozen=True)
class MountainCar:
    """A car between two hills, too weak to drive up the right one without a run-up.

    The state is the observation: position and velocity. Actions are left, nothing and right.
    """

    goal_velocity: float = 0.0  # the least velocity at the goal

    observation_space: ClassVar[gym.Space] = gym.spaces.Box(_LOW, _HIGH)
    action_space: ClassVar[gym.Space] = gym.spaces.Discrete(3)
    max_episode_steps: ClassVar[int] = 200

    def reset(self, key: Array) -> tuple[Array, Array]:
        """At rest in the valley."""
        state = at_rest(key)
        return state, state

    def step(self, state: Array, action: Array, key: Array) -> tuple[Array, Array, Array, Array, Array]:
        """-1 for each step until the car is at the goal."""
        state = driven(state, 0.001 * (action - 1))
        reached = (state[0] >= 0.5) & (state[1] >= self.goal_velocity)
        return state, state, jnp.float32(-1.0), reached, jnp.bool_(False)


@dataclass(frozen=True)
class MountainCarContinuous:
    """The same car with a force from -1 to 1."""

    goal_velocity: float = 0.0  # the least velocity at the goal

    observation_space: ClassVar[gym.Space] = gym.spaces.Box(_LOW, _HIGH)
    action_space: ClassVar[gym.Space] = gym.spaces.Box(-1.0, 1.0, (1,))
    max_episode_steps: ClassVar[int] = 999

    def reset(self, key: Array) -> tuple[Array, Array]:
        """At rest in the valley."""
        state = at_rest(key)
        return state, state

    def step(self, state: Array, action: Array, key: Array) -> tuple[Array, Array, Array, Array, Array]:
        """100 at the goal, less what the force costs."""
        state = driven(state, 0.0015 * jnp.clip(action[0], -1.0, 1.0))
        reached = (state[0] >= 0.45) & (state[1] >= self.goal_velocity)
        return state, state, 100.0 * reached - 0.1 * action[0] ** 2, reached, jnp.bool_(False)


def at_rest(key: Array) -> Array:
    """[2] a state near the lowest point of the valley, which is at -π/6."""
    return jnp.stack([jax.random.uniform(key, minval=-0.6, maxval=-0.4), jnp.float32(0.0)])


def driven(state: Array, push: Array) -> Array:
    """[2] the state after a step; a wall on the left stops the car."""
    position, velocity = state
    velocity = jnp.clip(velocity + push - GRAVITY * jnp.cos(3 * position), -MOST_SPEED, MOST_SPEED)
    position = jnp.clip(position + velocity, LEAST_POSITION, MOST_POSITION)
    velocity = jnp.where(position == LEAST_POSITION, jnp.maximum(velocity, 0.0), velocity)
    return jnp.stack([position, velocity])
