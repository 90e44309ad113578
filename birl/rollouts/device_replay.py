"""The replay of compiled environments: the ring of rollouts as JAX arrays, used inside a program.

It means the same as rollouts/replay.py, from which it is made and to which it goes back: so
checkpoints, prefill and `run.replay` are those of the host's. Here everything is pure and of fixed
shape, so that the compiler writes a rollout in place.
"""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from birl.config import require
from birl.maths.keys import stream
from birl.rollouts.device_sum_tree import sample_entries, set_weights, tree_of, weights_of
from birl.rollouts.replay import LEAST_ERROR, Indices, Replay, kept_part
from birl.rollouts.sum_tree import SumTree
from birl.types import Array, PyTree, Rollout, Snapshot, Transitions


class ReplayArrays(NamedTuple):
    """Everything in the replay that a program reads or changes."""

    columns: Rollout  # [ring_size, B, ...]
    begins: Array  # [ring_size, B] the row holds the first observation of an episode
    memories: PyTree  # [rollouts, B, ...] the memory before each rollout
    continues: Array  # [B] the next row goes on where the last one ends, though that is not a step
    written: Array  # rows written so far; a full ring or two, once the ring is full: 32 bits are enough
    sampleable: Array  # whether a transition can be sampled
    sums: Array | None  # the tree of priorities; None: sample uniformly
    largest: Array  # largest weight so far: that of a new transition
    discount: Array  # γ
    priority_exponent: Array  # α; 0 without priorities


@dataclass(frozen=True)
class RingShape:
    """The sizes that a program is compiled for."""

    length: int  # T, the rows of a rollout
    num_envs: int  # B
    ring_size: int  # rows
    n_step: int  # rewards in a transition


@jax.tree_util.register_pytree_node_class
class DeviceReplay:
    """The newest rollouts, on the device; a pytree.

    Methods replace `arrays`, which may be tracers: so add nothing inside a branch of a program.
    """

    def __init__(self, shape: RingShape, arrays: ReplayArrays, empty: Replay | None = None) -> None:
        self.shape = shape
        self.arrays = arrays
        self._empty = empty  # the same replay on the host, without its arrays; None inside a program

    def tree_flatten(self) -> tuple[Sequence[ReplayArrays], RingShape]:
        """The arrays, and what is constant in a program."""
        return (self.arrays,), self.shape

    @classmethod
    def tree_unflatten(cls, shape: RingShape, arrays: Sequence[ReplayArrays]) -> "DeviceReplay":
        """A replay with these arrays, for use inside a program."""
        return cls(shape, arrays[0])

    def __len__(self) -> int:
        """The number of environment steps in the replay."""
        return min(int(self.arrays.written), self.shape.ring_size) * self.shape.num_envs

    @property
    def bytes(self) -> int:
        """The size in memory of the ring and of the priorities."""
        arrays = self.arrays
        return sum(x.nbytes for x in jax.tree.leaves((arrays.columns, arrays.begins, arrays.memories, arrays.sums)))

    @property
    def recurrent(self) -> bool:
        """Whether recurrent memory is stored, so that sequences can be sampled."""
        return bool(jax.tree.leaves(self.arrays.memories))

    @property
    def ready(self) -> Array:
        """Whether there is something to sample, single steps as well as sequences."""
        return (self.arrays.written >= 2 * self.shape.length) & self.arrays.sampleable

    def add(self, rollout: Rollout) -> None:
        """Add a rollout; it replaces the oldest."""
        length, _, ring_size, n_step = _sizes(self.shape)
        old = self.arrays
        start = old.written % ring_size
        columns = _write(old.columns, kept_part(rollout, frame_stack=1), start)

        # The last n rows before this rollout had no successor yet; now they have.
        rows = old.written - n_step + jnp.arange(length + n_step)
        valid = columns.valid[rows % ring_size] & (rows >= 0)[:, None]
        last_valid = valid[n_step - 1]
        begins = ~jnp.concatenate([(last_valid | old.continues)[None], rollout.valid[:-1]])
        written = old.written + length
        self.arrays = old._replace(
            columns=columns,
            begins=_write(old.begins, begins, start),
            memories=_write(old.memories, jax.tree.map(lambda x: x[None], rollout.memory), start // length),
            continues=jnp.zeros_like(old.continues),
            written=jnp.where(written >= 2 * ring_size, written - ring_size, written),
            sampleable=old.sampleable | valid[:length].any(),
        )
        if old.sums is not None:
            known = valid & (jnp.arange(length + n_step) < length)[:, None]  # their successors are in the ring
            entries = self._entries(rows[:, None], jnp.arange(self.shape.num_envs))
            weights = jnp.where(known, old.largest, 0.0)
            self.arrays = self.arrays._replace(sums=set_weights(old.sums, entries, weights, jnp.ones_like(known)))

    def rng(self, key: Array) -> Array:
        """What `sample_indices` and `sample_sequences` take for randomness: the key itself."""
        return key

    def sample_indices(self, rng: Array, shape: tuple[int, ...]) -> Indices:
        """Indices of transitions, sampled uniformly or in proportion to their priorities."""
        key = stream(rng, "replay")
        written, num_envs = self.arrays.written, self.shape.num_envs
        if self.arrays.sums is not None:
            entries = sample_entries(self.arrays.sums, key, shape)
            newest = written - 1
            rows = newest - (newest - entries // num_envs) % self.shape.ring_size
            return Indices(rows, entries % num_envs, weights_of(self.arrays.sums)[entries])
        oldest = jnp.maximum(0, written - self.shape.ring_size)
        number = (written - self.shape.n_step - oldest) * num_envs

        def retry(tried: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            key, picks, missing = tried
            key, draw_key = jax.random.split(key)
            picks = jnp.where(missing, jax.random.randint(draw_key, shape, 0, number), picks)
            rows, envs = oldest + picks // num_envs, picks % num_envs
            return key, picks, ~self.arrays.columns.valid[rows % self.shape.ring_size, envs]

        # Rows in which an environment reset itself are sampled again.
        tried = key, jnp.zeros(shape, jnp.int32), jnp.ones(shape, bool)
        picks = jax.lax.while_loop(lambda tried: tried[2].any() & self.arrays.sampleable, retry, tried)[1]
        return Indices(oldest + picks // num_envs, picks % num_envs, jnp.ones(shape, jnp.float32))

    def sample(self, key: Array, shape: tuple[int, ...]) -> Transitions:
        """Transitions sampled with this random key."""
        return self.gather(self.sample_indices(self.rng(key), shape))

    def set_errors(self, indices: Indices, errors: Array) -> None:
        """Set the priorities of transitions to their new errors, if there are priorities.

        Those whose row is negative are left out.
        """
        old = self.arrays
        if old.sums is not None:
            wanted = indices.rows >= 0
            weights = (jnp.abs(errors) + LEAST_ERROR) ** old.priority_exponent
            sums = set_weights(old.sums, self._entries(indices.rows, indices.envs), weights, wanted)
            largest = jnp.maximum(old.largest, jnp.where(wanted, weights, 0.0).max())
            self.arrays = old._replace(sums=sums, largest=largest)

    def gather(self, indices: Indices) -> Transitions:
        """The transitions at these indices, with up to n rewards each."""
        columns, discount = self.arrays.columns, self.arrays.discount
        rows, envs = indices.rows, indices.envs
        last = rows  # the row of the transition's last reward
        rewards = self._at(columns.rewards, rows, envs)
        discounts = jnp.full(rows.shape, discount)
        goes_on = jnp.ones(rows.shape, bool)
        for _ in range(1, self.shape.n_step):
            ended = self._at(columns.terminated, last, envs) | self._at(columns.truncated, last, envs)
            goes_on = goes_on & self._at(columns.valid, last + 1, envs) & ~ended
            rewards = rewards + jnp.where(goes_on, discounts * self._at(columns.rewards, last + 1, envs), 0.0)
            discounts = jnp.where(goes_on, discounts * discount, discounts)
            last = last + goes_on
        return Transitions(
            observations=self._at(columns.observations, rows, envs),
            actions=self._at(columns.actions, rows, envs),
            rewards=rewards,
            discounts=jnp.where(self._at(columns.terminated, last, envs), 0.0, discounts),
            next_observations=self._at(columns.observations, last + 1, envs),
            next_action_masks=self._at(columns.action_masks, last + 1, envs),
        )

    def sample_sequences(self, rng: Array, shape: tuple[int, int]) -> Rollout:
        """Sequences, sampled uniformly: rollouts of one environment each, arrays [G, T, N, ...]."""
        length, num_envs, ring_size, _ = _sizes(self.shape)
        columns, written = self.arrays.columns, self.arrays.written
        rollout_key, env_key = jax.random.split(stream(rng, "sequences"))
        oldest = jnp.maximum(0, written - ring_size) // length
        rollouts = jax.random.randint(rollout_key, shape, oldest, written // length - 1)
        envs = jax.random.randint(env_key, shape, 0, num_envs)
        rows = rollouts[:, None] * length + jnp.arange(length + 1)[:, None]  # [G, T+1, N]
        every_env = jnp.broadcast_to(envs[:, None], rows.shape)
        steps = self._at(columns._replace(observations=None, action_masks=None), rows[:, :-1], every_env[:, :-1])
        slots = rollouts % (ring_size // length)
        return steps._replace(
            observations=self._at(columns.observations, rows, every_env),
            action_masks=self._at(columns.action_masks, rows, every_env),
            memory=jax.tree.map(lambda memories: memories[slots, envs], self.arrays.memories),
            resets=self._at(self.arrays.begins, rows[:, 0], envs),
        )

    def snapshot(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot with the replay's arrays added, in the form of the host's replay."""
        return self.to_host().snapshot(snapshot)

    def to_host(self, writeable: bool = False) -> Replay:
        """The same replay on the host; its arrays may be views of these if not writeable."""
        arrays = jax.tree.map(np.array if writeable else np.asarray, self.arrays)
        assert self._empty is not None, "it is inside a program"
        host = copy(self._empty)
        host.columns, host.begins, host.memories = arrays.columns, arrays.begins, arrays.memories
        host.continues = arrays.continues.copy()
        host.written = int(arrays.written)
        host.largest = float(arrays.largest)
        if arrays.sums is not None:
            host.tree = SumTree(host.ring_size * host.num_envs)
            host.tree.set(np.arange(host.tree.size), weights_of(arrays.sums).astype(np.float64))
        return host

    def take_over(self, host: Replay) -> None:
        """Go on with what is in a replay that `to_host` gave."""
        self.arrays = _arrays_of(host)

    def _at(self, columns: PyTree, rows: Array, envs: Array) -> PyTree:
        """What these columns hold in these rows."""
        return jax.tree.map(lambda column: column[rows % self.shape.ring_size, envs], columns)

    def _entries(self, rows: Array, envs: Array) -> Array:
        """The entries of the sum tree for these transitions."""
        return (rows % self.shape.ring_size) * self.shape.num_envs + envs


AnyReplay = Replay | DeviceReplay


def to_device(host: Replay) -> DeviceReplay:
    """A replay on the device with everything that is in this one."""
    stacked = f"frame_stack {host.frame_stack}: compiled environments keep whole observations in the replay"
    require(host.frame_stack == 1, f"{stacked}; use frame_stack 1")
    entries = host.ring_size * host.num_envs
    require(entries < 2**30, f"replay_size {entries:,} is too large for compiled environments; use less than {2**30:,}")
    shape = RingShape(host.length, host.num_envs, host.ring_size, host.n_step)
    empty = copy(host)
    empty.columns, empty.memories, empty.begins, empty.tree = (), (), np.empty(0, bool), SumTree(0)  # not kept twice
    return DeviceReplay(shape, _arrays_of(host), empty)


def _arrays_of(host: Replay) -> ReplayArrays:
    sampleable = np.array(host.sampleable, int) % host.ring_size
    prioritized = host.priority_exponent is not None
    written = host.written
    if written >= 2 * host.ring_size:
        written = host.ring_size + written % host.ring_size
    weights = host.tree.weights[: host.ring_size * host.num_envs].astype(np.float32)
    return ReplayArrays(
        columns=jax.tree.map(jnp.array, host.columns),
        begins=jnp.array(host.begins),
        memories=jax.tree.map(jnp.array, host.memories),
        continues=jnp.array(host.continues),
        written=jnp.int32(written),
        sampleable=jnp.bool_(host.columns.valid[sampleable].any()),
        sums=tree_of(jnp.array(weights)) if prioritized else None,
        largest=jnp.float32(host.largest),
        discount=jnp.float32(host.discount),
        priority_exponent=jnp.float32(host.priority_exponent or 0.0),
    )


def _write(columns: PyTree, rows: PyTree, start: Array) -> PyTree:
    """The columns with these rows from `start` on."""
    return jax.tree.map(
        lambda column, new: jax.lax.dynamic_update_slice_in_dim(column, new, start, axis=0), columns, rows
    )


def _sizes(shape: RingShape) -> tuple[int, int, int, int]:
    return shape.length, shape.num_envs, shape.ring_size, shape.n_step
