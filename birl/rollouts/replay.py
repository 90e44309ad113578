"""What was lived through, kept to learn from again: past rollouts in a ring of known size.

Rows are kept in a rollout's order, so the successor of a row is the next one: no observation is
kept twice, and an episode's last one is in the row in which its environment reset itself. Of
stacked frames only the newest is kept; the others are in the rows before.
"""

from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from birl.config import ConfigError, require
from birl.errors import snapshot_errors
from birl.rollouts.sum_tree import SumTree
from birl.types import Array, PyTree, Rollout, Snapshot, Transitions

LEAST_ERROR = 1e-6  # so that a transition without any error may be drawn again


class Indices(NamedTuple):
    """Where transitions lie, and how they were drawn; arrays of one shape."""

    rows: np.ndarray  # counted from the first ever written
    envs: np.ndarray
    probabilities: np.ndarray  # of each to have been drawn, up to a factor


class Replay:
    """The newest rollouts: as many as hold `size` transitions, and one more, whose successors are
    not all there yet.
    """

    def __init__(
        self,
        size: int,
        like: Rollout,
        discount: float,  # γ
        n_step: int = 1,  # rewards in a transition
        frame_stack: int = 1,  # frames in an observation; each is kept once
        priority_exponent: float
        | None = None,  # α: draw in proportion to |error|^α (Schaul et al. 2016, eq. 1); None: equal chances
    ):
        length, num_envs = like.rewards.shape
        require(
            size >= length * num_envs,
            f"replay_size {size} must hold a rollout: {length} steps of {num_envs} environments",
        )
        rollouts = -(-(size + (n_step + frame_stack - 1) * num_envs) // (length * num_envs)) + 1
        self.discount, self.n_step, self.frame_stack, self.priority_exponent = (
            discount,
            n_step,
            frame_stack,
            priority_exponent,
        )
        self.length, self.num_envs, self.rows = length, num_envs, rollouts * length
        steps = _kept(like, frame_stack)
        leaves = 0 if priority_exponent is None else self.rows * num_envs
        self.bytes = (
            sum(leaf.nbytes for leaf in jax.tree.leaves((steps, like.memory))) * rollouts + self.rows * num_envs
        )
        self.bytes += SumTree.bytes_of(leaves)
        _require_room(self.bytes, size)
        self.columns = jax.tree.map(lambda x: np.zeros((self.rows, *x.shape[1:]), x.dtype), steps)  # [rows, B, ...]
        self.memories = jax.tree.map(
            lambda x: np.zeros((rollouts, *x.shape), x.dtype), like.memory
        )  # before each rollout
        self.begins = np.zeros((self.rows, num_envs), bool)  # the row's observation is the first of an episode
        self.written = 0  # rows, ever
        self.tree = SumTree(leaves)
        self.largest = 1.0  # of the weights given so far: what a new transition gets

    def __len__(self) -> int:
        """Steps of environments that are kept."""
        return min(self.written, self.rows) * self.num_envs

    @property
    def recurrent(self) -> bool:
        """Whether there is memory from which sequences can begin."""
        return bool(jax.tree.leaves(self.memories))

    @property
    def drawable(self) -> range:
        """The rows that may be drawn, where they are valid: what is needed before and after them is
        there.
        """
        oldest = max(0, self.written - self.rows)
        first = oldest + self.frame_stack - 1 if oldest else 0
        return range(first, max(first, self.written - self.n_step))

    @property
    def ready(self) -> bool:
        """Whether there is something to draw, single steps and sequences."""
        begun = self.columns.valid[: self.drawable.stop][
            :64
        ]  # where environments died at once there may be no step at all
        return self.written >= 2 * self.length and len(self.drawable) > 0 and bool(begun.any())

    def add(self, rollout: Rollout) -> None:
        """Keep a rollout, in the place of the oldest."""
        place, drawable = self.written % self.rows, self.drawable
        rows = slice(place, place + self.length)
        before = self.columns.valid[place - 1] if self.written else np.zeros(self.num_envs, bool)
        self.begins[rows] = ~np.concatenate([before[None], rollout.valid[:-1]])
        if self.frame_stack > 1:
            jax.tree.map(
                partial(_require_stacks, begins=self.begins[rows], follows=rollout.valid), rollout.observations
            )
        _write(self.columns, rows, _kept(rollout, self.frame_stack))
        _write(self.memories, place // self.length, rollout.memory)
        self.written += self.length
        if self.priority_exponent is not None:
            self._weigh(
                np.arange(drawable.start, self.drawable.start), 0.0
            )  # the overwritten ones, and those whose frames are
            self._weigh(np.arange(drawable.stop, self.drawable.stop), self.largest)

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Indices:
        """Where transitions lie: with equal chances, or in proportion to their priorities."""
        if self.priority_exponent is not None:
            leaves = self.tree.find(rng.random(shape))
            ring, envs = np.divmod(leaves, self.num_envs)
            newest = self.written - 1
            return Indices(newest - (newest - ring) % self.rows, envs, self.tree.weights[leaves].astype(np.float32))
        rows, envs, missing = np.zeros(shape, np.int64), np.zeros(shape, np.int64), np.ones(shape, bool)
        while missing.any():  # a row in which an environment reset itself is drawn again
            rows[missing] = rng.integers(self.drawable.start, self.drawable.stop, missing.sum())
            envs[missing] = rng.integers(self.num_envs, size=missing.sum())
            missing = ~self.columns.valid[rows % self.rows, envs]
        return Indices(rows, envs, np.ones(shape, np.float32))

    def sample(self, key: Array, shape: tuple[int, ...]) -> Transitions:
        """Transitions drawn with this random key."""
        return self.transitions(self.draw(np.random.default_rng(np.asarray(key)), shape))

    def set_errors(self, indices: Indices, errors: np.ndarray) -> None:
        """Weigh transitions by their new errors, if they have priorities."""
        if self.priority_exponent is not None:
            weights = (np.abs(np.asarray(errors, np.float64)) + LEAST_ERROR) ** self.priority_exponent
            self.largest = max(self.largest, float(weights.max()))
            self.tree.set(self._leaves(indices.rows, indices.envs), weights)

    def transitions(self, indices: Indices) -> Transitions:
        """What happened there: n rewards, fewer where the episode ended, and the observation to
        bootstrap from.
        """
        columns, rows, envs = self.columns, indices.rows, indices.envs
        rewards, last = columns.rewards[rows % self.rows, envs], rows
        discounts = np.full(rows.shape, self.discount, np.float32)
        goes_on = np.ones(rows.shape, bool)
        for _ in range(1, self.n_step):
            here, following = (last % self.rows, envs), ((last + 1) % self.rows, envs)
            goes_on = goes_on & columns.valid[following] & ~columns.terminated[here] & ~columns.truncated[here]
            rewards = rewards + np.where(goes_on, discounts * columns.rewards[following], 0)
            discounts = np.where(goes_on, discounts * np.float32(self.discount), discounts)
            last = last + goes_on
        terminated, masks = columns.terminated[last % self.rows, envs], columns.action_masks
        return Transitions(
            observations=self._observations(rows, envs),
            actions=columns.actions[rows % self.rows, envs],
            rewards=rewards,
            discounts=np.where(terminated, np.float32(0), discounts),
            next_observations=self._observations(last + 1, envs),
            next_action_masks=None if masks is None else masks[(last + 1) % self.rows, envs],
        )

    def draw_sequences(self, rng: np.random.Generator, shape: tuple[int, int]) -> Rollout:
        """Whole rollouts of single environments, drawn with equal chances: G of [T, N, ...] in one,
        [G, T, N, ...].
        """
        oldest = -(-self.drawable.start // self.length)
        rollouts = rng.integers(oldest, self.written // self.length - 1, shape)
        envs = rng.integers(self.num_envs, size=shape)
        rows = rollouts[:, None] * self.length + np.arange(self.length + 1)[:, None]  # [G, T+1, N]
        every_env = np.broadcast_to(envs[:, None], rows.shape)
        columns, masks = self.columns._replace(observations=None, action_masks=None), self.columns.action_masks
        steps = jax.tree.map(lambda column: column[rows[:, :-1] % self.rows, every_env[:, :-1]], columns)
        slots = rollouts % (self.rows // self.length)
        memory = jax.tree.map(lambda memories: memories[slots, envs], self.memories)
        masks = None if masks is None else masks[rows % self.rows, every_env]
        resets = self.begins[rows[:, 0] % self.rows, envs]
        return steps._replace(
            observations=self._observations(rows, every_env), action_masks=masks, memory=memory, resets=resets
        )

    def snapshot(self, snapshot: Snapshot) -> Snapshot:
        """The world with what is kept here. The arrays are the replay's own: write them before it
        goes on.
        """
        kept = min(self.written, self.rows)
        arrays = {f"replay/{name}": column[: kept // rows] for name, (column, rows) in self._named().items()}
        values = {"written": self.written, "largest": self.largest}
        return Snapshot(snapshot.arrays | arrays, snapshot.values | {"replay": values}, snapshot.exact, snapshot.reason)

    @snapshot_errors()
    def restore(self, snapshot: Snapshot, fresh: np.ndarray) -> None:
        """Be as at the snapshot. Where an environment begins anew, its last step has no successor
        and is not drawn.
        """
        self.written, self.largest = (
            int(snapshot.values["replay"]["written"]),
            float(snapshot.values["replay"]["largest"]),
        )
        for name, (column, _) in self._named().items():
            saved = snapshot.arrays[f"replay/{name}"]
            column[: len(saved)] = saved
        if self.priority_exponent is not None:
            self.tree.set(np.arange(self.tree.size), self.tree.weights)
        if self.written:
            self.columns.valid[(self.written - 1) % self.rows, fresh] = False

    def _named(self) -> dict[str, tuple[np.ndarray, int]]:
        """All arrays by name, and how many rows each of their entries stands for."""
        arrays = [(leaf, 1) for leaf in jax.tree.leaves((self.columns, self.begins))]
        arrays += [(leaf, self.length) for leaf in jax.tree.leaves(self.memories)]
        if self.priority_exponent is not None:
            arrays.append((self.tree.weights[: self.rows * self.num_envs].reshape(self.rows, self.num_envs), 1))
        return {str(number): array for number, array in enumerate(arrays)}

    def _weigh(self, rows: np.ndarray, weight: float) -> None:
        """Give the transitions of these rows a weight; those that are not valid have none."""
        if rows.size:
            weights = np.where(self.columns.valid[rows % self.rows], weight, 0.0)
            self.tree.set(self._leaves(rows[:, None], np.arange(self.num_envs)), weights)

    def _leaves(self, rows: np.ndarray, envs: np.ndarray) -> np.ndarray:
        return (rows % self.rows) * self.num_envs + envs

    def _observations(self, rows: np.ndarray, envs: np.ndarray) -> PyTree:
        if self.frame_stack == 1:
            return jax.tree.map(lambda column: column[rows % self.rows, envs], self.columns.observations)
        frames = [rows]  # newest first; an episode's first frame stands for those before it
        for _ in range(self.frame_stack - 1):
            frames.append(frames[-1] - ~self.begins[frames[-1] % self.rows, envs])
        stacks = np.stack(frames[::-1], axis=-1) % self.rows
        return jax.tree.map(lambda column: column[stacks, envs[..., None]], self.columns.observations)


def _write(columns: PyTree, rows: slice | int, arrays: PyTree) -> None:
    for column, array in zip(jax.tree.leaves(columns), jax.tree.leaves(arrays), strict=True):
        column[rows] = array


def _kept(rollout: Rollout, frame_stack: int) -> Rollout:
    """The rows to keep of a rollout: its last observation, and what is allowed there, will be the
    next one's first.
    """
    newest = jax.tree.map(lambda x: _newest_frame(x, frame_stack)[:-1], rollout.observations)
    masks = None if rollout.action_masks is None else rollout.action_masks[:-1]
    return rollout._replace(observations=newest, action_masks=masks, memory=None, game_over=None, resets=None)


def _newest_frame(observations: np.ndarray, frame_stack: int) -> np.ndarray:
    """The last frame of each stack [T, B, frames, ...]; the observations themselves if they are no
    stacks.
    """
    if frame_stack == 1:
        return observations
    frames = observations.shape[2] if observations.ndim > 2 else 0
    require(
        frames == frame_stack,
        f"frame_stack {frame_stack} does not fit observations of shape {observations.shape[2:]}; use 1",
    )
    return observations[:, :, -1]


def _require_stacks(observations: np.ndarray, begins: np.ndarray, follows: np.ndarray) -> None:
    """Raise unless each stack is the one before with a frame more, and an episode's first is one
    frame repeated.
    """
    starts = observations[:-1][begins]
    grows = np.array_equal(observations[1:, :, :-1][follows], observations[:-1, :, 1:][follows])
    if not grows or np.any(starts[:, :-1] != starts[:, -1:]):
        raise ConfigError(
            "observations are not stacks of frames, newest last, that begin with one frame repeated; use frame_stack 1"
        )


def _require_room(needed: int, size: int) -> None:
    """Raise ConfigError if so many bytes are not free."""
    free = free_memory()
    if free is not None and needed > free:
        fits = (
            9 * size * free // (10 * needed)
        )  # others need some too, and a ring is a little larger than what it holds
        raise ConfigError(
            f"replay_size {size:,} needs {needed / 1e9:.1f} GB and {free / 1e9:.1f} GB are free; use at most {fits:,}"
        )


def free_memory(root: Path = Path("/")) -> int | None:
    """Bytes that can still be had, as far as Linux tells; None elsewhere."""
    groups = root / "sys/fs/cgroup"
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
        free = [1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable")]
        free.append(_left_to_group(groups, "memory.max", "memory.current"))
        free.append(_left_to_group(groups / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"))  # version 1
        return min(free)
    except OSError:
        return None


def _left_to_group(group: Path, limit: str, used: str) -> int:
    """Bytes that a container's limit leaves; very many if it has none."""
    if not (group / limit).exists() or (most := (group / limit).read_text().strip()) == "max":
        return 2**63
    sizes = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    # Files read or written count as used, and are given up as soon as memory is needed.
    files = int(sizes["active_file"]) + int(sizes["inactive_file"])
    return int(most) - int((group / used).read_text()) + files
