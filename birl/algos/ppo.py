"""Proximal policy optimisation (Schulman et al. 2017, arXiv 1707.06347).

Collect T steps of B environments with the policy as it is; estimate advantages by GAE; then take
several epochs of minibatch steps on a surrogate that stops paying (clip) or starts costing (KL
penalty) when the policy moves far from the one that acted.

Differs from the paper: values may be clipped and advantages are normalised per minibatch, as in
OpenAI Baselines; the epochs may stop early at a KL (`target_kl`); the KL penalty's weight is
adapted from the exact KL after the last epoch.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, NamedTuple

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np

from birl.accel.devices import prepare_jax, replicate_unplaced
from birl.config import (
    EnvConfig,
    RunConfig,
    check_fields,
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
from birl.maths.schedules import Schedule, value_at
from birl.maths.statistics import explained_variance
from birl.nets.acting import act, evaluate_rollout, without_last
from birl.nets.encoders import EncoderName
from birl.nets.layers import Activation
from birl.nets.models import (
    ActorCriticLike,
    MakeNetwork,
    largest_product,
    make_actor_critic,
    remembers,
    validate_network,
)
from birl.nets.normalize import Normalizer, initial_normalizer, normalize_rewards, update_observation_moments
from birl.nets.optimizers import (
    OptimizerName,
    gradient_step,
    initial_optimizer_state,
    make_optimizer,
    require_not_negative,
)
from birl.nets.recurrent import CoreName
from birl.rollouts.collector import finite_metrics, learnable
from birl.rollouts.minibatch import require_minibatches, shuffled_parts
from birl.rollouts.open import open_stage, validate_stage
from birl.types import Array, Envs, Metrics, PyTree, Rollout, Snapshot, Update


@dataclass(frozen=True)
class Config:
    """PPO's settings."""

    env: EnvConfig = field(default_factory=EnvConfig)
    run: RunConfig = field(default_factory=RunConfig)
    rollout_length: int = 128  # T: steps of each environment between updates
    epochs: int = 4
    minibatches: int = 4  # per epoch
    discount: float = 0.99  # γ
    gae_lambda: float = 0.95  # λ
    objective: Literal["clip", "kl"] = "clip"  # eq. 7, or eq. 8 with an adaptive weight
    clip_range: float | Schedule = 0.2  # ε of eq. 7
    penalty_target_kl: float = 0.01  # d_targ: what the KL of an update is steered to, with objective "kl"
    penalty_weight: float = 1.0  # β to begin with, with objective "kl"
    target_kl: float | None = None  # stop an update's epochs once its KL exceeds 1.5 times this
    value_clip: float | None = None  # how far a value may move in an update; None: as far as it likes
    normalize_advantages: bool = True
    entropy_weight: float | Schedule = 0.0
    value_weight: float = 0.5
    learning_rate: float | Schedule = 3e-4
    max_grad_norm: float | None = 0.5
    optimizer: OptimizerName = "adam"
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
    """Everything that changes while PPO learns."""

    network: ActorCriticLike
    optimizer: PyTree
    normalizer: Normalizer
    penalty_weight: Array  # β
    key: Array
    env_steps: Count
    updates: Count


class Batch(NamedTuple):
    """A rollout with what the loss needs; leaves [T, B, ...]."""

    observations: PyTree
    actions: PyTree
    log_probs: Array
    advantages: Array
    value_targets: Array
    values: Array
    valid: Array
    resets: Array
    action_masks: Array | None
    old: PyTree  # the Distribution that acted; None unless the KL penalty needs it


class Coefficients(NamedTuple):
    """Where the schedules stand in this update."""

    learning_rate: Array
    clip_range: Array
    entropy: Array
    penalty: Array


class Learning(NamedTuple):
    """What the gradient steps of one update change."""

    network: ActorCriticLike
    optimizer: PyTree
    steps: Array
    stopped: Array  # the KL has passed its limit: no more steps in this update


def validate(config: Config) -> None:
    """Raise ConfigError if these settings cannot work."""
    validate_settings(config, Config)
    require_minibatches(config.minibatches, config.rollout_length, config.env.num_envs, config.core != "feedforward")


def init(
    config: Config, observation_space: gym.Space, action_space: gym.Space, make_network: MakeNetwork | None = None
) -> State:
    """A fresh State for these spaces, the same for the same seed."""
    require_config(config, Config)
    prepare_jax(largest_product(config, config.rollout_length * config.env.num_envs // config.minibatches))
    rng = np.random.default_rng(config.run.seed)
    make = make_network or partial(make_actor_critic, settings=config)
    network = make(rng, observation_space, action_space)
    return State(
        network=network,
        optimizer=initial_optimizer_state(make_optimizer(config.optimizer), network),
        normalizer=initial_normalizer(
            observation_space, config.env.num_envs, config.normalize_observations, config.normalize_rewards
        ),
        penalty_weight=np.float32(config.penalty_weight),
        key=rng.integers(2**32, size=2, dtype=np.uint32),
        env_steps=count_of(0),
        updates=count_of(0),
    )


def policy(state: State) -> PyTree:
    """The part of the state that acts: what is evaluated, exported and played."""
    return state.network, state.normalizer.observations


def make_batch(state: State, rollout: Rollout, config: Config) -> tuple[Batch, Normalizer]:
    """Values, advantages and targets of a rollout, by one pass of the network over all of it."""
    observations, resets, distributions, values = evaluate_rollout(policy(state), rollout)
    rewards, normalizer = normalize_rewards(state.normalizer, rollout, config.discount)
    ends = rollout.terminated, rollout.truncated, rollout.valid
    advantages = gae(rewards, values[:-1], values[1:], *ends, config.discount, config.gae_lambda)
    batch = Batch(
        observations=without_last(observations),
        actions=rollout.actions,
        log_probs=without_last(distributions).log_prob(rollout.actions),
        advantages=advantages,
        value_targets=advantages + values[:-1],
        values=values[:-1],
        valid=rollout.valid,
        resets=resets[:-1],
        action_masks=without_last(rollout.action_masks),
        old=without_last(distributions) if config.objective == "kl" else None,
    )
    seen = update_observation_moments(normalizer.observations, without_last(rollout.observations))
    return batch, normalizer._replace(observations=seen)


def loss(
    network: ActorCriticLike, batch: Batch, memory: PyTree, weights: Coefficients, config: Config
) -> tuple[Array, Metrics]:
    """The surrogate, minus the entropy bonus, plus the value error, over the valid steps of a
    minibatch.
    """
    distribution, values, _ = network(batch.observations, memory, batch.resets, batch.action_masks)
    log_ratios = distribution.log_prob(batch.actions) - batch.log_probs
    advantages = losses.normalize(batch.advantages, batch.valid) if config.normalize_advantages else batch.advantages
    if config.objective == "clip":
        policy_loss = losses.clipped_surrogate(log_ratios, advantages, batch.valid, weights.clip_range)
    else:
        policy_loss = losses.kl_penalised_surrogate(
            log_ratios, advantages, batch.old.kl(distribution), batch.valid, weights.penalty
        )
    if config.value_clip is None:
        value_loss = losses.value_loss(values, batch.value_targets, batch.valid)
    else:
        value_loss = losses.clipped_value_loss(
            values, batch.values, batch.value_targets, batch.valid, config.value_clip
        )
    entropy = losses.masked_mean(distribution.entropy(), batch.valid)
    total = policy_loss + config.value_weight * value_loss - weights.entropy * entropy
    return total, {
        "loss/policy": policy_loss,
        "loss/value": value_loss,
        "policy/entropy": entropy,
        "policy/approx_kl": losses.approx_kl(log_ratios, batch.valid),
        "policy/clip_fraction": losses.clip_fraction(log_ratios, batch.valid, weights.clip_range),
    }


def learn_minibatch(
    learning: Learning, part: tuple[Batch, PyTree], weights: Coefficients, config: Config
) -> tuple[Learning, Metrics]:
    """One gradient step; none once the KL has passed its limit."""
    (_, metrics), gradients = jax.value_and_grad(loss, has_aux=True)(learning.network, *part, weights, config)
    optimizer, valid = make_optimizer(config.optimizer), part[0].valid
    network, optimizer_state, norm = gradient_step(
        optimizer, learning.network, learning.optimizer, gradients, weights.learning_rate, config.max_grad_norm, valid
    )
    moved = Learning(network, optimizer_state, learning.steps + valid.any(), learning.stopped)
    if config.target_kl is not None:
        stopped = learning.stopped | (metrics["policy/approx_kl"] > 1.5 * config.target_kl)
        moved = jax.tree.map(partial(jnp.where, stopped), learning._replace(stopped=stopped), moved)
    return moved, metrics | {"optimizer/grad_norm": norm, "ran": ~learning.stopped}


def learn_epoch(
    learning: Learning, key: Array, batch: Batch, memory: PyTree, weights: Coefficients, config: Config
) -> tuple[Learning, Metrics]:
    """One pass over the batch in shuffled minibatches: whole sequences where there is memory, else
    single steps.
    """
    parts = shuffled_parts(key, batch, memory, config.minibatches)
    return jax.lax.scan(partial(learn_minibatch, weights=weights, config=config), learning, parts)


@partial(jax.jit, static_argnames="config")  # no donation: a user may keep update.state
def update(state: State, rollout: Rollout, config: Config) -> tuple[State, Metrics]:
    """The state after learning from a rollout, and what happened."""
    progress = state.env_steps / config.run.total_steps
    weights = Coefficients(
        learning_rate=value_at(config.learning_rate, progress),
        clip_range=value_at(config.clip_range, progress),
        entropy=value_at(config.entropy_weight, progress),
        penalty=state.penalty_weight,
    )
    batch, normalizer = make_batch(state, rollout, config)
    epoch_keys = jax.random.split(stream(state.key, "learning"), config.epochs)
    learning = Learning(state.network, state.optimizer, jnp.int32(0), jnp.bool_(False))
    epoch = partial(learn_epoch, batch=batch, memory=rollout.memory, weights=weights, config=config)
    learning, metrics = jax.lax.scan(epoch, learning, epoch_keys)

    ran = metrics.pop("ran")
    metrics = {name: losses.masked_mean(values, ran) for name, values in metrics.items()}
    penalty_weight = state.penalty_weight
    if config.objective == "kl":
        distribution, _, _ = learning.network(batch.observations, rollout.memory, batch.resets, batch.action_masks)
        kl = losses.masked_mean(batch.old.kl(distribution), batch.valid)
        penalty_weight = losses.adapt_kl_weight(penalty_weight, kl, config.penalty_target_kl)
        metrics |= {"policy/kl": kl, "policy/penalty_weight": penalty_weight}
    env_steps, updates = state.env_steps + rollout.valid.sum(dtype=jnp.int32), state.updates + 1
    state = State(
        learning.network, learning.optimizer, normalizer, penalty_weight, stream(state.key, "next"), env_steps, updates
    )
    return state, metrics | {
        "value/explained_variance": explained_variance(batch.values, batch.value_targets, batch.valid),
        "optimizer/learning_rate": weights.learning_rate,
        "optimizer/steps": learning.steps,
    }


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
        require_minibatches(config.minibatches, config.rollout_length, config.env.num_envs, remembers(state.network))
        # The first pass over the rollout is by the policy that acted: of images it need not look
        # again.
        collect = stage.collector(
            act, config.rollout_length, state.network.initial_memory(stage.num_envs), keep="features"
        )
        collect.start(config.run.seed, snapshot)
        while int(state.env_steps) < config.run.total_steps:
            rollout = learnable(collect(policy(state), state.key), config.clip_rewards)
            with collect.timed("learning"):
                state, metrics = update(state, rollout, config)
                metrics = finite_metrics(metrics)
            yield Update(state, metrics | collect.metrics(), collect.snapshot)
