"""The worker step of actor-learners that have a replay."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from birl.asynchronous.actor_learner import ActorLearner, Work
from birl.asynchronous.parameters import Layouts, ParameterLayout, Weights, WorkerResult
from birl.maths.count import Count
from birl.maths.keys import stream
from birl.nets.normalize import Normalizer, merge_moments, update_normalizer
from birl.nets.optimizers import clip_by_norm, flatten_tree
from birl.rollouts.finite import check_finite_metrics, for_learning
from birl.rollouts.replay import Replay
from birl.types import Array, Metrics, PyTree, Rollout


class Learner(NamedTuple):
    """What a gradient depends on besides the rollout: one learner's networks, key and counts."""

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
    weights: Weights, learner: ActorLearner, work: Work, gradients: Gradients, sample_sequences: SampleSequences
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


def begin_cycle(weights: Weights, learner: ActorLearner, work: Work, sample_sequences: SampleSequences) -> None:
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
