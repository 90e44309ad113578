"""A small robot that pulls itself along the ground by an arm with two motors."""

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, NamedTuple

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np

from birl.types import Array

GRAVITY = 9.81
SUBSTEPS = 10
SECONDS = 0.004  # of a substep
BODY_MASS, BODY_LENGTH, BODY_HEIGHT = 1.5, 0.5, 0.12
BODY_INERTIA = BODY_MASS * (BODY_LENGTH**2 + BODY_HEIGHT**2) / 12
ARM = 0.25  # the length of each of its two links
ROTOR_INERTIA = 0.04  # of each motor, seen through its gear
TORQUE = 3.0  # of a motor at action 1
MOTOR_DAMPING = 0.15
STIFFNESS, DAMPING = 1500.0, 12.0  # of the ground
FRICTION = np.array([0.3, 0.3, 1.0])  # of the two lower edges of the body and of the arm's tip
LEAST_ANGLES, MOST_ANGLES = np.array([-0.6, -2.6]), np.array([1.2, -0.4])  # of shoulder and elbow
INERTIAS = np.array([BODY_MASS, BODY_MASS, BODY_INERTIA, ROTOR_INERTIA, ROTOR_INERTIA])
MOST_SPEEDS = np.array([5.0, 5.0, 15.0, 15.0, 15.0])
MOST_PITCH = 1.2  # radians
WEIGHT = np.array([0.0, -BODY_MASS * GRAVITY, 0.0, 0.0, 0.0])
PICTURE, PIXELS = (240, 480), 300  # height and width; pixels a metre


class CrawlerState(NamedTuple):
    """The coordinates and their velocities."""

    positions: Array  # [5] x, z, pitch, shoulder, elbow
    velocities: Array  # [5]


@dataclass(frozen=True)
class Crawler:
    """A box on the ground with an arm of two links, a shoulder and an elbow, at its front.

    It has five coordinates q: x and z of the box's centre, its pitch, and the angles of shoulder
    and elbow. The links have no mass, and motors have the inertia of their rotors as seen through
    their gears, so each coordinate has an inertia Mᵢ of its own: the box's mass twice, its moment
    of inertia, and the rotors'. Three points p(q) may touch the ground, z = 0: the box's rear and
    front lower edges, and the arm's tip, which alone is of rubber. With their Jacobians J = ∂p/∂q,
    each substep of h seconds is one of semi-implicit Euler's method:

        N = max(0, -k p_z - c J_z q̇) where p_z < 0, otherwise 0     a spring and a damper
        τ = τ_max action - d q̇ for the joints, 0 for the others     motors with friction
        q̇ ← q̇ + h (weight + τ + J_zᵀ N) / M
        q̇ ← q̇ + J_xᵀ λ / M, |λ| ≤ h μ N, for one point after another
        q ← q + h q̇

    λ is the impulse that stops the point's sliding, as far as Coulomb's friction μ N can. Joints
    stop at the ends of their ranges. Speeds are limited, so that no action makes a number infinite.

    The observation is z, pitch, shoulder, elbow, the five velocities, and the height of the tip.
    The reward is the mean forward speed in the step, in m/s, less what the motors cost. An episode
    ends when the box has fallen over.
    """

    control_weight: float = 0.05  # the cost of one motor at full torque

    observation_space: ClassVar[gym.Space] = gym.spaces.Box(-np.inf, np.inf, (10,))
    action_space: ClassVar[gym.Space] = gym.spaces.Box(-1.0, 1.0, (2,))  # torques of shoulder and elbow
    max_episode_steps: ClassVar[int] = 250  # 10 seconds

    def reset(self, key: Array) -> tuple[CrawlerState, Array]:
        """At rest, with the arm raised anyhow."""
        angles = jax.random.uniform(key, (2,), minval=jnp.array([0.2, -1.5]), maxval=jnp.array([1.0, -0.5]))
        positions = jnp.concatenate([jnp.array([0.0, BODY_HEIGHT / 2, 0.0]), angles])
        state = CrawlerState(positions, jnp.zeros(5))
        return state, observe(state)

    def step(self, state: CrawlerState, action: Array, key: Array) -> tuple[CrawlerState, Array, Array, Array, Array]:
        """The substeps of one step, in which the torques stay the same."""
        action = jnp.clip(action, -1.0, 1.0)
        after = jax.lax.fori_loop(0, SUBSTEPS, lambda _, state: substep(state, TORQUE * action), state)
        speed = (after.positions[0] - state.positions[0]) / (SUBSTEPS * SECONDS)
        fell = jnp.abs(after.positions[2]) > MOST_PITCH
        return after, observe(after), speed - self.control_weight * jnp.sum(action**2), fell, jnp.bool_(False)

    def render(self, state: CrawlerState) -> np.ndarray:
        """The robot from the side; the picture moves with it. The ground changes every 0.2 m."""
        x, height, pitch = np.asarray(state.positions, np.float64)[:3]
        joints = np.asarray(arm(state.positions), np.float64)
        rows, columns = np.indices(PICTURE)
        points = np.stack([x + (columns - PICTURE[1] / 2) / PIXELS, (PICTURE[0] - 24 - rows) / PIXELS], axis=-1)
        picture = np.full((*PICTURE, 3), [236, 240, 245], np.uint8)
        marks = (points[..., 0] % 0.4 < 0.2)[..., None]
        ground = points[..., 1] < 0
        picture[ground] = np.where(marks, [150, 140, 120], [176, 166, 146])[ground]
        across = points - [x, height]
        along = across @ [np.cos(pitch), np.sin(pitch)], across @ [-np.sin(pitch), np.cos(pitch)]
        box = (np.abs(along[0]) < BODY_LENGTH / 2) & (np.abs(along[1]) < BODY_HEIGHT / 2)
        picture[box] = [52, 101, 164]
        for start, end in pairwise(joints):
            picture[distances(points, start, end) < 0.018] = [70, 74, 84]
        for joint, colour in zip(joints, ([245, 170, 40], [245, 170, 40], [200, 45, 40]), strict=True):
            picture[distances(points, joint, joint) < 0.026] = colour
        return picture


def contacts(positions: Array) -> Array:
    """[3, 2] the points that may touch the ground: the rear and the front lower edge, the tip."""
    centre, pitch = positions[:2], positions[2]
    edges = [centre + turned(jnp.array([side * BODY_LENGTH / 2, -BODY_HEIGHT / 2]), pitch) for side in (-1, 1)]
    return jnp.stack([*edges, arm(positions)[2]])


def arm(positions: Array) -> Array:
    """[3, 2] the shoulder, the elbow and the tip."""
    pitch = positions[2]
    upper = pitch + positions[3]
    shoulder = positions[:2] + turned(jnp.array([BODY_LENGTH / 2, BODY_HEIGHT / 2]), pitch)
    elbow = shoulder + ARM * direction(upper)
    return jnp.stack([shoulder, elbow, elbow + ARM * direction(upper + positions[4])])


def direction(angle: Array) -> Array:
    """[2] one metre in the direction of an angle, 0 forwards."""
    return jnp.stack([jnp.cos(angle), jnp.sin(angle)])


def turned(point: Array, angle: Array) -> Array:
    """[2] a point turned about the origin."""
    cosine, sine = jnp.cos(angle), jnp.sin(angle)
    return jnp.stack([cosine * point[0] - sine * point[1], sine * point[0] + cosine * point[1]])


def substep(state: CrawlerState, torques: Array, seconds: float = SECONDS) -> CrawlerState:
    """The state a substep later."""
    positions, velocities = state
    heights = contacts(positions)[:, 1]
    slopes = jax.jacfwd(contacts)(positions)  # [3, 2, 5]
    springs = STIFFNESS * -heights - DAMPING * (slopes[:, 1] @ velocities)
    normals = jnp.where(heights < 0, jnp.maximum(springs, 0.0), 0.0)
    motors = jnp.concatenate([jnp.zeros(3), torques - MOTOR_DAMPING * velocities[3:]])
    velocities = velocities + seconds * (WEIGHT + motors + normals @ slopes[:, 1]) / INERTIAS
    velocities = stopped(positions, velocities, seconds)  # first: a joint at its stop must not push by friction
    for slope, most in zip(slopes[:, 0], seconds * FRICTION * normals, strict=True):
        stopping = -(slope @ velocities) / jnp.sum(slope**2 / INERTIAS)
        velocities = velocities + jnp.clip(stopping, -most, most) * slope / INERTIAS
    velocities = stopped(positions, jnp.clip(velocities, -MOST_SPEEDS, MOST_SPEEDS), seconds)
    return CrawlerState(positions + seconds * velocities, velocities)


def stopped(positions: Array, velocities: Array, seconds: float) -> Array:
    """[5] velocities that take no joint beyond its stops within a substep."""
    angles = positions[3:]
    spins = jnp.clip(velocities[3:], (LEAST_ANGLES - angles) / seconds, (MOST_ANGLES - angles) / seconds)
    return jnp.concatenate([velocities[:3], spins])


def observe(state: CrawlerState) -> Array:
    """[10] what the policy sees of a state: everything but x, and the height of the tip."""
    return jnp.concatenate([state.positions[1:], state.velocities, contacts(state.positions)[2, 1:]])


def distances(points: np.ndarray, start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """[H, W] how far points are from the line between two points."""
    way = end - start
    share = np.clip((points - start) @ way / max(way @ way, 1e-9), 0.0, 1.0)
    return np.linalg.norm(points - start - share[..., None] * way, axis=-1)
