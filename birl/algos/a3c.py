"""Asynchronous advantage actor-critic, A3C (Mnih et al. 2016, arXiv 1602.01783, algorithm S3).

Actor-learners with their own environments learn one shared θ. Each of them repeats these lines, in
a process of its own, without locks:

    weights = shared.read()                         # θ' ← θ
    result = worker_step(weights, learner, work)    # act t_max steps; R ← r + γR; dθ
    apply_gradients(shared, result, config)         # asynchronous update of θ using dθ
    shared.write(learner.number, result)            # T ← T + the steps taken

`worker_step` and `apply_gradients` are in this file. The loop is `learn` in
birl/asynchronous/processes.py, or `SerialPool.run` in birl/asynchronous/pool.py for actor-
learners that take turns in this process, or `RayPool.run` in birl/asynchronous/ray_pool.py.

Differs from the paper: a rollout goes on into the next episode instead of ending with the episode,
so one actor-learner is A2C with one environment; gradients are means over the steps, not sums, and
clipped by their norm; an actor-learner may have several environments; where a time limit truncates
an episode, V bootstraps; RMSProp's ε is outside the root by default.
"""

from collections.abc import Iterator
from functools import partial
from typing import Annotated

import gymnasium as gym
import jax
import numpy as np

from birl.asynchronous.actor_learner import ActorLearner, Work, initial_state
from birl.asynchronous.parameters import Layouts, SharedParameters, State, Weights, WorkerResult
from birl.asynchronous.pool import train_actor_learners
from birl.checks import require_config, require_own_envs, require_rmsprop, validate_actor_learners, validate_settings
from birl.config import EnvConfig, RunConfig
from birl.limits import GRAD_NORMS, Discount, EntropyWeight, PositiveInt, Rate
from birl.maths.keys import stream
from birl.maths.schedules import linear, value_at
from birl.nets.actor_critic_loss import actor_critic_loss
from birl.nets.models import ActorCriticLike, ActorCriticPolicy, MakeNetwork, make_actor_critic
from birl.nets.models import act as act
from birl.nets.normalize import merge_moments, normalize_for_worker
from birl.nets.optimizers import clip_by_norm, flatten_tree, shared_rmsprop
from birl.parts import GAUSSIAN_ONLY, ActionConfig, ActorLearnerConfig, NetworkConfig, NormalizeConfig, OptimizerConfig
from birl.registry import EVERY_ACTION, Supports
from birl.rollouts.finite import check_finite_metrics, for_learning
from birl.search import Choices, LogRange
from birl.settings import Search
from birl.traced import settings
from birl.types import Array, Metrics, PyTree, Rollout, Snapshot, Update

SUPPORTS = Supports(
    EVERY_ACTION, masks=True, recurrent=True, passed_envs=False, actor_learners=True, values="V(s)", distribution=True
)


@settings
class Config:
    """A3C's settings."""

    env: EnvConfig = EnvConfig(num_envs=1)  # of each actor-learner
    run: RunConfig = RunConfig()
    learners: ActorLearnerConfig = ActorLearnerConfig()
    network: NetworkConfig = NetworkConfig(hidden_sizes=(64, 64), activation="tanh")
    actions: Annotated[ActionConfig, GAUSSIAN_ONLY] = ActionConfig()
    normalize: NormalizeConfig = NormalizeConfig()
    gradient: Annotated[OptimizerConfig, Search(max_grad_norm=GRAD_NORMS)] = OptimizerConfig(
        "rmsprop", max_grad_norm=0.5
    )
    # t_max: steps of each environment between updates, and most rewards in a return
    rollout_length: Annotated[PositiveInt, Choices((5, 10, 20, 50))] = 5
    discount: Discount = 0.99  # γ
    entropy_weight: EntropyWeight = 0.01  # β
    value_weight: float = 0.5  # weight of the value loss
    learning_rate: Annotated[Rate, LogRange(1e-4, 5e-3)] = linear(7e-4, 0.0)  # η: size of a gradient step


def validate(config: Config) -> None:
    """Raise ConfigError if these settings cannot work."""
    validate_settings(config, Config)
    validate_actor_learners(config.env, config.learners)
    require_rmsprop(config.gradient, config.learners)


def init(
    config: Config, observation_space: gym.Space, action_space: gym.Space, make_network: MakeNetwork | None = None
) -> State:
    """A fresh State for these spaces, the same for the same seed."""
    require_config(config, Config)
    make = make_network or partial(make_actor_critic, network=config.network, actions=config.actions)
    return initial_state(config, Config, observation_space, action_space, make, has_target=False)


def policy(state: State) -> PyTree:
    """The part of the state that acts."""
    return ActorCriticPolicy(state.network, merge_moments(state.normalizer.observations))


def loss(
    network: ActorCriticLike, moments: PyTree, rollout: Rollout, entropy_weight: Array, config: Config
) -> tuple[Array, Metrics]:
    """The loss of an actor-critic with λ = 1: advantages are R - V."""
    weights = entropy_weight, config.value_weight
    return actor_critic_loss(network, moments, rollout, *weights, config.discount, 1.0)


@partial(jax.jit, static_argnames="layouts")
def gradients(
    weights: Weights, number: Array, key: Array, rollout: Rollout, layouts: Layouts, config: Config
) -> tuple[Array, Array, Array, Metrics]:
    """[P] clipped dθ, [M] statistics of actor-learner `number`, its next key, and metrics."""
    network = layouts.network.tree(weights.network)
    normalizers = layouts.normalizer.tree(weights.normalizers)
    progress = weights.env_steps / config.run.total_steps
    learning_rate = value_at(config.learning_rate, progress)
    entropy_weight = value_at(config.entropy_weight, progress)
    moments, rollout, own = normalize_for_worker(normalizers, number, rollout, config.discount)
    gradient, metrics = jax.grad(loss, has_aux=True)(network, moments, rollout, entropy_weight, config)
    gradient, norm = clip_by_norm(gradient, config.gradient.max_grad_norm)
    metrics |= {"optimizer/grad_norm": norm, "optimizer/learning_rate": learning_rate}
    return flatten_tree(gradient), flatten_tree(own), stream(key, "next"), metrics


def worker_step(weights: Weights, learner: ActorLearner, work: Work) -> WorkerResult:
    """One step of an actor-learner. `weights` is its own copy of the parameters: θ' ← θ."""
    config = work.config
    stats = learner.collector.episode_stats
    network = work.layouts.network.tree(weights.network)  # θ' as a network
    normalizers = work.layouts.normalizer.tree(weights.normalizers)
    # Perform a_t according to π(a_t|s_t; θ'), t_max times.
    policy = network, merge_moments(normalizers.observations)
    rollout = for_learning(learner.collector.collect(policy, learner.key), config.normalize.clip_rewards)
    # Accumulate R and dθ over these steps.
    with stats.timed("learning"):
        gradient, own, key, metrics = gradients(
            weights, np.int32(learner.number), learner.key, rollout, work.layouts, config
        )
        metrics = check_finite_metrics(metrics)
    return WorkerResult(
        gradients=np.asarray(gradient),  # dθ
        learning_rate=metrics["optimizer/learning_rate"],
        env_steps=int(np.count_nonzero(rollout.valid)),
        normalizer=np.asarray(own),
        key=np.asarray(key),
        metrics=metrics | stats.metrics(),
    )


def apply_gradients(shared: SharedParameters, result: WorkerResult, config: Config) -> None:
    """Asynchronous update of θ using dθ, by RMSProp with shared statistics, without a lock."""
    shared_rmsprop(shared.weights, shared.mean_squares, result.gradients, result.learning_rate, config.gradient)


def train(
    config: Config,
    envs: None = None,
    state: State | None = None,
    snapshot: Snapshot | None = None,
    make_network: MakeNetwork | None = None,
) -> Iterator[Update]:
    """Learn until `total_steps`, yielding every `report_every` steps.

    With `state` and `snapshot`, training continues from there.
    """
    validate(config)
    require_own_envs(envs)
    start = partial(init, config, make_network=make_network)
    yield from train_actor_learners(config, __name__, start, worker_step, apply_gradients, state, snapshot)
