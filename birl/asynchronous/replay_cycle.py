"""The replay of an actor-learner, and its cycle: one new rollout, then replayed sequences.

Each worker step learns from one of them.
"""

from typing import NamedTuple

import jax
import numpy as np

from birl.config import EnvConfig, require
from birl.errors import snapshot_errors
from birl.parts import ActorLearnerConfig
from birl.rollouts.finite import for_learning
from birl.rollouts.replay import Replay
from birl.types import Array, PyTree, Rollout, Snapshot


class ReplayShare(NamedTuple):
    """The replay of one actor-learner."""

    size: int  # transitions
    discount: float  # γ
    frame_stack: int
    behaviour: PyTree  # [B, ...] zeros like the distributions that are kept with each step


def validate_share(size: int, rollout_length: int, env: EnvConfig, learners: ActorLearnerConfig) -> None:
    """Check that each actor-learner's part of a replay of this size holds a rollout."""
    count = learners.actor_learners
    rollout = rollout_length * env.num_envs
    each = f"{size // count} each, less than a rollout: {rollout_length} steps of {env.num_envs} environments"
    wrong = f"replay_size {size} leaves {count} actor-learners {each}"
    require(size == 0 or size // count >= rollout, f"{wrong}; use at least {rollout * count}, or 0")


class Cycle:
    """A new rollout and the sequences that are replayed after it.

    The rollout's steps and statistics are shared with others at the end of the cycle.
    """

    def __init__(self, share: ReplayShare, like: Rollout) -> None:
        self.replay = Replay(share.size, like, share.discount, frame_stack=share.frame_stack)
        self.left: list[Rollout] = []  # still to learn from in this cycle, one in each worker step
        self.updates = 0  # replayed updates of this cycle
        self.env_steps = 0  # of the new rollout
        self.normalizer = np.zeros(0, np.float32)  # [M] the actor-learner's statistics after it
        self.key = np.zeros(2, np.uint32)  # of the next cycle
        self._structure = jax.tree.structure(for_learning(like, clip_rewards=False))

    def begin(self, rollout: Rollout, replayed: list[Rollout], normalizer: Array, key: Array) -> None:
        """Begin a cycle with this rollout and these replayed sequences."""
        self.left = [rollout, *replayed]
        self.updates = len(replayed)
        self.env_steps = int(np.count_nonzero(rollout.valid))
        self.normalizer = np.asarray(normalizer)
        self.key = np.asarray(key)

    def snapshot(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot with the replay and the rest of the cycle; write it before going on."""
        arrays = {"cycle/normalizer": self.normalizer, "cycle/key": self.key}
        for number, sequences in enumerate(self.left):
            arrays |= {f"cycle/{number}/{i}": np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(sequences))}
        values = {"cycle": {"left": len(self.left), "updates": self.updates, "env_steps": self.env_steps}}
        snapshot = self.replay.snapshot(snapshot)
        return Snapshot(snapshot.arrays | arrays, snapshot.values | values, snapshot.exact, snapshot.reason)

    @snapshot_errors()
    def restore(self, snapshot: Snapshot, fresh: np.ndarray) -> None:
        """Go on from a snapshot. `fresh` marks the environments that begin a new episode."""
        self.replay.restore(snapshot, fresh)
        values = snapshot.values["cycle"]
        self.normalizer = snapshot.arrays["cycle/normalizer"]
        self.key = snapshot.arrays["cycle/key"]
        self.updates = values["updates"]
        self.env_steps = values["env_steps"]
        parts = [snapshot.arrays_under(f"cycle/{number}/") for number in range(values["left"])]
        self.left = [jax.tree.unflatten(self._structure, [part[str(i)] for i in range(len(part))]) for part in parts]
