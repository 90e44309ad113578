"""A grid world that takes memory: a lamp at the start says which door at the end is right."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np

from birl.config import require
from birl.types import Array

FLOOR, WALL, DOOR, RED, BLUE = range(5)  # what a cell holds; RED and BLUE are lamps
MIDDLE = 2  # the row of the corridor
MOVES = np.array([[-1, 0], [1, 0], [0, -1], [0, 1]])  # up, down, left, right
COLOURS = np.array([[235, 235, 228], [74, 78, 92], [160, 112, 62], [220, 50, 47], [38, 98, 214]], np.uint8)
CELL = 32  # pixels


class MemoryGridState(NamedTuple):
    """Where the agent is, and which lamp is lit."""

    cell: Array  # [2] row and column
    lamp: Array  # RED: the upper door is right; BLUE: the lower


@dataclass(frozen=True)
class MemoryGrid:
    """A corridor with a lamp at its left end and two doors at its right end.

        # # # # # # # # # # # #
        # # # # # # # # # # D #      * the lamp, red or blue
        * A . . . . . . . . . #      A where the agent begins
        # # # # # # # # # # D #      D a door: the upper is right if the lamp is red
        # # # # # # # # # # # #

    The agent sees the 3 × 3 cells around it: of each, whether it is a wall, a door, a red lamp and
    a blue lamp. So it sees the lamp only from where it begins. What it sees between the doors is
    always the same: without memory it finds the right one in at most half of the episodes. An
    episode ends at a door. The reward is 1 for the right one and 0 for all else, so the mean return
    is the share of successes.
    """

    length: int = 8  # moves from the lamp to the doors

    observation_space: ClassVar[gym.Space] = gym.spaces.Box(0.0, 1.0, (36,))
    action_space: ClassVar[gym.Space] = gym.spaces.Discrete(4)  # up, down, left, right

    def __post_init__(self) -> None:
        wrong = f"length {self.length!r} of MemoryGrid"
        require(isinstance(self.length, int) and self.length >= 1, f"{wrong} must be a whole number of at least 1")

    @property
    def max_episode_steps(self) -> int:
        """Ten times as many steps as the way takes."""
        return 10 * (self.length + 1)

    def reset(self, key: Array) -> tuple[MemoryGridState, Array]:
        """Beside the lamp, which is red or blue with equal chances."""
        lamp = jnp.where(jax.random.bernoulli(key), RED, BLUE)
        state = MemoryGridState(jnp.array([MIDDLE, 1]), lamp)
        return state, self.observe(state)

    def step(
        self, state: MemoryGridState, action: Array, key: Array
    ) -> tuple[MemoryGridState, Array, Array, Array, Array]:
        """Move by one cell; walls and the lamp stop the agent."""
        grid = self.grid(state.lamp)
        there = state.cell + jnp.asarray(MOVES)[action]
        kind = grid[there[0], there[1]]
        moved = (kind == FLOOR) | (kind == DOOR)
        state = state._replace(cell=jnp.where(moved, there, state.cell))
        through = kind == DOOR
        right = through & ((there[0] < MIDDLE) == (state.lamp == RED))
        return state, self.observe(state), right.astype(jnp.float32), through, jnp.bool_(False)

    def grid(self, lamp: Array) -> Array:
        """[5, length + 3] what each cell holds."""
        cells = np.full((5, self.length + 3), WALL)
        cells[MIDDLE, 1:-1] = FLOOR
        cells[[MIDDLE - 1, MIDDLE + 1], -2] = DOOR
        return jnp.asarray(cells).at[MIDDLE, 0].set(lamp)

    def observe(self, state: MemoryGridState) -> Array:
        """[36] the cells around the agent."""
        view = jax.lax.dynamic_slice(self.grid(state.lamp), state.cell - 1, (3, 3))
        return (view[..., None] == jnp.arange(WALL, BLUE + 1)).astype(jnp.float32).reshape(-1)

    def render(self, state: MemoryGridState) -> np.ndarray:
        """The grid from above, with the agent as a green disk."""
        picture = COLOURS[np.asarray(self.grid(state.lamp))].repeat(CELL, axis=0).repeat(CELL, axis=1)
        rows, columns = np.indices(picture.shape[:2]) + 0.5
        top, left = (np.asarray(state.cell) + 0.5) * CELL
        picture[(rows - top) ** 2 + (columns - left) ** 2 < (0.35 * CELL) ** 2] = [40, 150, 70]
        return picture
