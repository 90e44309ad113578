"""Asynchronous advantage actor-critic (Mnih et al. 2016, arXiv 1602.01783, algorithm S3).

Actor-learners with environments of their own, each in a loop: copy the shared parameters; act for
t_max steps; n-step returns, bootstrapped from V where the episode goes on; the gradient of -log
π(a|s) (R - V(s)), of V's squared error and of the entropy; write a step of RMSProp, whose
statistics are shared as well, to the shared parameters without a lock.

Differs from the paper: steps go on into the next episode instead of ending the loop's turn early,
so one actor-learner is A2C with one environment; gradients are means over the steps, not sums, and
clipped by their norm; an actor-learner may have several environments; where an episode is cut by a
time limit, V goes on; RMSProp's ε is outside the root by default.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

import gymnasium as gym
import jax
import numpy as np

from birl.accel.devices import prepare_jax
from birl.asynchronous.actor_learner import (
    ActorLearner,
    PoolName,
    Result,
    SharedParameters,
    Weights,
    Work,
    open_pool,
    require_own_envs,
    validate_pool,
)
from birl.asynchronous.flat import ParameterLayout
from birl.asynchronous.parameters import State, initial_state, make_work, shared_parameters_of, state_of
from birl.config import (
    EnvConfig,
    RunConfig,
    check_fields,
    require,
    require_at_least_one,
    require_config,
    require_fractions,
    require_positive,
)
from birl.envs.make import spaces_of, validate_fields
from birl.maths import losses
from birl.maths.keys import stream
from birl.maths.returns import gae
from birl.maths.schedules import Schedule, linear, value_at
from birl.maths.statistics import explained_variance
from birl.nets.acting import act as act  # how the actor-learners act
from birl.nets.acting import evaluate_rollout, without_last
from birl.nets.encoders import EncoderName
from birl.nets.layers import Activation
from birl.nets.models import ActorCriticLike, MakeNetwork, largest_product, make_actor_critic, validate_network
from birl.nets.normalize import merge_moments, normalize_for_worker
from birl.nets.optimizers import RMSPropName, clip_by_norm, flatten_tree, require_not_negative, shared_rmsprop
from birl.nets.recurrent import CoreName
from birl.rollouts.collector import finite_metrics, learnable
from birl.types import Array, Metrics, PyTree, Rollout, Snapshot, Update


@dataclass(frozen=True)
class Config:
    """A3C's settings."""

    env: EnvConfig = field(default_factory=partial(EnvConfig, num_envs=1))  # of each actor-learner
    run: RunConfig = field(default_factory=RunConfig)
    pool: PoolName = (
        "processes"  # where actor-learners run: serial (in turn, the same run for the same seed), processes, ray
    )
    actor_learners: int = 4  # how many of them; with processes, as many as there are cores
    report_every: int = 1000  # environment steps of all together between what is logged
    rollout_length: int = 5  # t_max: steps of each environment between updates, and the most rewards in a return
    discount: float = 0.99  # γ
    entropy_weight: float | Schedule = 0.01  # β
    value_weight: float = 0.5
    learning_rate: float | Schedule = field(default_factory=partial(linear, 7e-4, 0.0))  # η
    max_grad_norm: float | None = 0.5
    optimizer: RMSPropName = (
        "rmsprop"  # with ε outside the square root, as PyTorch has it; rmsprop-tf: inside, and g from 1
    )
    optimizer_epsilon: float = 1e-5  # ε
    rmsprop_decay: float = 0.99  # α: of the mean of squared gradients
    normalize_observations: bool = False
    normalize_rewards: bool = False
    clip_rewards: bool = False  # learn from the signs of rewards (Mnih et al. 2015); returns are reported as they are
    encoder: EncoderName = "mlp"
    hidden_sizes: tuple[int, ...] = (64, 64)
    activation: Activation = "tanh"
    core: CoreName = "feedforward"
    core_size: int = 64
    share_trunk: bool = False  # one encoder and core for policy and value
    log_std: float = 0.0  # of a continuous policy, to begin with

    def __post_init__(self) -> None:
        check_fields(self)


def validate(config: Config) -> None:
    """Raise ConfigError if these settings cannot work."""
    validate_settings(config, Config)
    validate_actor_learners(config)
; 0.99 is usual")


def init(
    config: Config, observation_space: gym.Space, action_space: gym.Space, make_network: MakeNetwork | None = None
) -> State:
    """A fresh State for these spaces, the same for the same seed."""
    require_config(config, Config)
    prepare_jax(largest_product(config, config.rollout_length * config.env.num_envs))
    rng = np.random.default_rng(config.run.seed)
    make = make_network or partial(make_actor_critic, settings=config)
    network = make(rng, observation_space, action_space)
    return initial_state(config, observation_space, network, None, rng)


def policy(state: State) -> PyTree:
    """The part of the state that acts: what is evaluated, exported and played."""
    return state.network, merge_moments(state.normalizer.observations)


def loss(
    network: ActorCriticLike, moments: PyTree, rollout: Rollout, entropy_weight: Array, config: Config
) -> tuple[Array, Metrics]:
    """-E[log π(a|s) (R - V)] plus the squared error of V minus the entropy bonus, over the valid steps, by one pass over the rollout."""
    _, _, distributions, all_values = evaluate_rollout((network, moments), rollout)
    distribution, values = without_last(distributions), all_values[:-1]
    constant = jax.lax.stop_gradient(all_values)
    ends = rollout.terminated, rollout.truncated, rollout.valid
    advantages = gae(
        rollout.rewards, constant[:-1], constant[1:], *ends, config.discount, 1.0
    )  # with λ = 1: R - V, R ← r + γR
    value_targets = advantages + constant[:-1]

    policy_loss = losses.policy_gradient(distribution.log_prob(rollout.actions), advantages, rollout.valid)
    value_loss = losses.value_loss(values, value_targets, rollout.valid)
    entropy = losses.masked_mean(distribution.entropy(), rollout.valid)
    return policy_loss + config.value_weight * value_loss - entropy_weight * entropy, {
        "loss/policy": policy_loss,
        "loss/value": value_loss,
        "policy/entropy": entropy,
        "value/explained_variance": explained_variance(values, value_targets, rollout.valid),
    }


@partial(jax.jit, static_argnames=("layouts", "config"))
def gradients(
    weights: Weights,
    index: Array,
    key: Array,
    rollout: Rollout,
    layouts: tuple[ParameterLayout, ParameterLayout],
    config: Config,
) -> tuple[Array, Array, Array, Metrics]:
    """[P] dθ of a rollout, clipped by its norm; [M] what actor-learner `index` has seen by now; its
    next key; what happened.
    """
    network, before = layouts[0].tree(weights.network), layouts[1].tree(weights.normalizers)
    progress = weights.env_steps / config.run.total_steps
    learning_rate, entropy_weight = value_at(config.learning_rate, progress), value_at(config.entropy_weight, progress)
    moments, rollout, own = normalize_for_worker(before, index, rollout, config.discount)
    (_, metrics), found = jax.value_and_grad(loss, has_aux=True)(network, moments, rollout, entropy_weight, config)
    found, norm = clip_by_norm(found, config.max_grad_norm)
    metrics |= {"optimizer/grad_norm": norm, "optimizer/learning_rate": learning_rate}
    return flatten_tree(found), flatten_tree(own), stream(key, "next"), metrics


def worker_step(weights: Weights, learner: ActorLearner, work: Work) -> Result:
    """One turn of an actor-learner's loop: `weights` are its own copy, θ' ← θ; `update` will add
    the gradient to θ.
    """
    network, normalizers = work.network.tree(weights.network), work.normalizer.tree(weights.normalizers)
    collect = learner.collect
    # Perform a_t by π(a_t|s_t; θ'), t_max times.
    rollout = learnable(
        collect((network, merge_moments(normalizers.observations)), learner.key), work.config.clip_rewards
    )
    with collect.timed("learning"):
        index, layouts = np.int32(learner.number), (work.network, work.normalizer)
        found, seen, key, metrics = gradients(weights, index, learner.key, rollout, layouts, work.config)  # dθ
        metrics = finite_metrics(metrics)
    env_steps = int(np.count_nonzero(rollout.valid))  # T ← T + 1, for each step
    learning_rate = metrics["optimizer/learning_rate"]
    return Result(
        np.asarray(found), learning_rate, env_steps, np.asarray(seen), np.asarray(key), metrics | collect.metrics()
    )


def update(shared: SharedParameters, result: Result, config: Config) -> None:
    """Asynchronous update of θ using dθ: by RMSProp with shared statistics, in place, without a
    lock.
    """
    shared_rmsprop(shared.weights, shared.mean_squares, result.gradients, result.learning_rate, config)


def train(
    config: Config,
    envs: None = None,
    state: State | None = None,
    snapshot: Snapshot | None = None,
    make_network: MakeNetwork | None = None,
) -> Iterator[Update]:
    """Learn until `total_steps`, yielding every `report_every` steps; from `state` and `snapshot`,
    go on where they were taken.
    """
    validate(config)
    require_own_envs(envs)
    state = init(config, *spaces_of(config.env), make_network) if state is None else state
    work = make_work(config, __name__, worker_step, update, state)
    with open_pool(work, shared_parameters_of(state, work), snapshot) as pool:
        while int(state.env_steps) < config.run.total_steps:
            shared = pool.run(min(int(state.env_steps) + config.report_every, config.run.total_steps))
            state = state_of(shared, work, int(state.updates) + 1)
            yield Update(state, pool.metrics(), pool.snapshot)
