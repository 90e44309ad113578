"""The loop that asynchronous Q-learning, Sarsa and n-step Q-learning share (Mnih et al. 2016).

Actor-learners with their own environments, each in a loop:
1. Copy the shared parameters: θ' ← θ.
2. Act ε-greedily on Q(s, ·; θ') for `rollout_length` steps or until the episode ends.
3. Compute the gradient of (y - Q(s, a; θ'))². The targets y are what the algorithms differ in.
4. Apply it to the shared θ by RMSProp, without a lock. Every `target_every` steps, θ⁻ ← θ.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from birl.asynchronous.actor_learner import ActorLearner, Work
from birl.asynchronous.exploration import exploration_at
from birl.asynchronous.parameters import Layouts, SharedParameters, State, Weights, WorkerResult
from birl.maths import losses
from birl.maths.keys import stream
from birl.maths.schedules import value_at
from birl.nets.normalize import merge_moments, normalize_for_worker
from birl.nets.optimizers import clip_by_norm, flatten_tree, shared_rmsprop
from birl.nets.policies import QPolicy
from birl.nets.values import QNetworkLike, q_of_actions, rollout_values
from birl.rollouts.finite import check_finite_metrics, for_learning
from birl.types import Array, Metrics, PyTree, Rollout


class QRollout(NamedTuple):
    """A rollout with both networks' action values: all that an algorithm's targets depend on."""

    rollout: Rollout
    action_values: Array  # [T+1, B, A] Q(s, ·; θ')
    target_values: Array  # [T+1, B, A] Q(s, ·; θ⁻)
    epsilon: Array  # ε with which the actor-learner acts
    next_key: Array  # [2] the key of its next rollout


Targets = Callable[[QRollout, Any], Array]  # the last argument is the Config; [T, B]
Loss = Callable[..., tuple[Array, Metrics]]  # q_loss with an algorithm's targets


def policy(state: State) -> PyTree:
    """The part of the state that acts, with ε = 0."""
    return QPolicy(state.network, merge_moments(state.normalizer.observations), np.float32(0.0))


def q_loss(
    network: QNetworkLike,
    target_network: QNetworkLike,
    moments: PyTree,
    rollout: Rollout,
    epsilon: Array,
    next_key: Array,
    config: Any,
    targets: Targets,
) -> tuple[Array, Metrics]:
    """E[(y - Q(s, a; θ'))²] over the valid steps (Mnih et al. 2016, algorithms 1 and S2)."""
    action_values = rollout_values(network, moments, rollout)
    target_values = rollout_values(target_network, moments, rollout)
    y = targets(QRollout(rollout, action_values, target_values, epsilon, next_key), config)
    values = q_of_actions(action_values[:-1], rollout.actions)
    value_loss = losses.value_loss(values, y, rollout.valid)
    td_error = losses.masked_mean(jnp.abs(y - values), rollout.valid)
    return value_loss, {"loss/value": value_loss, "value/td_error": td_error}


@partial(jax.jit, static_argnames=("loss", "layouts"))
def gradients(
    weights: Weights,
    number: Array,
    key: Array,
    epsilon: Array,
    rollout: Rollout,
    loss: Loss,
    layouts: Layouts,
    config: Any,
) -> tuple[Array, Array, Array, Metrics]:
    """[P] clipped dθ, [M] statistics of actor-learner `number`, its next key, and metrics."""
    network = layouts.network.tree(weights.network)
    target_network = layouts.network.tree(weights.target_weights)
    normalizers = layouts.normalizer.tree(weights.normalizers)
    learning_rate = value_at(config.learning_rate, weights.env_steps / config.run.total_steps)
    moments, rollout, own = normalize_for_worker(normalizers, number, rollout, config.discount, counted=rollout.valid)
    next_key = stream(key, "next")
    gradient, metrics = jax.grad(loss, has_aux=True)(
        network, target_network, moments, rollout, epsilon, next_key, config
    )
    gradient, norm = clip_by_norm(gradient, config.max_grad_norm)
    metrics |= {"optimizer/grad_norm": norm, "optimizer/learning_rate": learning_rate}
    return flatten_tree(gradient), flatten_tree(own), next_key, metrics


def q_worker_step(weights: Weights, learner: ActorLearner, work: Work, loss: Loss) -> WorkerResult:
    """One step of an actor-learner: act, then dθ. `weights` is its copy: θ' ← θ."""
    config = work.config
    stats = learner.collector.episode_stats
    network = work.layouts.network.tree(weights.network)
    normalizers = work.layouts.normalizer.tree(weights.normalizers)
    epsilon = exploration_at(config, learner.number, int(weights.env_steps))
    policy = network, merge_moments(normalizers.observations), epsilon
    rollout = for_learning(learner.collector.collect(policy, learner.key), config.clip_rewards)
    with stats.timed("learning"):
        gradient, own, key, metrics = gradients(
            weights, np.int32(learner.number), learner.key, epsilon, rollout, loss, work.layouts, config
        )
        metrics = check_finite_metrics(metrics) | {"exploration/epsilon": float(epsilon)}
    return WorkerResult(
        gradients=np.asarray(gradient),
        learning_rate=metrics["optimizer/learning_rate"],
        env_steps=int(np.count_nonzero(rollout.valid)),
        normalizer=np.asarray(own),
        key=np.asarray(key),
        metrics=metrics | stats.metrics(),
    )


def apply_gradients(shared: SharedParameters, result: WorkerResult, config: Any) -> None:
    """Apply dθ to the shared θ by RMSProp, without a lock; every `target_every` steps θ⁻ ← θ."""
    shared_rmsprop(shared.weights, shared.mean_squares, result.gradients, result.learning_rate, config)
    shared.copy_weights_every(config.target_every, result.env_steps)
