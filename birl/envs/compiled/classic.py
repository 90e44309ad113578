"""Gymnasium's classic control environments in JAX, with the same physics."""

from dataclasses import dataclass
from typing import ClassVar

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np

from birl.types import Array

GRAVITY = 9.8  # of CartPole and Acrobot

POLE_MASS = 0.1
CART_MASS = 1.0 + POLE_MASS  # with the pole
HALF_POLE = 0.5  # half its length
CART_FORCE = 10.0
CART_SECONDS = 0.02  # of a step of CartPole
TRACK_END = 2.4  # the position beyond which the cart falls off
MOST_POLE_ANGLE = 12 * 2 * np.pi / 360
_CART_BOUNDS = np.array([2 * TRACK_END, np.inf, 2 * MOST_POLE_ANGLE, np.inf], np.float32)


@dataclass(frozen=True)
class CartPole:
    """CartPole-v1 (Barto, Sutton and Anderson 1983): a pole on a cart pushed left or right.

    The episode ends when the pole falls. The state is the observation: position, velocity, angle,
    angular velocity.
    """

    sutton_barto_reward: bool = False  # -1 at the fall and 0 before; False: 1 for each step

    observation_space: ClassVar[gym.Space] = gym.spaces.Box(-_CART_BOUNDS, _CART_BOUNDS)
    action_space: ClassVar[gym.Space] = gym.spaces.Discrete(2)
    max_episode_steps: ClassVar[int] = 500

    def reset(self, key: Array) -> tuple[Array, Array]:
        """Everything near 0."""
        state = jax.random.uniform(key, (4,), minval=-0.05, maxval=0.05)
        return state, state

    def step(self, state: Array, action: Array, key: Array) -> tuple[Array, Array, Array, Array, Array]:
        """One step of Euler's method."""
        _, velocity, angle, spin = state
        force = jnp.where(action == 1, CART_FORCE, -CART_FORCE)
        cosine, sine = jnp.cos(angle), jnp.sin(angle)
        push = (force + POLE_MASS * HALF_POLE * spin**2 * sine) / CART_MASS
        inertia = HALF_POLE * (4.0 / 3.0 - POLE_MASS * cosine**2 / CART_MASS)
        angular = (GRAVITY * sine - cosine * push) / inertia
        linear = push - POLE_MASS * HALF_POLE * angular * cosine / CART_MASS
        change = jnp.stack([velocity, linear, spin, angular])
        state = state + CART_SECONDS * change
        fell = (jnp.abs(state[0]) > TRACK_END) | (jnp.abs(state[2]) > MOST_POLE_ANGLE)
        reward = jnp.where(fell, -1.0, 0.0) if self.sutton_barto_reward else jnp.float32(1.0)
        return state, state, reward, fell, jnp.bool_(False)


SLOPE = 0.0025  # gravity along the steepest slope
LEFT_WALL = -1.2
RIGHT_WALL = 0.6
MOST_CAR_SPEED = 0.07
_CAR_LOW = np.array([LEFT_WALL, -MOST_CAR_SPEED], np.float32)
_CAR_HIGH = np.array([RIGHT_WALL, MOST_CAR_SPEED], np.float32)


@dataclass(frozen=True)
class MountainCar:
    """MountainCar-v0 (Moore 1990): a car between two hills.

    It is too weak to drive up the right one without a run-up. The state is the observation:
    position and velocity. Actions are left, nothing and right.
    """

    goal_velocity: float = 0.0  # the least velocity at the goal

    observation_space: ClassVar[gym.Space] = gym.spaces.Box(_CAR_LOW, _CAR_HIGH)
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
    """MountainCarContinuous-v0: the same car with a force from -1 to 1."""

    goal_velocity: float = 0.0  # the least velocity at the goal

    observation_space: ClassVar[gym.Space] = gym.spaces.Box(_CAR_LOW, _CAR_HIGH)
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
    velocity = jnp.clip(velocity + push - SLOPE * jnp.cos(3 * position), -MOST_CAR_SPEED, MOST_CAR_SPEED)
    position = jnp.clip(position + velocity, LEFT_WALL, RIGHT_WALL)
    velocity = jnp.where(position == LEFT_WALL, jnp.maximum(velocity, 0.0), velocity)
    return jnp.stack([position, velocity])


LINK_MASS = 1.0  # of each link
LINK_LENGTH = 1.0  # of the first link
HALF_LINK = 0.5  # of each link: where its mass is
LINK_INERTIA = 1.0  # of each link
ACROBOT_SECONDS = 0.2  # of a step of Acrobot
MOST_JOINT_SPIN = np.array([4 * np.pi, 9 * np.pi])  # radians a second, of each joint
_ACROBOT_BOUNDS = np.array([1, 1, 1, 1, *MOST_JOINT_SPIN], np.float32)


@dataclass(frozen=True)
class Acrobot:
    """Acrobot-v1 (Sutton 1996): two links that hang from a hinge.

    A motor at the elbow swings their end up. The state is the angles of the two joints, 0 hanging
    down, and their angular velocities. The observation has the cosine and the sine of each angle
    instead of the angle.
    """

    observation_space: ClassVar[gym.Space] = gym.spaces.Box(-_ACROBOT_BOUNDS, _ACROBOT_BOUNDS)
    action_space: ClassVar[gym.Space] = gym.spaces.Discrete(3)
    max_episode_steps: ClassVar[int] = 500

    def reset(self, key: Array) -> tuple[Array, Array]:
        """Both links nearly at rest, hanging down."""
        state = jax.random.uniform(key, (4,), minval=-0.1, maxval=0.1)
        return state, observe_links(state)

    def step(self, state: Array, action: Array, key: Array) -> tuple[Array, Array, Array, Array, Array]:
        """One step of the Runge-Kutta method of fourth order."""
        torque = action - 1.0
        first = link_slopes(state, torque)
        second = link_slopes(state + ACROBOT_SECONDS / 2 * first, torque)
        third = link_slopes(state + ACROBOT_SECONDS / 2 * second, torque)
        fourth = link_slopes(state + ACROBOT_SECONDS * third, torque)
        state = state + ACROBOT_SECONDS / 6 * (first + 2 * second + 2 * third + fourth)
        angles = state[:2] - 2 * jnp.pi * jnp.round(state[:2] / (2 * jnp.pi))
        state = jnp.concatenate([angles, jnp.clip(state[2:], -MOST_JOINT_SPIN, MOST_JOINT_SPIN)])
        reached = -jnp.cos(angles[0]) - jnp.cos(angles[0] + angles[1]) > 1.0
        return state, observe_links(state), jnp.where(reached, 0.0, -1.0), reached, jnp.bool_(False)


def observe_links(state: Array) -> Array:
    """[6] what the policy sees of a state."""
    cosines, sines = jnp.cos(state[:2]), jnp.sin(state[:2])
    return jnp.stack([cosines[0], sines[0], cosines[1], sines[1], state[2], state[3]])


def link_slopes(state: Array, torque: Array) -> Array:
    """[4] the time derivative of a state (Sutton and Barto 1998, section 11.3)."""
    shoulder, elbow, shoulder_spin, elbow_spin = state
    cosine, sine = jnp.cos(elbow), jnp.sin(elbow)
    coupling = LINK_MASS * LINK_LENGTH * HALF_LINK
    both = 2 * LINK_MASS * HALF_LINK**2 + LINK_MASS * LINK_LENGTH**2 + 2 * coupling * cosine + 2 * LINK_INERTIA  # d₁
    second = LINK_MASS * HALF_LINK**2 + coupling * cosine + LINK_INERTIA  # d₂
    second_weight = LINK_MASS * HALF_LINK * GRAVITY * jnp.sin(shoulder + elbow)  # φ₂
    weight = LINK_MASS * (HALF_LINK + LINK_LENGTH) * GRAVITY * jnp.sin(shoulder) + second_weight
    turning = weight - coupling * sine * elbow_spin * (elbow_spin + 2 * shoulder_spin)  # φ₁
    push = torque + second / both * turning - coupling * sine * shoulder_spin**2 - second_weight
    elbow_change = push / (LINK_MASS * HALF_LINK**2 + LINK_INERTIA - second**2 / both)
    shoulder_change = -(second * elbow_change + turning) / both
    return jnp.stack([shoulder_spin, elbow_spin, shoulder_change, elbow_change])


PENDULUM_SECONDS = 0.05  # of a step of Pendulum
MOST_ROD_SPIN = 8.0  # radians a second
MOST_TORQUE = 2.0
_PENDULUM_BOUNDS = np.array([1, 1, MOST_ROD_SPIN], np.float32)


@dataclass(frozen=True)
class Pendulum:
    """Pendulum-v1: a rod on a hinge with a motor too weak to lift it at once.

    It should stand up and stay. The state is the angle, 0 upright, and the angular velocity; the
    observation has the cosine and the sine of the angle instead.
    """

    g: float = 10.0  # the acceleration of gravity

    observation_space: ClassVar[gym.Space] = gym.spaces.Box(-_PENDULUM_BOUNDS, _PENDULUM_BOUNDS)
    action_space: ClassVar[gym.Space] = gym.spaces.Box(-MOST_TORQUE, MOST_TORQUE, (1,))
    max_episode_steps: ClassVar[int] = 200

    def reset(self, key: Array) -> tuple[Array, Array]:
        """Any angle, slowly turning."""
        most = jnp.array([jnp.pi, 1.0])
        state = jax.random.uniform(key, (2,), minval=-most, maxval=most)
        return state, observe_rod(state)

    def step(self, state: Array, action: Array, key: Array) -> tuple[Array, Array, Array, Array, Array]:
        """One step of semi-implicit Euler's method; the reward is of the state before it."""
        angle, spin = wrapped(state[0]), state[1]
        torque = jnp.clip(action[0], -MOST_TORQUE, MOST_TORQUE)
        reward = -(angle**2 + 0.1 * spin**2 + 0.001 * torque**2)
        spin = spin + PENDULUM_SECONDS * (1.5 * self.g * jnp.sin(angle) + 3.0 * torque)
        spin = jnp.clip(spin, -MOST_ROD_SPIN, MOST_ROD_SPIN)
        # Gymnasium counts the turns; a small angle has more exact digits.
        state = jnp.stack([wrapped(angle + PENDULUM_SECONDS * spin), spin])
        return state, observe_rod(state), reward, jnp.bool_(False), jnp.bool_(False)


def observe_rod(state: Array) -> Array:
    """[3] what the policy sees of a state."""
    return jnp.stack([jnp.cos(state[0]), jnp.sin(state[0]), state[1]])


def wrapped(angle: Array) -> Array:
    """The same angle between -π and π."""
    return angle - 2 * jnp.pi * jnp.round(angle / (2 * jnp.pi))
