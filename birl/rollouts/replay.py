"""The replay: past rollouts in a ring of fixed size, as JAX arrays.

Rows are kept in a rollout's order, so the successor of a row is the next row: no observation is
kept twice, and an episode's last observation is in the row in which its environment reset itself.
Of stacked frames only the newest is kept; the others are in the rows before.

The same code serves environments on the host and compiled ones: every method may be called inside a
compiled program, where the arrays are traced, and outside of one, where a method is a program of
its own. A ring is written in place.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from birl.config import ConfigError, require
from birl.errors import snapshot_errors
from birl.maths.keys import stream
from birl.parts import ReplayConfig
from birl.rollouts.sum_tree import sample_entries, set_weights, tree_of, weights_of
from birl.types import Array, PyTree, Rollout, Snapshot, Transitions
from birl.workers.child import free_memory


def newest_frame(observations: np.ndarray, frame_stack: int) -> np.ndarray:
    """The newest frame of stacks [T, B, frames, ...]; the observations if they are not stacked."""
    if frame_stack == 1:
        return observations
    frames = observations.shape[2] if observations.ndim > 2 else 0
    require(
        frames == frame_stack,
        f"frame_stack {frame_stack} does not fit observations of shape {observations.shape[2:]}; use 1",
    )
    return observations[:, :, -1]


def require_stacks(observations: np.ndarray, begins: np.ndarray, follows: np.ndarray) -> None:
    """Raise ConfigError unless observations are stacks of frames.

    Each is the one before with one frame more; the first of an episode is one frame repeated.
    """
    starts = observations[:-1][begins]
    grows = np.array_equal(observations[1:, :, :-1][follows], observations[:-1, :, 1:][follows])
    if not grows or np.any(starts[:, :-1] != starts[:, -1:]):
        raise ConfigError(
            "observations are not stacks of frames, newest last, that begin with one frame repeated; use frame_stack 1"
        )


LEAST_ERROR = 1e-6  # so that a transition with an error of 0 can be sampled again
MOST_ROWS = 2**30  # rows are counted in 32 bits


class Indices(NamedTuple):
    """Where sampled transitions are in the replay; arrays of one shape."""

    rows: Array  # counted from the first row that was ever written; -1: nothing was sampled
    envs: Array
    probabilities: Array  # with which each was sampled, up to a factor


class ReplayArrays(NamedTuple):
    """Everything in a replay that changes."""

    columns: Rollout  # [ring_size, B, ...]
    begins: Array  # [ring_size, B] the row holds the first observation of an episode
    memories: PyTree  # [rollouts, B, ...] the memory before each rollout
    follows: Array  # [B] the next row goes on where the last one ends
    written: Array  # rows that were ever written; see `_wrapped`
    newest: Array  # the newest row with a transition that can be sampled; -1: there was none
    sums: Array | None  # the tree of priorities; None: sample uniformly
    largest: Array  # largest weight so far: that of a new transition
    discount: Array  # γ
    priority_exponent: Array  # α of Schaul et al. 2016; 0 without priorities


@dataclass(frozen=True)
class RingShape:
    """The sizes that programs are compiled for."""

    length: int  # T, the rows of a rollout
    num_envs: int  # B
    ring_size: int  # rows
    n_step: int  # rewards in a transition
    frame_stack: int  # frames in an observation; each is kept once

    def first_row(self, written: Array) -> Array:
        """The first row whose frames are all in the ring."""
        oldest = written - self.ring_size
        return jnp.where(oldest > 0, oldest + self.frame_stack - 1, 0)

    def can_sample(self, arrays: ReplayArrays) -> Array:
        """Whether there is a transition to sample."""
        return arrays.newest >= self.first_row(arrays.written)


@jax.tree_util.register_pytree_node_class
class Replay:
    """The newest rollouts that hold `size` transitions, and one more for their successors.

    A method that changes it replaces `arrays`: inside a program, call none of them in a branch.
    """

    def __init__(
        self,
        size: int,
        like: Rollout,
        discount: float,  # γ
        n_step: int = 1,
        frame_stack: int = 1,
        priority_exponent: float | None = None,  # None: sample uniformly
    ):
        length, num_envs = like.rewards.shape
        require(
            size >= length * num_envs,
            f"replay_size {size} must hold a rollout: {length} steps of {num_envs} environments",
        )
        rollouts = -(-(size + (n_step + frame_stack - 1) * num_envs) // (length * num_envs)) + 1
        self.shape = RingShape(length, num_envs, rollouts * length, n_step, frame_stack)
        steps = kept_part(like, frame_stack)
        rows = self.shape.ring_size * num_envs
        require(rows < MOST_ROWS, f"replay_size {size:,} is too large; use less than {MOST_ROWS:,}")
        weights = 0 if priority_exponent is None else 8 << (rows - 1).bit_length()
        kept_bytes = sum(leaf.size * _type_of(leaf).itemsize for leaf in jax.tree.leaves((steps, like.memory)))
        self.bytes = kept_bytes * rollouts + rows + weights
        _require_room(self.bytes, size)
        self.arrays = ReplayArrays(
            columns=jax.tree.map(lambda x: jnp.zeros((self.shape.ring_size, *x.shape[1:]), _type_of(x)), steps),
            begins=jnp.zeros((self.shape.ring_size, num_envs), bool),
            memories=jax.tree.map(lambda x: jnp.zeros((rollouts, *x.shape), _type_of(x)), like.memory),
            follows=jnp.zeros(num_envs, bool),
            written=jnp.int32(0),
            newest=jnp.int32(-1),
            sums=None if priority_exponent is None else tree_of(jnp.zeros(rows)),
            largest=jnp.float32(1.0),
            discount=jnp.float32(discount),
            priority_exponent=jnp.float32(priority_exponent or 0.0),
        )

    def tree_flatten(self) -> tuple[tuple[ReplayArrays], tuple[RingShape, int]]:
        """The arrays, and what is constant in a program."""
        return (self.arrays,), (self.shape, self.bytes)

    @classmethod
    def tree_unflatten(cls, constants: tuple[RingShape, int], arrays: tuple[ReplayArrays]) -> "Replay":
        """A replay with these arrays."""
        replay = object.__new__(cls)
        replay.shape, replay.bytes = constants
        (replay.arrays,) = arrays
        return replay

    def __len__(self) -> int:
        """The number of environment steps in the replay."""
        return min(int(self.arrays.written), self.shape.ring_size) * self.shape.num_envs

    @property
    def recurrent(self) -> bool:
        """Whether recurrent memory is stored, so that sequences are sampled."""
        return bool(jax.tree.leaves(self.arrays.memories))

    @property
    def ready(self) -> Array:
        """Whether there is something to sample, single steps as well as sequences."""
        return (self.arrays.written >= 2 * self.shape.length) & self.shape.can_sample(self.arrays)

    def add(self, rollout: Rollout) -> None:
        """Add a rollout; it replaces the oldest."""
        self.append(kept_part(rollout, self.shape.frame_stack), rollout.memory)

    def require_fits(self, rollout: Rollout) -> None:
        """Raise ConfigError unless observations are stacks, if their frames are kept once."""
        if self.shape.frame_stack > 1:
            begins = ~np.concatenate([np.asarray(self.arrays.follows)[None], rollout.valid[:-1]])
            jax.tree.map(partial(require_stacks, begins=begins, follows=rollout.valid), rollout.observations)

    def append(self, steps: Rollout, memory: PyTree, begins: Array | None = None) -> None:
        """Write as many rows as a rollout has, without its last observation and older frames.

        `begins` None: an episode begins after each row that is not a step.
        """
        self.arrays = _append(self.arrays, self.shape, steps, memory, begins)

    def sample_indices(self, key: Array, shape: tuple[int, ...]) -> Indices:
        """Indices of transitions, sampled uniformly or in proportion to their priorities."""
        return _sample_indices(self.arrays, self.shape, key, shape)

    def gather(self, indices: Indices) -> Transitions:
        """The transitions at these indices, of up to n rewards."""
        return _gather(self.arrays, self.shape, indices)

    def sample_sequences(self, key: Array, shape: tuple[int, ...]) -> Rollout:
        """Sequences, sampled uniformly: rollouts of one environment each.

        For a shape (G, N) arrays are [G, T, N, ...], for (N,) they are [T, N, ...].
        """
        return _sample_sequences(self.arrays, self.shape, key, shape)

    def set_errors(self, indices: Indices, errors: Array) -> None:
        """Set the priorities of transitions to their new errors, if there are priorities."""
        if self.arrays.sums is not None:
            self.arrays = _set_errors(self.arrays, self.shape, indices, errors)

    def on_host(self) -> ReplayArrays:
        """The arrays as NumPy's. They are not copied: use them before the replay changes."""
        return jax.tree.map(np.asarray, self.arrays)

    def rows(self, arrays: ReplayArrays) -> range:
        """The rows that may be sampled where valid: their frames and successors are in the ring."""
        first, written = int(self.shape.first_row(arrays.written)), int(arrays.written)
        return range(first, max(first, written - self.shape.n_step))

    def last_valid(self, arrays: ReplayArrays) -> np.ndarray:
        """[B] whether the last row is a step, whose successor is the next row."""
        written = int(arrays.written)
        return arrays.columns.valid[(written - 1) % self.shape.ring_size] & (written > 0)

    def snapshot(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot with the replay's arrays added.

        They are not copied: write them before training continues.
        """
        host = self.on_host()
        kept = min(int(host.written), self.shape.ring_size)
        arrays = {f"replay/{name}": column[: kept // rows] for name, (column, rows) in self._named(host).items()}
        values: dict[str, Any] = {"written": int(host.written), "largest": float(host.largest)}
        continues = host.follows & ~self.last_valid(host)
        if continues.any():
            values["continues"] = continues.tolist()
        return Snapshot(snapshot.arrays | arrays, snapshot.values | {"replay": values}, snapshot.exact, snapshot.reason)

    @snapshot_errors()
    def restore(self, snapshot: Snapshot, fresh: np.ndarray) -> None:
        """Restore a snapshot.

        Where an environment begins a new episode, its last step has no successor and is left out.
        """
        values = snapshot.values["replay"]
        written, ring_size = int(values["written"]), self.shape.ring_size
        saved = self._saved(snapshot, min(written, ring_size))
        leaves, structure = jax.tree.flatten((self.arrays.columns, self.arrays.begins, self.arrays.memories))
        leaves = [_restored(leaf, array) for leaf, array in zip(leaves, saved, strict=False)]
        columns, begins, memories = jax.tree.unflatten(structure, leaves)
        last = (written - 1) % ring_size
        valid = columns.valid.at[last].set(columns.valid[last] & ~fresh) if written else columns.valid
        continues = np.broadcast_to(values.get("continues", False), fresh.shape)
        arrays = self.arrays._replace(
            columns=columns._replace(valid=valid),
            begins=begins,
            memories=memories,
            follows=jnp.array((np.asarray(valid[last]) & (written > 0)) | (continues & ~fresh)),
            written=jnp.int32(written if written < MOST_ROWS else (written - 1) % ring_size + 1 + ring_size),
            largest=jnp.float32(float(values["largest"])),
        )
        rows = np.array(self.rows(arrays), int)
        found = rows[np.asarray(valid)[rows % ring_size].any(axis=1)]
        self.arrays = arrays._replace(newest=jnp.int32(found.max(initial=-1)))
        if self.arrays.sums is not None:
            every = np.zeros((ring_size, self.shape.num_envs), np.float32)
            every[: len(saved[-1])] = saved[-1]
            self.arrays = self.arrays._replace(sums=tree_of(jnp.array(every.ravel())))

    def _saved(self, snapshot: Snapshot, kept: int) -> list[np.ndarray]:
        """The arrays of a snapshot of so many rows; ValueError if one has another shape."""
        found = []
        for name, (column, rows) in self._named(self.arrays).items():
            found.append(snapshot.arrays[f"replay/{name}"])
            shape = kept // rows, *column.shape[1:]
            if found[-1].shape != shape:
                raise ValueError(f"replay/{name} has shape {found[-1].shape}, not {shape}")
        return found

    def _named(self, arrays: ReplayArrays) -> dict[str, tuple[Any, int]]:
        """All arrays by name, and how many rows each of their entries covers."""
        found = [(leaf, 1) for leaf in jax.tree.leaves((arrays.columns, arrays.begins))]
        found += [(leaf, self.shape.length) for leaf in jax.tree.leaves(arrays.memories)]
        if arrays.sums is not None:
            ring_size, num_envs = self.shape.ring_size, self.shape.num_envs
            found.append((weights_of(arrays.sums)[: ring_size * num_envs].reshape(ring_size, num_envs), 1))
        return {str(number): array for number, array in enumerate(found)}


@partial(jax.jit, static_argnames="shape", donate_argnames="arrays")
def _append(
    arrays: ReplayArrays, shape: RingShape, steps: Rollout, memory: PyTree, begins: Array | None
) -> ReplayArrays:
    """The arrays with these rows."""
    length, n_step, ring_size = shape.length, shape.n_step, shape.ring_size
    start, written = arrays.written % ring_size, arrays.written + shape.length
    columns = jax.tree.map(partial(_write, start=start), arrays.columns, steps)
    memory = jax.tree.map(lambda x: x[None], memory)
    if begins is None:
        begins = ~jnp.concatenate([arrays.follows[None], steps.valid[:-1]])

    # The last n rows before these had no successor yet; now they have.
    rows = arrays.written - n_step + jnp.arange(length + n_step)
    valid = columns.valid[rows % ring_size] & (rows >= 0)[:, None]
    newest = jnp.where(valid[:length].any(axis=1), rows[:length], arrays.newest).max()
    new = arrays._replace(
        columns=columns,
        begins=_write(arrays.begins, begins, start),
        memories=jax.tree.map(partial(_write, start=start // length), arrays.memories, memory),
        follows=jnp.asarray(steps.valid[-1]),
        written=_wrapped(written, ring_size),
        newest=jnp.maximum(newest - written + _wrapped(written, ring_size), -1),
    )
    if arrays.sums is None:
        return new
    known = valid & (jnp.arange(length + n_step) < length)[:, None]  # their successors are in the ring
    envs = jnp.arange(shape.num_envs)
    sums = set_weights(
        arrays.sums, _entries(shape, rows[:, None], envs), jnp.where(known, arrays.largest, 0.0), jnp.ones_like(known)
    )
    if shape.frame_stack > 1:  # of these rows older frames were overwritten
        cut = written - ring_size + jnp.arange(shape.frame_stack - 1)[:, None]
        wanted = jnp.broadcast_to(written > ring_size, (shape.frame_stack - 1, shape.num_envs))
        sums = set_weights(sums, _entries(shape, cut, envs), jnp.zeros(wanted.shape), wanted)
    return new._replace(sums=sums)


@partial(jax.jit, static_argnames=("shape", "count"))
def _sample_indices(arrays: ReplayArrays, shape: RingShape, key: Array, count: tuple[int, ...]) -> Indices:
    key = stream(key, "replay")
    written, num_envs = arrays.written, shape.num_envs
    if arrays.sums is not None:
        entries = sample_entries(arrays.sums, key, count)
        newest = written - 1
        rows = newest - (newest - entries // num_envs) % shape.ring_size
        return Indices(rows, entries % num_envs, weights_of(arrays.sums)[entries])
    first = shape.first_row(written)
    number = (written - shape.n_step - first) * num_envs

    def retry(tried: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        key, picks, missing = tried
        key, draw_key = jax.random.split(key)
        picks = jnp.where(missing, jax.random.randint(draw_key, count, 0, number), picks)
        rows, envs = first + picks // num_envs, picks % num_envs
        return key, picks, ~arrays.columns.valid[rows % shape.ring_size, envs]

    # Rows in which an environment reset itself are sampled again.
    tried = key, jnp.zeros(count, jnp.int32), jnp.ones(count, bool)
    picks = jax.lax.while_loop(lambda tried: tried[2].any() & shape.can_sample(arrays), retry, tried)[1]
    return Indices(first + picks // num_envs, picks % num_envs, jnp.ones(count, jnp.float32))


@partial(jax.jit, static_argnames="shape")
def _gather(arrays: ReplayArrays, shape: RingShape, indices: Indices) -> Transitions:
    """r_t + γ r_{t+1} + ..., and the bootstrap's factor (Sutton & Barto 2018, eq. 7.1)."""
    columns, discount = arrays.columns, arrays.discount
    at = partial(_at, shape)
    rows, envs = indices.rows, indices.envs
    last = rows  # the row of the transition's last reward
    rewards = at(columns.rewards, rows, envs)
    discounts = jnp.full(rows.shape, discount)
    goes_on = jnp.ones(rows.shape, bool)
    for _ in range(1, shape.n_step):
        ended = at(columns.terminated, last, envs) | at(columns.truncated, last, envs)
        goes_on = goes_on & at(columns.valid, last + 1, envs) & ~ended
        rewards = rewards + jnp.where(goes_on, discounts * at(columns.rewards, last + 1, envs), 0.0)
        discounts = jnp.where(goes_on, discounts * discount, discounts)
        last = last + goes_on
    return Transitions(
        observations=stacked_observations(arrays, shape, rows, envs),
        actions=at(columns.actions, rows, envs),
        rewards=rewards,
        discounts=jnp.where(at(columns.terminated, last, envs), 0.0, discounts),
        next_observations=stacked_observations(arrays, shape, last + 1, envs),
        action_masks=at(columns.action_masks, rows, envs),
        next_action_masks=at(columns.action_masks, last + 1, envs),
    )


@partial(jax.jit, static_argnames=("shape", "count"))
def _sample_sequences(arrays: ReplayArrays, shape: RingShape, key: Array, count: tuple[int, ...]) -> Rollout:
    length, ring_size = shape.length, shape.ring_size
    columns, written = arrays.columns, arrays.written
    rollout_key, env_key = jax.random.split(stream(key, "sequences"))
    oldest = -(-shape.first_row(written) // length)
    rollouts = jax.random.randint(rollout_key, count, oldest, written // length - 1)
    envs = jax.random.randint(env_key, count, 0, shape.num_envs)
    rows = rollouts[..., None, :] * length + jnp.arange(length + 1)[:, None]  # [G, T+1, N]
    every_env = jnp.broadcast_to(envs[..., None, :], rows.shape)
    at = partial(_at, shape)
    steps = at(columns._replace(observations=None, action_masks=None), rows[..., :-1, :], every_env[..., :-1, :])
    slots = rollouts % (ring_size // length)
    return steps._replace(
        observations=stacked_observations(arrays, shape, rows, every_env),
        action_masks=at(columns.action_masks, rows, every_env),
        memory=jax.tree.map(lambda memories: memories[slots, envs], arrays.memories),
        resets=at(arrays.begins, rows[..., 0, :], envs),
    )


@partial(jax.jit, static_argnames="shape", donate_argnames="arrays")
def _set_errors(arrays: ReplayArrays, shape: RingShape, indices: Indices, errors: Array) -> ReplayArrays:
    """The arrays with priorities (|δ| + 1e-6)^α (Schaul et al. 2016, eq. 1)."""
    wanted = indices.rows >= 0
    weights = (jnp.abs(errors) + LEAST_ERROR) ** arrays.priority_exponent
    sums = set_weights(arrays.sums, _entries(shape, indices.rows, indices.envs), weights, wanted)
    return arrays._replace(sums=sums, largest=jnp.maximum(arrays.largest, jnp.where(wanted, weights, 0.0).max()))


def stacked_observations(arrays: ReplayArrays, shape: RingShape, rows: Array, envs: Array) -> PyTree:
    """The observations in these rows, stacked again from their frames."""
    if shape.frame_stack == 1:
        return _at(shape, arrays.columns.observations, rows, envs)
    frames = [rows]  # newest first; an episode's first frame is repeated
    for _ in range(shape.frame_stack - 1):
        frames.append(frames[-1] - ~arrays.begins[frames[-1] % shape.ring_size, envs])
    module = np if isinstance(rows, np.ndarray) else jnp
    return _at(shape, arrays.columns.observations, module.stack(frames[::-1], axis=-1), envs[..., None])


def _at(shape: RingShape, columns: PyTree, rows: Array, envs: Array) -> PyTree:
    """What these columns hold in these rows."""
    return jax.tree.map(lambda column: column[rows % shape.ring_size, envs], columns)


def _entries(shape: RingShape, rows: Array, envs: Array) -> Array:
    """The entries of the sum tree for these transitions."""
    return (rows % shape.ring_size) * shape.num_envs + envs


def _write(column: Array, rows: Array, start: Array) -> Array:
    """The column with these rows from `start` on."""
    return jax.lax.dynamic_update_slice_in_dim(column, rows, start, axis=0)


@partial(jax.jit, donate_argnames="column")
def _restored(column: Array, rows: Array) -> Array:
    return _write(column, rows, jnp.int32(0))


def _wrapped(written: Array, ring_size: int) -> Array:
    """Rows written, in 32 bits: a multiple of the ring's size less once it is large.

    It stays above the ring's size, by which it is known that rows were overwritten.
    """
    period = MOST_ROWS // ring_size * ring_size
    return jnp.where(written > period + ring_size, written - period, written)


def make_replay(settings: ReplayConfig, like: Rollout, discount: float) -> Replay:
    """A replay with these settings, for rollouts like this one."""
    exponent = settings.priority_exponent if settings.prioritized else None
    return Replay(settings.replay_size, like, discount, settings.n_step, settings.frame_stack, exponent)


def kept_whole(rollout: Rollout) -> Rollout:
    """The rollout as it is: nothing of it is left out of the replay."""
    return rollout


def kept_part(rollout: Rollout, frame_stack: int) -> Rollout:
    """The part of a rollout to keep; its last observation is the first of the next rollout."""
    newest = jax.tree.map(lambda x: newest_frame(x, frame_stack)[:-1], rollout.observations)
    masks = None if rollout.action_masks is None else rollout.action_masks[:-1]
    rollout = rollout._replace(game_over=None, successes=None, memory=None, resets=None)
    return rollout._replace(observations=newest, action_masks=masks)


def _type_of(column: Array) -> np.dtype:
    """The type in which JAX holds an array: of 64 bits it has none."""
    return jax.dtypes.canonicalize_dtype(column.dtype)


def _require_room(needed: int, size: int) -> None:
    """Raise ConfigError if this many bytes are not free."""
    free = free_memory()
    if free is not None and needed > free:
        # Leaves a tenth of the memory free; the ring is also a little larger than replay_size.
        fits = 9 * size * free // (10 * needed)
        raise ConfigError(
            f"replay_size {size:,} needs {needed / 1e9:.1f} GB and {free / 1e9:.1f} GB are free; use at most {fits:,}"
        )
