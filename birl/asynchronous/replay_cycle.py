"""Actor-learners with a replay: after each rollout of its own, one learns again from sequences of
older ones, one in each turn.
"""

from typing import NamedTuple

import jax
import numpy as np

from birl.errors import snapshot_errors
from birl.rollouts.collector import learnable
from birl.rollouts.replay import Replay
from birl.types import Array, PyTree, Rollout, Snapshot


class ReplayShare(NamedTuple):
    """What one actor-learner keeps."""

    size: int  # transitions
    discount: float  # γ
    frame_stack: int
    behaviour: PyTree  # [B, ...] arrays like those kept of its policy's answers


class Cycle:
    """A rollout and the sequences replayed after it. Its steps, its statistics and the next key are
    written down at its end.
    """

    def __init__(self, share: ReplayShare, like: Rollout) -> None:
        self.replay = Replay(share.size, like, share.discount, frame_stack=share.frame_stack)
        self.left: list[Rollout] = []  # to learn from, one in each turn, before the next rollout
        self.updates = 0  # that are replayed in this cycle
        self.env_steps = 0  # of the rollout
        self.normalizer = np.zeros(0, np.float32)  # [M] what the actor-learner has seen with it
        self.key = np.zeros(2, np.uint32)  # to draw with in the next
        self._structure = jax.tree.structure(learnable(like, clip_rewards=False))  # of a rollout that has been counted

    def begin(self, rollout: Rollout, replayed: list[Rollout], normalizer: Array, key: Array) -> None:
        """Learn from this rollout and then from what is replayed."""
        self.left, self.updates, self.env_steps = (
            [rollout, *replayed],
            len(replayed),
            int(np.count_nonzero(rollout.valid)),
        )
        self.normalizer, self.key = np.asarray(normalizer), np.asarray(key)

    def snapshot(self, snapshot: Snapshot) -> Snapshot:
        """The world with what is kept here; like the replay's arrays, it must be written before it
        goes on.
        """
        arrays = {"cycle/normalizer": self.normalizer, "cycle/key": self.key}
        for number, sequences in enumerate(self.left):
            arrays |= {f"cycle/{number}/{i}": np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(sequences))}
        values = {"cycle": {"left": len(self.left), "updates": self.updates, "env_steps": self.env_steps}}
        snapshot = self.replay.snapshot(snapshot)
        return Snapshot(snapshot.arrays | arrays, snapshot.values | values, snapshot.exact, snapshot.reason)

    @snapshot_errors()
    def restore(self, snapshot: Snapshot, fresh: np.ndarray) -> None:
        """Be as at the snapshot; `fresh` tells which environments begin anew."""
        self.replay.restore(snapshot, fresh)
        self.normalizer, self.key = snapshot.arrays["cycle/normalizer"], snapshot.arrays["cycle/key"]
        self.updates, self.env_steps = snapshot.values["cycle"]["updates"], snapshot.values["cycle"]["env_steps"]
        parts = [snapshot.arrays_under(f"cycle/{number}/") for number in range(snapshot.values["cycle"]["left"])]
        self.left = [jax.tree.unflatten(self._structure, [part[str(i)] for i in range(len(part))]) for part in parts]
