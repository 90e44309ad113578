"""Asynchronous Q-learning, Sarsa and n-step Q-learning (Mnih et al. 2016, arXiv 1602.01783).

Actor-learners with their own environments, each in a loop:
1. Copy the shared parameters: θ' ← θ.
2. Act ε-greedily on Q for `rollout_length` steps or until the episode ends; each has its own ε.
3. Compute the gradient of (y - Q(s, a; θ'))². The three algorithms differ in the targets y.
4. Apply it to the shared θ by RMSProp with shared statistics, without a lock. Every I_target steps
   of all together, θ⁻ ← θ.

Differs from the paper: with one-step targets, too, an actor-learner takes the steps between two
updates with one copy of θ; gradients are means over these steps, not sums, and clipped by their
norm; an actor-learner may have several environments, and then it stops early only if all their
episodes end at once; where a time limit truncates an episode, Q bootstraps; ε is drawn once for
each actor-learner; RMSProp's own ε is outside the root by default.

In Sarsa, the a' after the last step is drawn before the update, with the random key with which the
next rollout draws it: it is the action that is taken then, unless the update changes the greedy
action. Where a time limit truncates an episode no action follows, and y takes the mean of
Q(s', ·; θ⁻) under the ε-greedy policy.
"""

from collections.abc import Iterator
from functools import partial
from typing import Annotated, NamedTuple

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np

from birl.asynchronous.actor_learner import ActorLearner, Work, final_exploration, initial_state
from birl.asynchronous.parameters import Layouts, SharedParameters, State, Weights, WorkerResult
from birl.asynchronous.pool import train_actor_learners
from birl.checks import (
    require_config,
    require_own_envs,
    require_rmsprop,
    validate_actor_learners,
    validate_exploration,
    validate_settings,
)
from birl.config import EnvConfig, RunConfig
from birl.limits import Discount, PositiveInt, Probability, Rate
from birl.maths import losses
from birl.maths.distributions import Categorical
from birl.maths.exploration import epsilon_greedy
from birl.maths.keys import step_keys, stream
from birl.maths.returns import discounted_returns, n_step_returns
from birl.maths.schedules import linear, number_at, value_at
from birl.nets.models import without_first
from birl.nets.normalize import merge_moments, normalize_for_worker
from birl.nets.optimizers import clip_by_norm, flatten_tree, shared_rmsprop
from birl.nets.values import (
    MakeQNetwork,
    QNetworkLike,
    QPolicy,
    make_q_network,
    max_q_values,
    q_of_actions,
    rollout_values,
)
from birl.nets.values import act as act
from birl.parts import VALUES_ONLY, ActorLearnerConfig, NetworkConfig, NormalizeConfig, OptimizerConfig
from birl.registry import Alias, Supports
from birl.rollouts.finite import check_finite_metrics, for_learning
from birl.search import Choices, LogRange, Range
from birl.traced import settings
from birl.types import Array, Metrics, PyTree, Rollout, Snapshot, Update
from birl.variants import variant

SUPPORTS = Supports(
    ("Discrete",),
    masks=True,
    recurrent=True,
    passed_envs=False,
    actor_learners=True,
    values="Q(s, ·)",
    aliases={
        "sb3": {"loss/value": Alias("train/loss")},
        "cleanrl": {"loss/value": Alias("losses/td_loss")},
    },
)


@settings
class Config:
    """The settings of asynchronous Q-learning; Sarsa and n-step Q-learning have the same."""

    env: EnvConfig = EnvConfig(num_envs=1)  # of each actor-learner
    run: RunConfig = RunConfig()
    learners: ActorLearnerConfig = ActorLearnerConfig()
    network: Annotated[NetworkConfig, VALUES_ONLY] = NetworkConfig(hidden_sizes=(64, 64), activation="relu")
    normalize: NormalizeConfig = NormalizeConfig()
    gradient: OptimizerConfig = OptimizerConfig("rmsprop", max_grad_norm=10.0)
    # I_AsyncUpdate, t_max: steps of each environment between updates; fewer at an end
    rollout_length: Annotated[PositiveInt, Choices((5, 10, 20))] = 5
    # I_target: environment steps of all actor-learners between target network updates
    target_every: Annotated[PositiveInt, Choices((200, 1000, 5000))] = 1000
    discount: Discount = 0.99  # γ
    final_explorations: tuple[float, ...] = (0.1, 0.01, 0.5)  # each actor-learner draws its final ε from these
    exploration_chances: tuple[float, ...] = (0.4, 0.3, 0.3)  # the probability of each of them
    # the fraction of total_steps in which ε falls from 1 to its final value
    exploration_fraction: Annotated[float, Range(0.1, 0.6)] = 0.5
    exploration: Probability | None = None  # ε of all actor-learners; None: each has a final ε of its own
    learning_rate: Annotated[Rate, LogRange(1e-4, 5e-3)] = linear(7e-4, 0.0)  # η: size of a gradient step


def validate(config: Config) -> None:
    """Raise ConfigError if these settings cannot work."""
    validate_settings(config, Config)
    validate_actor_learners(config.env, config.learners)
    require_rmsprop(config.gradient, config.learners)
    validate_exploration(config.final_explorations, config.exploration_chances, config.exploration_fraction)


def init(
    config: Config, observation_space: gym.Space, action_space: gym.Space, make_network: MakeQNetwork | None = None
) -> State:
    """A fresh State for these spaces, the same for the same seed."""
    require_config(config, Config)
    make = make_network or partial(make_q_network, network=config.network)
    return initial_state(config, Config, observation_space, action_space, make, has_target=True)


def policy(state: State) -> PyTree:
    """The part of the state that acts, with ε = 0."""
    return QPolicy(state.network, merge_moments(state.normalizer.observations), np.float32(0.0))


class QRollout(NamedTuple):
    """A rollout with both networks' action values: all that the targets depend on."""

    rollout: Rollout
    action_values: Array  # [T+1, B, A] Q(s, ·; θ')
    target_values: Array  # [T+1, B, A] Q(s, ·; θ⁻)
    epsilon: Array  # ε with which the actor-learner acts
    next_key: Array  # [2] the key of its next rollout

    @property
    def best_next(self) -> Array:
        """[T, B] max Q(s', ·; θ⁻) of the actions that are allowed."""
        return max_q_values(self.target_values[1:], without_first(self.rollout.action_masks))


def q_targets(q: QRollout, config: Config) -> Array:
    """[T, B] y = r + γ max Q(s', ·; θ⁻), or r if s' is terminal (Mnih et al. 2016, algorithm 1)."""
    rollout = q.rollout
    flags = rollout.terminated, rollout.truncated, rollout.valid
    return n_step_returns(rollout.rewards, *flags, q.best_next, config.discount, n=1)


def sarsa_targets(q: QRollout, config: Config) -> Array:
    """[T, B] y = r + γ Q(s', a'; θ⁻), or r if s' is terminal (Mnih et al. 2016, section 4)."""
    rollout = q.rollout
    flags = rollout.terminated, rollout.truncated, rollout.valid
    behaviour = epsilon_greedy(q.action_values[1:], q.epsilon, without_first(rollout.action_masks))
    # The last a' is drawn as the next rollout will draw it.
    last = Categorical(behaviour.logits[-1]).sample(step_keys(q.next_key, config.rollout_length)[0])
    next_actions = jnp.concatenate([rollout.actions[1:], last[None]])
    means = jnp.sum(jax.nn.softmax(behaviour.logits) * q.target_values[1:], axis=-1)
    next_values = jnp.where(rollout.truncated, means, q_of_actions(q.target_values[1:], next_actions))
    return n_step_returns(rollout.rewards, *flags, next_values, config.discount, n=1)


def nstep_q_targets(q: QRollout, config: Config) -> Array:
    """[T, B] R ← r + γR, from max Q(s, ·; θ⁻) or 0 if terminal (Mnih et al. 2016, algorithm S2)."""
    rollout = q.rollout
    flags = rollout.terminated, rollout.truncated, rollout.valid
    return discounted_returns(rollout.rewards, *flags, q.best_next, config.discount)


def loss(
    network: QNetworkLike,
    target_network: QNetworkLike,
    moments: PyTree,
    rollout: Rollout,
    epsilon: Array,
    next_key: Array,
    config: Config,
) -> tuple[Array, Metrics]:
    """E[(y - Q(s, a; θ'))²] over the valid steps (Mnih et al. 2016, algorithms 1 and S2)."""
    action_values = rollout_values(network, moments, rollout)
    target_values = rollout_values(target_network, moments, rollout)
    y = TARGETS[type(config)](QRollout(rollout, action_values, target_values, epsilon, next_key), config)
    values = q_of_actions(action_values[:-1], rollout.actions)
    value_loss = losses.value_loss(values, y, rollout.valid)
    td_error = losses.masked_mean(jnp.abs(y - values), rollout.valid)
    return value_loss, {"loss/value": value_loss, "value/td_error": td_error}


@partial(jax.jit, static_argnames="layouts")
def gradients(
    weights: Weights, number: Array, key: Array, epsilon: Array, rollout: Rollout, layouts: Layouts, config: Config
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
    gradient, norm = clip_by_norm(gradient, config.gradient.max_grad_norm)
    metrics |= {"optimizer/grad_norm": norm, "optimizer/learning_rate": learning_rate}
    return flatten_tree(gradient), flatten_tree(own), next_key, metrics


def exploration_at(config: Config, number: int, env_steps: int) -> np.float32:
    """ε of actor-learner `number` after this many steps of all: linear from 1 to its final ε.

    The final ε is reached at the fraction `exploration_fraction` of the run. If `exploration` is
    set, all have that ε.
    """
    progress = env_steps / config.run.total_steps
    if config.exploration is not None:
        return np.float32(number_at(config.exploration, progress))
    final = final_exploration(config.final_explorations, config.exploration_chances, config.run.seed, number)
    return np.float32(1.0 + min(progress / config.exploration_fraction, 1.0) * (final - 1.0))


def worker_step(weights: Weights, learner: ActorLearner, work: Work) -> WorkerResult:
    """One step of an actor-learner: act, then dθ. `weights` is its copy: θ' ← θ."""
    config = work.config
    stats = learner.collector.episode_stats
    network = work.layouts.network.tree(weights.network)
    normalizers = work.layouts.normalizer.tree(weights.normalizers)
    epsilon = exploration_at(config, learner.number, int(weights.env_steps))
    policy = network, merge_moments(normalizers.observations), epsilon
    rollout = for_learning(learner.collector.collect(policy, learner.key), config.normalize.clip_rewards)
    with stats.timed("learning"):
        gradient, own, key, metrics = gradients(
            weights, np.int32(learner.number), learner.key, epsilon, rollout, work.layouts, config
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


def apply_gradients(shared: SharedParameters, result: WorkerResult, config: Config) -> None:
    """Apply dθ to the shared θ by RMSProp, without a lock; every `target_every` steps θ⁻ ← θ."""
    shared_rmsprop(shared.weights, shared.mean_squares, result.gradients, result.learning_rate, config.gradient)
    shared.copy_weights_every(config.target_every, result.env_steps)


def train(
    config: Config,
    envs: None = None,
    state: State | None = None,
    snapshot: Snapshot | None = None,
    make_network: MakeQNetwork | None = None,
) -> Iterator[Update]:
    """Learn until `total_steps`, yielding every `report_every` steps.

    With `state` and `snapshot`, training continues from there.
    """
    validate(config)
    require_own_envs(envs)
    start = partial(init, config, make_network=make_network)
    yield from train_actor_learners(
        config, __name__, start, worker_step, apply_gradients, state, snapshot, until_end=True
    )


async_sarsa = variant(__name__, "async_sarsa")
async_nstep_q = variant(__name__, "async_nstep_q")
TARGETS = {Config: q_targets, async_sarsa.Config: sarsa_targets, async_nstep_q.Config: nstep_q_targets}
