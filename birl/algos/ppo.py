"""Proximal policy optimisation, PPO (Schulman et al. 2017, arXiv 1707.06347).

1. Collect T steps of B environments with the current policy, and estimate advantages by GAE.
2. Take several epochs of minibatch steps on a surrogate objective. It is clipped, or has a KL
   penalty, so that the policy stays near the one that collected the rollout.

Differs from the paper: values may be clipped and advantages are normalised per minibatch, as in
OpenAI Baselines; the epochs may stop early at a KL (`target_kl`); the KL penalty's weight is
adapted from the exact KL after the last epoch.
"""

from collections.abc import Iterator
from functools import partial
from typing import Annotated, Literal, NamedTuple

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np

from birl.checks import require_config, require_minibatches, require_own_head, validate_gsde, validate_settings
from birl.config import EnvConfig, RunConfig
from birl.limits import GRAD_NORMS, Discount, EntropyWeight, PositiveFloat, PositiveInt, PositiveRate, Rate, TraceDecay
from birl.maths import losses
from birl.maths.count import Count, count_of
from birl.maths.keys import stream
from birl.maths.losses import explained_variance
from birl.nets.models import ActorCriticLike, ActorCriticPolicy, MakeNetwork, act, make_actor_critic, remembers
from birl.nets.normalize import Normalizer, normalize_rewards
from birl.nets.optimizers import gradient_step, initial_optimizer_state, learning_rates, require_value_network
from birl.parts import ActionConfig, NetworkConfig, NormalizeConfig, OptimizerConfig
from birl.registry import EVERY_ACTION, Alias, Supports, rollout_rows
from birl.rollouts.batch import Batch, make_batch, shuffled_parts
from birl.rollouts.source import open_rollouts
from birl.rollouts.state import begin, count_rollout
from birl.search import EITHER, Choices, LogRange
from birl.settings import Search
from birl.traced import Scheduled, scheduled, settings
from birl.types import Array, Envs, Metrics, PyTree, Rollout, Snapshot, Source, Update

SUPPORTS = Supports(
    EVERY_ACTION,
    masks=True,
    recurrent=True,
    ray_rollouts=True,
    compiled=True,
    values="V(s)",
    distribution=True,
    rows=lambda config: rollout_rows(config) // config.minibatches,
    aliases={"sb3": {"loss/policy": Alias("train/policy_gradient_loss")}},
)


@settings
class Config:
    """PPO's settings."""

    env: Annotated[EnvConfig, Search(num_envs=Choices((4, 8, 16, 32)))] = EnvConfig(num_envs=8)
    run: RunConfig = RunConfig()
    network: NetworkConfig = NetworkConfig(hidden_sizes=(64, 64), activation="tanh")
    actions: Annotated[ActionConfig, Search(squash_actions=EITHER)] = ActionConfig()
    normalize: NormalizeConfig = NormalizeConfig()
    gradient: Annotated[OptimizerConfig, Search(max_grad_norm=GRAD_NORMS)] = OptimizerConfig("adam", max_grad_norm=0.5)
    # T: steps of each environment between updates
    rollout_length: Annotated[PositiveInt, Choices((32, 64, 128, 256, 512))] = 128
    epochs: Annotated[PositiveInt, Choices((2, 4, 10, 20))] = 4  # passes over each rollout
    minibatches: Annotated[PositiveInt, Choices((1, 2, 4, 8, 16, 32))] = 4  # per epoch: gradient steps of a pass
    discount: Discount = 0.99  # γ
    gae_lambda: TraceDecay = 0.95  # λ
    objective: Literal["clip", "kl"] = "clip"  # clip the ratio (eq. 7), or penalize the KL by an adaptive β (eq. 8)
    # ε of eq. 7: how far the ratio of new to old policy may leave 1
    clip_range: Annotated[Rate, Choices((0.1, 0.2, 0.3))] = 0.2
    penalty_target_kl: PositiveFloat = 0.01  # d_targ: the KL that each update aims at, with objective "kl"
    penalty_weight: PositiveFloat = 1.0  # first β, with objective "kl"
    target_kl: PositiveFloat | None = None  # stop the epochs of an update when its KL exceeds 1.5 times this
    value_clip: PositiveRate | None = None  # value clipping range; None: no clipping
    normalize_advantages: bool = True  # scale advantages to mean 0 and deviation 1
    entropy_weight: EntropyWeight = 0.0
    value_weight: float = 0.5  # weight of the value loss
    learning_rate: Annotated[Rate, LogRange(3e-5, 3e-3)] = 3e-4  # size of a gradient step
    value_learning_rate: Rate | None = None  # of the value network; None: learning_rate


class State(NamedTuple):
    """Everything that changes while PPO learns."""

    network: ActorCriticLike
    optimizer: PyTree
    normalizer: Normalizer
    penalty_weight: Array  # β
    key: Array
    env_steps: Count
    updates: Count


class Learning(NamedTuple):
    """What the gradient steps of one update change."""

    network: ActorCriticLike
    optimizer: PyTree
    steps: Array
    stopped: Array  # the KL exceeded its limit: no more steps in this update


def validate(config: Config) -> None:
    """Raise ConfigError if these settings cannot work."""
    validate_settings(config, Config)
    validate_gsde(config.actions, config.rollout_length)
    require_minibatches(config.minibatches, config.rollout_length, config.env.num_envs, config.network.recurrent)


def init(
    config: Config, observation_space: gym.Space, action_space: gym.Space, make_network: MakeNetwork | None = None
) -> State:
    """A fresh State for these spaces, the same for the same seed."""
    require_config(config, Config)
    require_own_head(config.actions, make_network)
    make = make_network or partial(make_actor_critic, network=config.network, actions=config.actions)
    network, normalizer, key = begin(config, Config, observation_space, action_space, make)
    require_value_network(network, config.value_learning_rate)
    optimizer = initial_optimizer_state(config.gradient, network)
    penalty_weight = np.float32(config.penalty_weight)
    return State(network, optimizer, normalizer, penalty_weight, key, env_steps=count_of(0), updates=count_of(0))


def policy(state: State) -> PyTree:
    """The part of the state that acts."""
    return ActorCriticPolicy(state.network, state.normalizer.observations)


def batch_of(state: State, rollout: Rollout, config: Config) -> Batch:
    """The rollout with values, advantages and targets; old distributions for the KL penalty."""
    rewards, _ = normalize_rewards(state.normalizer, rollout, config.discount)
    batch = make_batch(policy(state), rollout, rewards, config.discount, config.gae_lambda)
    return batch if config.objective == "kl" else batch._replace(old=None)


def loss(
    network: ActorCriticLike, batch: Batch, memory: PyTree, penalty_weight: Array, config: Scheduled
) -> tuple[Array, Metrics]:
    """The surrogate, plus the value loss, minus the entropy bonus (Schulman et al. 2017, eq. 9)."""
    distribution, values, _ = network(batch.observations, memory, batch.resets, batch.action_masks)
    log_ratios = distribution.log_prob(batch.actions) - batch.log_probs  # log ρ of Schulman et al. 2017, section 3
    advantages = losses.normalize(batch.advantages, batch.valid) if config.normalize_advantages else batch.advantages
    if config.objective == "clip":
        policy_loss = losses.clipped_surrogate(log_ratios, advantages, batch.valid, config.clip_range)
    else:
        kls = batch.old.kl(distribution)
        policy_loss = losses.kl_penalised_surrogate(log_ratios, advantages, kls, batch.valid, penalty_weight)
    targets = batch.value_targets
    if config.value_clip is None:
        value_loss = losses.value_loss(values, targets, batch.valid)
    else:
        value_loss = losses.clipped_value_loss(values, batch.values, targets, batch.valid, config.value_clip)
    entropy = losses.masked_mean(distribution.entropy(), batch.valid)
    return policy_loss + config.value_weight * value_loss - config.entropy_weight * entropy, {
        "loss/policy": policy_loss,
        "loss/value": value_loss,
        "policy/entropy": entropy,
        "policy/approx_kl": losses.approx_kl(log_ratios, batch.valid),
        "policy/clip_fraction": losses.clip_fraction(log_ratios, batch.valid, config.clip_range),
    }


def learn_minibatch(
    learning: Learning, part: tuple[Batch, PyTree], rates: PyTree, penalty_weight: Array, config: Scheduled
) -> tuple[Learning, Metrics]:
    """One gradient step on a minibatch; none once the KL has exceeded its limit."""
    batch, memory = part
    network, optimizer, steps, stopped = learning
    gradients, metrics = jax.grad(loss, has_aux=True)(network, batch, memory, penalty_weight, config)
    network, optimizer, norm = gradient_step(config.gradient, network, optimizer, gradients, rates, batch.valid)
    moved = Learning(network, optimizer, steps + batch.valid.any(), stopped)
    if config.target_kl is not None:
        stopped |= metrics["policy/approx_kl"] > 1.5 * config.target_kl
        moved = jax.tree.map(partial(jnp.where, stopped), learning._replace(stopped=stopped), moved)
    return moved, metrics | {"optimizer/grad_norm": norm, "ran": batch.valid.any() & ~learning.stopped}


@jax.jit  # no donation: a user may keep update.state
def update(state: State, rollout: Rollout, config: Config) -> tuple[State, Metrics]:
    """The state after all epochs on a rollout, and the metrics."""
    now = scheduled(config, state.env_steps)
    rates, rate_metrics = learning_rates(state.network, now.learning_rate, now.value_learning_rate)
    batch = batch_of(state, rollout, config)
    learn = partial(learn_minibatch, rates=rates, penalty_weight=state.penalty_weight, config=now)

    def learn_epoch(learning: Learning, key: Array) -> tuple[Learning, Metrics]:
        """Learn from shuffled minibatches: single steps, or whole sequences if recurrent."""
        return jax.lax.scan(learn, learning, shuffled_parts(key, batch, rollout.memory, config.minibatches))

    epoch_keys = jax.random.split(stream(state.key, "learning"), config.epochs)
    learning = Learning(state.network, state.optimizer, jnp.int32(0), jnp.bool_(False))
    learning, metrics = jax.lax.scan(learn_epoch, learning, epoch_keys)
    ran = metrics.pop("ran")
    metrics = {name: losses.masked_mean(values, ran) for name, values in metrics.items()}
    if config.objective == "kl":
        distribution, _, _ = learning.network(batch.observations, rollout.memory, batch.resets, batch.action_masks)
        kl = losses.masked_mean(batch.old.kl(distribution), batch.valid)
        weight = losses.adapt_kl_weight(state.penalty_weight, kl, config.penalty_target_kl)
        state = state._replace(penalty_weight=weight)
        metrics |= {"policy/kl": kl, "policy/penalty_weight": weight}
    state = state._replace(network=learning.network, optimizer=learning.optimizer)
    return count_rollout(state, rollout, config.discount), metrics | rate_metrics | {
        "value/explained_variance": explained_variance(batch.values, batch.value_targets, batch.valid),
        "optimizer/steps": learning.steps,
    }


def cycle(state: State, source: Source, config: Config) -> tuple[State, Metrics]:
    """Collect a rollout with the current policy and learn from it."""
    rollout = source.collect(policy(state), state.key, config.actions.steps_per_matrix(config.rollout_length))
    return update(state, rollout, config)


def train(
    config: Config,
    envs: Envs | gym.vector.VectorEnv | None = None,
    state: State | None = None,
    snapshot: Snapshot | None = None,
    make_network: MakeNetwork | None = None,
) -> Iterator[Update]:
    """Learn until `total_steps`; yield after each update. Continue from `state` and `snapshot`."""
    validate(config)
    with open_rollouts(config, act, envs) as rollouts:
        state = init(config, *rollouts.spaces, make_network) if state is None else state
        require_minibatches(config.minibatches, config.rollout_length, rollouts.num_envs, remembers(state.network))
        current = rollouts.start(state, snapshot)
        while int(current.env_steps) < config.run.total_steps:
            current, metrics = rollouts.advance(cycle, current)
            yield rollouts.report(current, metrics)
