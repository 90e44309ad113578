"""Transitions that a user gives, as rows of a replay.

A replay keeps rows [R, B] in a rollout's order, where the successor of a row is the next row. Here
transitions that follow one another become segments. A segment is

    older frames   only if frames are stacked, unless the first observation is one frame repeated
    steps          one row for each transition, the only valid ones
    successor      the last observation, in a row that is not valid

and segments fill one column after the other. A segment that does not fit in the rest of a column is
cut there, which only shortens n-step returns, as a truncated episode does.
"""

from itertools import pairwise
from typing import NamedTuple

import jax
import numpy as np

from birl.rollouts.replay import Replay, RingShape
from birl.rollouts.transition_arrays import CHUNK, TransitionArrays
from birl.types import PyTree, Rollout

STEP, SUCCESSOR = 1, 2  # kinds of rows; 0: nothing is there


class Now(NamedTuple):
    """Where the environments are: what the next rollout begins with."""

    observations: PyTree  # [B, ...]
    action_masks: np.ndarray | None  # [B, A]


class Layout(NamedTuple):
    """What each row [R, B] holds."""

    transitions: np.ndarray  # the index of a transition
    kinds: np.ndarray
    frames: np.ndarray  # a row of an older frame: its number, from 1; else 0
    begins: np.ndarray  # no frame before this row belongs to the same observations


def insert(replay: Replay, transitions: TransitionArrays, now: Now | None = None) -> int:
    """Append transitions to a replay; how many of them fit, the newest.

    `now` is where the environments are, if the replay holds steps of theirs already.
    """
    shape = replay.shape
    follows = follows_last(transitions)
    leads = _leads(transitions, shape.frame_stack)
    last_valid = replay.last_valid(replay.on_host())
    head = 1 if now is not None and last_valid.any() else 0
    tail = shape.frame_stack - 1 if now is not None else 0
    first = _first_that_fits(follows, leads, shape, shape.ring_size - head - tail)
    if first == len(follows):
        return 0
    layout = _lay_out(follows, leads, first, shape, head, tail)
    steps = _fill(layout, transitions, replay)
    if now is not None:
        _bridge(steps, layout.begins, now, last_valid, shape.frame_stack, head, tail)
    for start in range(0, len(layout.kinds), shape.length):
        span = slice(start, start + shape.length)
        replay.append(jax.tree.map(lambda column, span=span: column[span], steps), (), layout.begins[span])
    replay.arrays = replay.arrays._replace(follows=replay.arrays.follows | (tail > 0))
    return len(follows) - first


def follows_last(transitions: TransitionArrays) -> np.ndarray:
    """[N] whether each transition begins where the one before it ended, in the same episode."""
    follows = np.zeros(len(transitions.rewards), bool)
    follows[1:] = ~(transitions.terminated | transitions.truncated)[:-1]
    pairs = [(transitions.next_observations, transitions.observations)]
    if transitions.action_masks is not None:
        pairs.append((transitions.next_action_masks, transitions.action_masks))
    for ends, begins in zip(*[jax.tree.leaves(side) for side in zip(*pairs, strict=True)], strict=True):
        for start in range(1, len(follows), CHUNK):
            end = min(start + CHUNK, len(follows))
            same = ends[start - 1 : end - 1] == begins[start:end]
            follows[start:end] &= same.reshape(end - start, -1).all(axis=1)
    return follows


def _leads(transitions: TransitionArrays, frame_stack: int) -> np.ndarray:
    """[N] rows of older frames that a segment beginning at this transition needs."""
    repeated = np.ones(len(transitions.rewards), bool)
    if frame_stack > 1:
        for stacks in jax.tree.leaves(transitions.observations):
            for start in range(0, len(repeated), CHUNK):
                same = stacks[start : start + CHUNK, :-1] == stacks[start : start + CHUNK, 1:]
                repeated[start : start + CHUNK] &= same.reshape(len(same), -1).all(axis=1)
    return np.where(repeated, 0, frame_stack - 1)


def _first_that_fits(follows: np.ndarray, leads: np.ndarray, shape: RingShape, height: int) -> int:
    """The first transition such that it and all later ones fit in columns of this height."""
    extra = np.where(follows, 0, 1 + leads)  # rows of a segment that are no steps
    rows = np.cumsum((1 + extra)[::-1])[::-1]  # from each transition to the end
    needed = rows + np.where(follows, 1 + leads, 0)  # a segment that begins in its middle
    # Each column may end with a cut or a gap of that many rows, but for a single column.
    room = height * shape.num_envs - (shape.frame_stack * shape.num_envs if shape.num_envs > 1 else 0)
    return int(np.argmax(needed <= room)) if (needed <= room).any() else len(follows)


def _lay_out(follows: np.ndarray, leads: np.ndarray, first: int, ring: RingShape, head: int, tail: int) -> Layout:
    """The rows for the transitions from `first`, with room for the head and the tail."""
    starts = [first, *(first + 1 + np.flatnonzero(~follows[first + 1 :])).tolist(), len(follows)]
    total = sum(end - start + 1 + int(leads[start]) for start, end in pairwise(starts))
    height = -(-total // ring.num_envs) + (ring.frame_stack if ring.num_envs > 1 else 0)
    rows = -(-(head + height + tail) // ring.length) * ring.length
    shape = rows, ring.num_envs
    layout = Layout(
        np.zeros(shape, np.int64), np.zeros(shape, np.int8), np.zeros(shape, np.int64), np.ones(shape, bool)
    )
    row, column = head, 0
    for start, end in pairwise(starts):
        while start < end:
            lead = int(leads[start])
            room = rows - tail - row - lead - 1
            if room < 1:
                row, column = head, column + 1
                continue
            count = min(end - start, room)
            span = slice(row, row + lead + count + 1)
            _put_segment(layout, (span, column), start, lead, count)
            row, start = row + lead + count + 1, start + count
    return layout


def _put_segment(layout: Layout, place: tuple[slice, int], start: int, lead: int, count: int) -> None:
    steps = np.arange(start, start + count)
    layout.transitions[place] = np.concatenate([np.full(lead, start), steps, steps[-1:]])
    layout.kinds[place] = [0] * lead + [STEP] * count + [SUCCESSOR]
    layout.frames[place] = np.concatenate([np.arange(1, lead + 1), np.zeros(count + 1, int)])
    layout.begins[place] = np.arange(lead + count + 1) == 0


def _fill(layout: Layout, transitions: TransitionArrays, replay: Replay) -> Rollout:
    """Columns [R, B, ...] like the replay's, with the transitions in them."""
    rows = len(layout.kinds)
    steps = jax.tree.map(lambda column: np.zeros((rows, *column.shape[1:]), column.dtype), replay.arrays.columns)
    here, after, older = layout.kinds == STEP, layout.kinds == SUCCESSOR, layout.frames > 0
    stacked = replay.shape.frame_stack > 1

    def put(column: np.ndarray, seen: np.ndarray, following: np.ndarray, newest: bool) -> None:
        column[here] = seen[layout.transitions[here], -1] if newest else seen[layout.transitions[here]]
        column[after] = following[layout.transitions[after], -1] if newest else following[layout.transitions[after]]
        if newest:
            column[older] = seen[layout.transitions[older], layout.frames[older] - 1]

    for column, seen, following in zip(
        *[jax.tree.leaves(x) for x in (steps.observations, transitions.observations, transitions.next_observations)],
        strict=True,
    ):
        put(column, seen, following, stacked)
    if steps.action_masks is not None:
        steps.action_masks[...] = True
        put(steps.action_masks, transitions.action_masks, transitions.next_action_masks, False)  # type: ignore[arg-type]
    for column, array in (
        (steps.actions, transitions.actions),
        (steps.rewards, transitions.rewards),
        (steps.terminated, transitions.terminated),
        (steps.truncated, transitions.truncated),
    ):
        column[here] = array[layout.transitions[here]]
    steps.valid[here] = True
    return steps


def _bridge(
    steps: Rollout, begins: np.ndarray, now: Now, last_valid: np.ndarray, frame_stack: int, head: int, tail: int
) -> None:
    """Write where the environments are: after their last step, and before the next one.

    The head is the successor of the last row. The tail are the older frames of the next row.
    """
    for column, seen in zip(jax.tree.leaves(steps.observations), jax.tree.leaves(now.observations), strict=True):
        if head:
            column[0] = seen if frame_stack == 1 else seen[:, -1]
        if tail:
            column[-tail:] = np.moveaxis(seen[:, :-1], 0, 1)
    if head:
        begins[0] = ~last_valid
        if steps.action_masks is not None:
            steps.action_masks[0] = now.action_masks
    if tail:
        begins[-tail:] = (np.arange(tail) == 0)[:, None]
