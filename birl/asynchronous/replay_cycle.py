"""The replay of an actor-learner, and its cycle: one new rollout, then replayed sequences.

Each worker step learns from one of them.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol

import gymnasium as gym
import jax
import numpy as np

from birl.config import EnvConfig, require
from birl.errors import snapshot_errors
from birl.rollouts.finite import for_learning
from birl.rollouts.replay import Replay
from birl.types import Array, PyTree, Rollout, Snapshot


class ReplayShare(NamedTuple):
    """The replay of one actor-learner."""

    size: int  # transitions
    discount: float  # γ
    frame_stack: int
    behaviour: PyTree  # [B, ...] zeros like the distributions that are kept with each step


class ReplayShareSettings(Protocol):
    """The settings of a Config that say how large the replays are."""

    @property
    def env(self) -> EnvConfig: ...
    @property
    def actor_learners(self) -> int: ...
    @property
    def rollout_length(self) -> int: ...
    @property
    def replay_size(self) -> int: ...
    @property
    def discount(self) -> float: ...
    @property
    def frame_stack(self) -> int: ...


def validate_shares(config: ReplayShareSettings) -> None:
    """Check that each actor-learner's part of the replay holds a rollout."""
    share = config.replay_size // config.actor_learners
    rollout = config.rollout_length * config.env.num_envs
    each = f"{share} each, less than a rollout: {config.rollout_length} steps of {config.env.num_envs} environments"
    remedy = f"use at least {rollout * config.actor_learners}, or 0"
    wrong = f"replay_size {config.replay_size} leaves {config.actor_learners} actor-learners {each}"
    require(config.replay_size == 0 or share >= rollout, f"{wrong}; {remedy}")


def replay_share(
    config: ReplayShareSettings, empty_behaviour: Callable[[gym.Space, int], PyTree], action_space: gym.Space
) -> ReplayShare:
    """An equal part of the replay for each actor-learner; for replay_size 0, one rollout."""
    num_envs = config.env.num_envs
    size = config.replay_size // config.actor_learners or config.rollout_length * num_envs
    return ReplayShare(size, config.discount, config.frame_stack, empty_behaviour(action_space, num_envs))


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
