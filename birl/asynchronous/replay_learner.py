"""Actor-learners that have a replay: their cycle of worker steps.

A cycle is one new rollout, then replayed sequences. Each worker step learns from one of them.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from birl.asynchronous.parameters import Layouts, ParameterLayout, Weights, WorkerResult
from birl.config import EnvConfig, require
from birl.errors import snapshot_errors
from birl.maths.count import Count
from birl.maths.keys import stream
from birl.nets.normalize import Normalizer, merge_moments, update_normalizer
from birl.nets.optimizers import clip_by_norm, flatten_tree
from birl.parts import ActorLearnerConfig
from birl.rollouts.finite import check_finite_metrics, for_learning
from birl.rollouts.replay import Replay
from birl.types import Array, Metrics, PyTree, Rollout, Snapshot

if TYPE_CHECKING:  # it opens the cycles that are here
    from birl.asynchronous.actor_learner import ActorLearner, Work


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
        """Continue from a snapshot. `fresh` marks the environments that begin a new episode."""
        self.replay.restore(snapshot, fresh)
        values = snapshot.values["cycle"]
        self.normalizer = snapshot.arrays["cycle/normalizer"]
        self.key = snapshot.arrays["cycle/key"]
        self.updates = values["updates"]
        self.env_steps = values["env_steps"]
        parts = [snapshot.arrays_under(f"cycle/{number}/") for number in range(values["left"])]
        self.left = [jax.tree.unflatten(self._structure, [part[str(i)] for i in range(len(part))]) for part in parts]


class Learner(NamedTuple):
    """The inputs of a gradient besides the rollout: one learner's networks, key and counts."""

    network: PyTree
    target_network: PyTree  # or the average network
    normalizer: Normalizer
    key: Array
    env_steps: Count
    gradient_steps: Array


Gradients = Callable[[Learner, Rollout, Any], tuple[PyTree, Metrics]]  # the last argument is the Config
# replay, key, environment steps so far, Config -> the sequences of a cycle
SampleSequences = Callable[[Replay, Array, int, Any], list[Rollout]]


def replay_worker_step(
    weights: Weights, learner: "ActorLearner", work: "Work", gradients: Gradients, sample_sequences: SampleSequences
) -> WorkerResult:
    """dθ of a new rollout, or of the next sequences replayed after it; `weights` is a copy of θ."""
    cycle = learner.cycle
    stats = learner.collector.episode_stats
    assert cycle is not None  # Work.replay is set
    if not cycle.left:
        begin_cycle(weights, learner, work, sample_sequences)
    with stats.timed("learning"):
        rollout = cycle.left.pop(0)
        gradient, metrics = flat_gradients(weights, learner.key, rollout, gradients, work.layouts, work.config)
        metrics = check_finite_metrics(metrics)
    replay = {"replay/updates": cycle.updates, "replay/steps": len(cycle.replay), "replay/bytes": cycle.replay.bytes}
    last = not cycle.left  # only the last step of a cycle counts the rollout's steps and statistics
    return WorkerResult(
        gradients=np.asarray(gradient),
        learning_rate=metrics["optimizer/learning_rate"],
        env_steps=cycle.env_steps if last else 0,
        normalizer=cycle.normalizer if last else weights.normalizers[learner.number],
        key=cycle.key if last else learner.key,
        metrics=metrics | replay | stats.metrics(),
    )


def begin_cycle(weights: Weights, learner: "ActorLearner", work: "Work", sample_sequences: SampleSequences) -> None:
    """Collect a rollout with the shared policy, and sample the sequences to replay after it."""
    cycle = learner.cycle
    config = work.config
    assert cycle is not None
    network = work.layouts.network.tree(weights.network)
    normalizers = work.layouts.normalizer.tree(weights.normalizers)
    policy = network, merge_moments(normalizers.observations)
    rollout = for_learning(learner.collector.collect(policy, learner.key), config.normalize.clip_rewards)
    with learner.collector.episode_stats.timed("learning"):
        cycle.replay.require_fits(rollout)
        cycle.replay.add(rollout)
        sequences = sample_sequences(cycle.replay, learner.key, int(weights.env_steps), config)
        own = weights.normalizers[learner.number]
        own, key = after_rollout(own, learner.key, rollout, work.layouts.normalizer, config.discount)
        cycle.begin(rollout, sequences, own, key)


@partial(jax.jit, static_argnames=("gradients", "layouts"))
def flat_gradients(
    weights: Weights, key: Array, rollout: Rollout, gradients: Gradients, layouts: Layouts, config: Any
) -> tuple[Array, Metrics]:
    """[P] dθ of a rollout, clipped by its norm, and the metrics."""
    rows = layouts.normalizer.tree(weights.normalizers)
    learner = Learner(
        network=layouts.network.tree(weights.network),
        target_network=layouts.network.tree(weights.target_weights),
        normalizer=Normalizer(merge_moments(rows.observations), merge_moments(rows.returns), None),
        key=key,
        env_steps=weights.env_steps,
        gradient_steps=weights.gradient_steps,
    )
    gradient, metrics = gradients(learner, rollout, config)
    gradient, norm = clip_by_norm(gradient, config.gradient.max_grad_norm)
    return flatten_tree(gradient), metrics | {"optimizer/grad_norm": norm}


@partial(jax.jit, static_argnames="layout")
def after_rollout(
    own: Array, key: Array, rollout: Rollout, layout: ParameterLayout, discount: float
) -> tuple[Array, Array]:
    """[M] an actor-learner's statistics after a rollout, and its next key."""
    normalizer = update_normalizer(layout.tree(own), rollout, discount)
    return flatten_tree(normalizer), stream(key, "next")
