"""The replay: past rollouts in a ring of fixed size.

Rows are kept in a rollout's order, so the successor of a row is the next row: no observation is
kept twice, and an episode's last observation is in the row in which its environment reset itself.
Of stacked frames only the newest is kept; the others are in the rows before.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from birl.config import ConfigError, require
from birl.errors import snapshot_errors
from birl.rollouts.frame_stacks import newest_frame, require_stacks
from birl.rollouts.free_memory import free_memory
from birl.rollouts.sum_tree import SumTree
from birl.types import Array, PyTree, Rollout, Snapshot, Transitions

LEAST_ERROR = 1e-6  # so that a transition with an error of 0 can be sampled again


class Indices(NamedTuple):
    """Where sampled transitions are in the replay; arrays of one shape."""

    rows: Array  # counted from the first row that was ever written
    envs: Array
    probabilities: Array  # with which each was sampled, up to a factor


class Replay:
    """The newest rollouts that hold `size` transitions, and one more for their successors."""

    def __init__(
        self,
        size: int,
        like: Rollout,
        discount: float,  # γ
        n_step: int = 1,  # rewards in a transition
        frame_stack: int = 1,  # frames in an observation; each is kept once
        priority_exponent: float | None = None,  # α of Schaul et al. 2016; None: sample uniformly
    ):
        length, num_envs = like.rewards.shape
        require(
            size >= length * num_envs,
            f"replay_size {size} must hold a rollout: {length} steps of {num_envs} environments",
        )
        rollouts = -(-(size + (n_step + frame_stack - 1) * num_envs) // (length * num_envs)) + 1
        self.discount = discount
        self.n_step = n_step
        self.frame_stack = frame_stack
        self.priority_exponent = priority_exponent
        self.length = length
        self.num_envs = num_envs
        self.ring_size = rollouts * length  # rows
        steps = kept_part(like, frame_stack)
        entries = 0 if priority_exponent is None else self.ring_size * num_envs
        kept_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves((steps, like.memory)))
        self.bytes = kept_bytes * rollouts + self.ring_size * num_envs + SumTree.bytes_of(entries)
        _require_room(self.bytes, size)
        # [ring_size, B, ...]
        self.columns = jax.tree.map(lambda x: np.zeros((self.ring_size, *x.shape[1:]), x.dtype), steps)
        # The memory before each rollout.
        self.memories = jax.tree.map(lambda x: np.zeros((rollouts, *x.shape), x.dtype), like.memory)
        self.begins = np.zeros((self.ring_size, num_envs), bool)  # the row holds the first observation of an episode
        self.continues = np.zeros(num_envs, bool)  # the older frames of the next row are in the rows before it
        self.written = 0  # rows that were ever written
        self.tree = SumTree(entries)
        self.largest = 1.0  # largest weight so far: that of a new transition

    def __len__(self) -> int:
        """The number of environment steps in the replay."""
        return min(self.written, self.ring_size) * self.num_envs

    @property
    def recurrent(self) -> bool:
        """Whether recurrent memory is stored, so that sequences can be sampled."""
        return bool(jax.tree.leaves(self.memories))

    @property
    def sampleable(self) -> range:
        """The rows that may be sampled where valid: their frames and successors are in the ring."""
        oldest = max(0, self.written - self.ring_size)
        first = oldest + self.frame_stack - 1 if oldest else 0
        return range(first, max(first, self.written - self.n_step))

    @property
    def ready(self) -> bool:
        """Whether there is something to sample, single steps as well as sequences."""
        # No row is valid yet if every environment failed in its first steps.
        rows = self.columns.valid[: self.sampleable.stop]
        return self.written >= 2 * self.length and len(self.sampleable) > 0 and bool(rows.any())

    @property
    def last_valid(self) -> np.ndarray:
        """[B] whether the last row is a step, whose successor is the next row."""
        return self.columns.valid[(self.written - 1) % self.ring_size] & (self.written > 0)

    def add(self, rollout: Rollout) -> None:
        """Add a rollout; it replaces the oldest."""
        begins = ~np.concatenate([(self.last_valid | self.continues)[None], rollout.valid[:-1]])
        if self.frame_stack > 1:
            jax.tree.map(partial(require_stacks, begins=begins, follows=rollout.valid), rollout.observations)
        self.append(kept_part(rollout, self.frame_stack), begins, rollout.memory)
        self.continues = np.zeros(self.num_envs, bool)

    def append(self, steps: Rollout, begins: np.ndarray, memory: PyTree) -> None:
        """Write as many rows as a rollout has, without its last observation and older frames."""
        sampleable_before = self.sampleable
        start = self.written % self.ring_size
        span = slice(start, start + self.length)
        self.begins[span] = begins
        _write(self.columns, span, steps)
        _write(self.memories, start // self.length, memory)
        self.written += self.length
        if self.priority_exponent is not None:
            # These rows are overwritten now, or some of their stacked frames are.
            self._set_weights(np.arange(sampleable_before.start, self.sampleable.start), 0.0)
            self._set_weights(np.arange(sampleable_before.stop, self.sampleable.stop), self.largest)

    def rng(self, key: Array) -> np.random.Generator:
        """What `sample_indices` and `sample_sequences` take for randomness."""
        return np.random.default_rng(np.asarray(key))

    def sample_indices(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Indices:
        """Indices of transitions, sampled uniformly or in proportion to their priorities."""
        if self.priority_exponent is not None:
            entries = self.tree.find(rng.random(shape))
            ring, envs = np.divmod(entries, self.num_envs)
            newest = self.written - 1
            rows = newest - (newest - ring) % self.ring_size
            return Indices(rows, envs, self.tree.weights[entries].astype(np.float32))
        rows = np.zeros(shape, np.int64)
        envs = np.zeros(shape, np.int64)
        missing = np.ones(shape, bool)
        while missing.any():  # rows in which an environment reset itself are sampled again
            rows[missing] = rng.integers(self.sampleable.start, self.sampleable.stop, missing.sum())
            envs[missing] = rng.integers(self.num_envs, size=missing.sum())
            missing = ~self.columns.valid[rows % self.ring_size, envs]
        return Indices(rows, envs, np.ones(shape, np.float32))

    def sample(self, key: Array, shape: tuple[int, ...]) -> Transitions:
        """Transitions sampled with this random key."""
        return self.gather(self.sample_indices(self.rng(key), shape))

    def set_errors(self, indices: Indices, errors: np.ndarray) -> None:
        """Set the priorities of transitions to their new errors, if there are priorities.

        A priority is (|δ| + 1e-6)^α (Schaul et al. 2016, eq. 1).
        """
        if self.priority_exponent is not None:
            weights = (np.abs(np.asarray(errors, np.float64)) + LEAST_ERROR) ** self.priority_exponent
            self.largest = max(self.largest, float(weights.max()))
            self.tree.set(self._entries(indices.rows, indices.envs), weights)

    def gather(self, indices: Indices) -> Transitions:
        """The transitions at these indices, of up to n rewards (Sutton & Barto 2018, eq. 7.1)."""
        columns = self.columns
        rows = indices.rows
        envs = indices.envs
        last = rows  # the row of the transition's last reward
        rewards = columns.rewards[rows % self.ring_size, envs]
        discounts = np.full(rows.shape, self.discount, np.float32)
        goes_on = np.ones(rows.shape, bool)
        for _ in range(1, self.n_step):
            here = (last % self.ring_size, envs)
            following = ((last + 1) % self.ring_size, envs)
            goes_on = goes_on & columns.valid[following] & ~columns.terminated[here] & ~columns.truncated[here]
            rewards = rewards + np.where(goes_on, discounts * columns.rewards[following], 0)
            discounts = np.where(goes_on, discounts * np.float32(self.discount), discounts)
            last = last + goes_on
        terminated = columns.terminated[last % self.ring_size, envs]
        masks = columns.action_masks
        return Transitions(
            observations=self.observations(rows, envs),
            actions=columns.actions[rows % self.ring_size, envs],
            rewards=rewards,
            discounts=np.where(terminated, np.float32(0), discounts),
            next_observations=self.observations(last + 1, envs),
            next_action_masks=None if masks is None else masks[(last + 1) % self.ring_size, envs],
        )

    def sample_sequences(self, rng: np.random.Generator, shape: tuple[int, int]) -> Rollout:
        """Sequences, sampled uniformly: rollouts of one environment each, arrays [G, T, N, ...]."""
        oldest = -(-self.sampleable.start // self.length)
        rollouts = rng.integers(oldest, self.written // self.length - 1, shape)
        envs = rng.integers(self.num_envs, size=shape)
        rows = rollouts[:, None] * self.length + np.arange(self.length + 1)[:, None]  # [G, T+1, N]
        every_env = np.broadcast_to(envs[:, None], rows.shape)
        columns = self.columns._replace(observations=None, action_masks=None)
        masks = self.columns.action_masks
        steps = jax.tree.map(lambda column: column[rows[:, :-1] % self.ring_size, every_env[:, :-1]], columns)
        slots = rollouts % (self.ring_size // self.length)
        memory = jax.tree.map(lambda memories: memories[slots, envs], self.memories)
        masks = None if masks is None else masks[rows % self.ring_size, every_env]
        resets = self.begins[rows[:, 0] % self.ring_size, envs]
        return steps._replace(
            observations=self.observations(rows, every_env), action_masks=masks, memory=memory, resets=resets
        )

    def snapshot(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot with the replay's arrays added.

        They are not copied: write them before training continues.
        """
        kept = min(self.written, self.ring_size)
        arrays = {f"replay/{name}": column[: kept // covered] for name, (column, covered) in self._named().items()}
        values: dict[str, Any] = {"written": self.written, "largest": self.largest}
        if self.continues.any():
            values["continues"] = self.continues.tolist()
        return Snapshot(snapshot.arrays | arrays, snapshot.values | {"replay": values}, snapshot.exact, snapshot.reason)

    def to_host(self, writeable: bool = False) -> "Replay":
        """The replay itself, which is on the host."""
        return self

    def take_over(self, host: "Replay") -> None:
        """Go on with what is in a replay that `to_host` gave: it is this one."""

    @snapshot_errors()
    def restore(self, snapshot: Snapshot, fresh: np.ndarray) -> None:
        """Restore a snapshot.

        Where an environment begins a new episode, its last step has no successor and is left out.
        """
        self.written = int(snapshot.values["replay"]["written"])
        self.largest = float(snapshot.values["replay"]["largest"])
        self.continues[:] = snapshot.values["replay"].get("continues", False)
        self.continues &= ~fresh
        for name, (column, _) in self._named().items():
            saved = snapshot.arrays[f"replay/{name}"]
            column[: len(saved)] = saved
        if self.priority_exponent is not None:
            self.tree.set(np.arange(self.tree.size), self.tree.weights)
        if self.written:
            self.columns.valid[(self.written - 1) % self.ring_size, fresh] = False

    def _named(self) -> dict[str, tuple[np.ndarray, int]]:
        """All arrays by name, and how many rows each of their entries covers."""
        arrays = [(leaf, 1) for leaf in jax.tree.leaves((self.columns, self.begins))]
        arrays += [(leaf, self.length) for leaf in jax.tree.leaves(self.memories)]
        if self.priority_exponent is not None:
            weights = self.tree.weights[: self.ring_size * self.num_envs]
            arrays.append((weights.reshape(self.ring_size, self.num_envs), 1))
        return {str(number): array for number, array in enumerate(arrays)}

    def _set_weights(self, rows: np.ndarray, weight: float) -> None:
        """Give the transitions of these rows a weight; rows that are not valid get 0."""
        if rows.size:
            weights = np.where(self.columns.valid[rows % self.ring_size], weight, 0.0)
            self.tree.set(self._entries(rows[:, None], np.arange(self.num_envs)), weights)

    def _entries(self, rows: np.ndarray, envs: np.ndarray) -> np.ndarray:
        """The entries of the sum tree for these transitions."""
        return (rows % self.ring_size) * self.num_envs + envs

    def observations(self, rows: np.ndarray, envs: np.ndarray) -> PyTree:
        """The observations in these rows, stacked again from their frames."""
        if self.frame_stack == 1:
            return jax.tree.map(lambda column: column[rows % self.ring_size, envs], self.columns.observations)
        frames = [rows]  # newest first; an episode's first frame is repeated
        for _ in range(self.frame_stack - 1):
            frames.append(frames[-1] - ~self.begins[frames[-1] % self.ring_size, envs])
        stacks = np.stack(frames[::-1], axis=-1) % self.ring_size
        return jax.tree.map(lambda column: column[stacks, envs[..., None]], self.columns.observations)


def _write(columns: PyTree, span: slice | int, arrays: PyTree) -> None:
    for column, array in zip(jax.tree.leaves(columns), jax.tree.leaves(arrays), strict=True):
        column[span] = array


def kept_part(rollout: Rollout, frame_stack: int) -> Rollout:
    """The part of a rollout to keep; its last observation is the first of the next rollout."""
    newest = jax.tree.map(lambda x: newest_frame(x, frame_stack)[:-1], rollout.observations)
    masks = None if rollout.action_masks is None else rollout.action_masks[:-1]
    rollout = rollout._replace(game_over=None, successes=None, memory=None, resets=None)
    return rollout._replace(observations=newest, action_masks=masks)


def _require_room(needed: int, size: int) -> None:
    """Raise ConfigError if this many bytes are not free."""
    free = free_memory()
    if free is not None and needed > free:
        # Leaves a tenth of the memory free; the ring is also a little larger than replay_size.
        fits = 9 * size * free // (10 * needed)
        raise ConfigError(
            f"replay_size {size:,} needs {needed / 1e9:.1f} GB and {free / 1e9:.1f} GB are free; use at most {fits:,}"
        )
