"""Asynchronous advantage actor-critic, A3C (Mnih et al. 2016, arXiv 1602.01783, algorithm S3).

Actor-learners with their own environments learn one shared θ. Each of them repeats these lines, in
a process of its own, without locks:

    weights = shared.read()                         # θ' ← θ
    result = worker_step(weights, learner, work)    # act t_max steps; R ← r + γR; dθ
    apply_gradients(shared, result, config)         # asynchronous update of θ using dθ
    shared.write(learner.number, result)            # T ← T + the steps taken

`worker_step` and `apply_gradients` are in this file. The loop is `learn` in
birl/asynchronous/process_main.py, or `SerialPool.run` in birl/asynchronous/serial.py for actor-
learners that take turns in this process, or `RayPool.run` in birl/asynchronous/ray.py.

Differs from the paper: a rollout goes on into the next episode instead of ending with the episode,
so one actor-learner is A2C with one environment; gradients are means over the steps, not sums, and
clipped by their norm; an actor-learner may have several environments; where a time limit truncates
an episode, V bootstraps; RMSProp's ε is outside the root by default.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

import gymnasium as gym
import jax
import numpy as np

from birl.asynchronous.actor_learner import ActorLearner, PoolName, Work, initial_state
from birl.asynchronous.parameters import Layouts, SharedParameters, State, Weights, WorkerResult
from birl.asynchronous.pool import train_actor_learners
from birl.checks import require_own_envs, validate_actor_learners, validate_settings
from birl.config import EnvConfig, RunConfig, check_fields
from birl.limits import Decay, Fraction, PositiveFloat, PositiveInt, Rate, Sizes, Units
from birl.maths.keys import stream
from birl.maths.schedules import Schedule, linear, value_at
from birl.nets.acting import act as act
from birl.nets.actor_critic_loss import actor_critic_loss
from birl.nets.encoders import EncoderName
from birl.nets.layers import Activation
from birl.nets.models import ActorCriticLike, MakeNetwork, make_actor_critic
from birl.nets.normalize import merge_moments, normalize_for_worker
from birl.nets.optimizers import RMSPropName, clip_by_norm, flatten_tree, shared_rmsprop
from birl.nets.policies import ActorCriticPolicy
from birl.nets.recurrent import CoreName
from birl.registry import EVERY_ACTION, Supports
from birl.rollouts.finite import check_finite_metrics, for_learning
from birl.search import ACTOR_CRITIC, Choices, LogRange, SearchSpace
from birl.traced import traced_settings
from birl.types import Array, Metrics, PyTree, Rollout, Snapshot, Update

SUPPORTS = Supports(
    EVERY_ACTION, masks=True, recurrent=True, passed_envs=False, actor_learners=True, values="V(s)", distribution=True
)


@traced_settings
@dataclass(frozen=True)
class Config:
    """A3C's settings."""

    env: EnvConfig = field(default_factory=partial(EnvConfig, num_envs=1))  # of each actor-learner
    run: RunConfig = field(default_factory=RunConfig)
    pool: PoolName = "processes"  # where actor-learners run: serial (here, in turn, reproducible), processes or ray
    actor_learners: PositiveInt = 4  # how many; with processes, as many as there are CPU cores
    report_every: PositiveInt = 1000  # environment steps of all actor-learners between two reports
    rollout_length: PositiveInt = 5  # t_max: steps of each environment between updates, and most rewards in a return
    discount: Fraction = 0.99  # γ
    entropy_weight: float | Schedule = 0.01  # β
    value_weight: float = 0.5
    learning_rate: Rate = field(default_factory=partial(linear, 7e-4, 0.0))  # η
    max_grad_norm: PositiveFloat | None = 0.5
    optimizer: RMSPropName = "rmsprop"  # PyTorch's: ε outside the root; rmsprop-tf: ε inside, mean square from 1
    optimizer_epsilon: PositiveFloat = 1e-5  # ε
    rmsprop_decay: Decay = 0.99  # α: decay of the mean of squared gradients
    normalize_observations: bool = False
    normalize_rewards: bool = False
    clip_rewards: bool = False  # learn from the signs of rewards (Mnih et al. 2015); returns are reported unclipped
    encoder: EncoderName = "auto"
    hidden_sizes: Sizes = (64, 64)
    policy_hidden_sizes: Sizes | None = None  # of the policy alone; None: hidden_sizes
    value_hidden_sizes: Sizes | None = None  # of the value alone; None: hidden_sizes
    activation: Activation = "tanh"
    core: CoreName = "feedforward"
    core_size: Units = 64
    share_trunk: bool = False  # one encoder and core for policy and value
    log_std: float = 0.0  # first log standard deviation of a continuous policy
    state_dependent_std: bool = False  # the log standard deviation is an output of the network
    scale_actions: bool = True  # to a Box whose bounds are not near ±1; False: the policy has the environment's numbers

    def __post_init__(self) -> None:
        check_fields(self)


SEARCH: SearchSpace = ACTOR_CRITIC | {
    "rollout_length": Choices((5, 10, 20, 50)),
    "learning_rate": LogRange(1e-4, 5e-3),
}


def validate(config: Config) -> None:
    """Raise ConfigError if these settings cannot work."""
    validate_settings(config, Config)
    validate_actor_learners(config)


def init(
    config: Config, observation_space: gym.Space, action_space: gym.Space, make_network: MakeNetwork | None = None
) -> State:
    """A fresh State for these spaces, the same for the same seed."""
    make = make_network or partial(make_actor_critic, settings=config)
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
    gradient, norm = clip_by_norm(gradient, config.max_grad_norm)
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
    rollout = for_learning(learner.collector.collect(policy, learner.key), config.clip_rewards)
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
    shared_rmsprop(shared.weights, shared.mean_squares, result.gradients, result.learning_rate, config)


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
