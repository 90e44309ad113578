"""Advantage actor-critic in step (Mnih et al. 2016, arXiv 1602.01783, algorithm S3; synchronous as
in OpenAI Baselines, 2017).

Collect n steps of B environments with the policy as it is; n-step returns, bootstrapped from V
where the episode goes on; then one gradient step on -log π(a|s) (G - V(s)), on V's squared error
and on the entropy, over all n·B steps together.

Differs from the paper: the workers step together and one learner takes the mean of their gradients,
so none is stale; advantages may be GAE's (`gae_lambda` below 1); gradients are clipped by their
norm; where an episode is cut by a time limit, V goes on.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import optax

from birl.accel.devices import prepare_jax, replicate_unplaced
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
from birl.envs.make import validate_fields
from birl.maths import losses
from birl.maths.count import Count, count_of
from birl.maths.keys import stream
from birl.maths.returns import gae
from birl.maths.schedules import Schedule, linear, value_at
from birl.maths.statistics import explained_variance
from birl.nets.acting import act, evaluate_rollout, without_last
from birl.nets.encoders import EncoderName
from birl.nets.layers import Activation
from birl.nets.models import ActorCriticLike, MakeNetwork, largest_product, make_actor_critic, validate_network
from birl.nets.normalize import Normalizer, initial_normalizer, update_observation_moments, normalize_rewards
from birl.nets.optimizers import (
    OptimizerName,
    gradient_step,
    initial_optimizer_state,
    make_optimizer,
    require_not_negative,
)
from birl.nets.recurrent import CoreName
from birl.rollouts.collector import finite_metrics, learnable
from birl.rollouts.open import open_stage, validate_stage
from birl.types import Array, Envs, Metrics, PyTree, Rollout, Snapshot, Update


@dataclass(frozen=True)
class Config:
    """A2C's settings; the defaults are OpenAI Baselines', but for the form of RMSProp, which is
    PyTorch's.
    """

    env: EnvConfig = field(default_factory=EnvConfig)
    run: RunConfig = field(default_factory=RunConfig)
    rollout_length: int = 5  # n: steps of each environment between updates, and the most rewards in a return
    discount: float = 0.99  # γ
    gae_lambda: float = 1.0  # λ; 1: plain n-step returns
    entropy_weight: float | Schedule = 0.01
    value_weight: float = 0.5
    learning_rate: float | Schedule = field(default_factory=partial(linear, 7e-4, 0.0))
    max_grad_norm: float | None = 0.5
    optimizer: OptimizerName = (
        "rmsprop"  # with ε outside the square root, as PyTorch has it; rmsprop-tf: inside, and g from 1
    )
    optimizer_epsilon: float = 1e-5  # ε
    rmsprop_decay: float = 0.99  # α: of the mean of squared gradients, with rmsprop and rmsprop-tf
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


class State(NamedTuple):
    """Everything that changes while A2C learns."""

    network: ActorCriticLike
    optimizer: PyTree
    normalizer: Normalizer
    key: Array
    env_steps: Count
    updates: Count


def validate(config: Config) -> None:
    """Raise ConfigError if these settings cannot work."""
    validate_settings(config, Config)
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
    return State(
        network=network,
        optimizer=initial_optimizer_state(optimizer_of(config), network),
        normalizer=initial_normalizer(
            observation_space, config.env.num_envs, config.normalize_observations, config.normalize_rewards
        ),
        key=rng.integers(2**32, size=2, dtype=np.uint32),
        env_steps=count_of(0),
        updates=count_of(0),
    )


def policy(state: State) -> PyTree:
    """The part of the state that acts: what is evaluated, exported and played."""
    return state.network, state.normalizer.observations


def optimizer_of(config: Config) -> optax.GradientTransformation:
    """RMSProp or Adam with these settings."""
    return make_optimizer(config.optimizer, config.optimizer_epsilon, config.rmsprop_decay)


def loss(
    network: ActorCriticLike, moments: PyTree, rollout: Rollout, entropy_weight: Array, config: Config
) -> tuple[Array, Metrics]:
    """-E[log π(a|s) Â] plus the squared error of V minus the entropy bonus, over the valid steps, by one pass over the rollout."""
    _, _, distributions, all_values = evaluate_rollout((network, moments), rollout)
    distribution, values = without_last(distributions), all_values[:-1]
    constant = jax.lax.stop_gradient(all_values)
    ends = rollout.terminated, rollout.truncated, rollout.valid
    advantages = gae(rollout.rewards, constant[:-1], constant[1:], *ends, config.discount, config.gae_lambda)
    value_targets = advantages + constant[:-1]  # with λ = 1 the n-step returns

    policy_loss = losses.policy_gradient(distribution.log_prob(rollout.actions), advantages, rollout.valid)
    value_loss = losses.value_loss(values, value_targets, rollout.valid)
    entropy = losses.masked_mean(distribution.entropy(), rollout.valid)
    return policy_loss + config.value_weight * value_loss - entropy_weight * entropy, {
        "loss/policy": policy_loss,
        "loss/value": value_loss,
        "policy/entropy": entropy,
        "value/explained_variance": explained_variance(values, value_targets, rollout.valid),
    }


@partial(jax.jit, static_argnames="config")  # no donation: a user may keep update.state
def update(state: State, rollout: Rollout, config: Config) -> tuple[State, Metrics]:
    """The state after one gradient step on a rollout, and what happened."""
    progress = state.env_steps / config.run.total_steps
    learning_rate, entropy_weight = value_at(config.learning_rate, progress), value_at(config.entropy_weight, progress)
    moments = state.normalizer.observations
    rewards, normalizer = normalize_rewards(state.normalizer, rollout, config.discount)
    (_, metrics), gradients = jax.value_and_grad(loss, has_aux=True)(
        state.network, moments, rollout._replace(rewards=rewards), entropy_weight, config
    )
    network, optimizer, norm = gradient_step(
        optimizer_of(config),
        state.network,
        state.optimizer,
        gradients,
        learning_rate,
        config.max_grad_norm,
        rollout.valid,
    )
    state = State(
        network=network,
        optimizer=optimizer,
        normalizer=normalizer._replace(observations=update_observation_moments(moments, without_last(rollout.observations))),
        key=stream(state.key, "next"),
        env_steps=state.env_steps + rollout.valid.sum(dtype=jnp.int32),
        updates=state.updates + 1,
    )
    return state, metrics | {"optimizer/grad_norm": norm, "optimizer/learning_rate": learning_rate}


def train(
    config: Config,
    envs: Envs | gym.vector.VectorEnv | None = None,
    state: State | None = None,
    snapshot: Snapshot | None = None,
    make_network: MakeNetwork | None = None,
) -> Iterator[Update]:
    """Learn until `total_steps`, yielding after each update; from `state` and `snapshot`, go on
    where they were taken.
    """
    validate(config)
    with open_stage(config.env, config.run.seed, envs) as stage:
        state = replicate_unplaced(
            init(config, stage.observation_space, stage.action_space, make_network) if state is None else state
        )
        # The policy that learns is the one that acted: of images the gradient goes back through
        # what it saw.
        collect = stage.collector(
            act, config.rollout_length, state.network.initial_memory(stage.num_envs), keep="layers"
        )
        collect.start(config.run.seed, snapshot)
        while int(state.env_steps) < config.run.total_steps:
            rollout = learnable(collect(policy(state), state.key), config.clip_rewards)
            with collect.timed("learning"):
                state, metrics = update(state, rollout, config)
                metrics = finite_metrics(metrics)
            yield Update(state, metrics | collect.metrics(), collect.snapshot)
