"""REINFORCE (Williams 1992, Machine Learning 8: 229-256; Sutton & Barto 2018, sections 13.3 and
13.4).

Collect T steps of B environments with the policy as it is; sum up the rewards that followed each
step, to its episode's end; then take one gradient step on -log π(a|s) (G - V(s)), where V is a
learned baseline or nothing. Throw the data away and begin again.

Differs from the paper: a step is credited with the rewards after it only (reward-to-go), its weight
is standardised over the rollout, and the mean is over steps, without the factor γ^t. With the
baseline, an episode that the rollout or a time limit cuts short is completed by the baseline's
value there. Without it, only episodes that end inside the rollout are learned from, and a time
limit is an end: of longer ones nothing is known. Leaving those out favours short episodes, so
`rollout_length` must not be below the time limit, and `episode/finished_share` says how much was
used.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np

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
from birl.envs.make import episode_limit, validate_fields
from birl.maths import losses
from birl.maths.count import Count, count_of
from birl.maths.keys import stream
from birl.maths.returns import discounted_returns, ends_inside
from birl.maths.schedules import Schedule, value_at
from birl.maths.statistics import explained_variance
from birl.nets.acting import act, evaluate_rollout, without_last
from birl.nets.encoders import EncoderName
from birl.nets.layers import Activation
from birl.nets.models import ActorCriticLike, MakeNetwork, largest_product, make_actor_critic, validate_network
from birl.nets.normalize import Normalizer, initial_normalizer, normalize_rewards, update_observation_moments
from birl.nets.optimizers import (
    OptimizerName,
    gradient_step,
    initial_optimizer_state,
    make_optimizer,
    require_not_negative,
)
from birl.nets.recurrent import CoreName
from birl.rollouts.collector import finite_metrics
from birl.rollouts.open import open_stage, validate_stage
from birl.types import Array, Envs, Metrics, PyTree, Rollout, Snapshot, Update


@dataclass(frozen=True)
class Config:
    """REINFORCE's settings."""

    env: EnvConfig = field(default_factory=EnvConfig)
    run: RunConfig = field(default_factory=RunConfig)
    rollout_length: int = 512  # T: steps of each environment between updates; best longer than an episode
    discount: float = 0.99  # γ
    baseline: bool = True  # learn V(s), subtract it from returns, and complete with it the episodes that are cut
    normalize_advantages: bool = True  # standardise G - V(s), or G without the baseline
    entropy_weight: float | Schedule = 0.0
    value_weight: float = 0.5
    learning_rate: float | Schedule = 3e-3
    max_grad_norm: float | None = 0.5
    optimizer: OptimizerName = "adam"
    normalize_observations: bool = False
    normalize_rewards: bool = False
    encoder: EncoderName = "mlp"
    hidden_sizes: tuple[int, ...] = (64, 64)
    activation: Activation = "tanh"
    core: CoreName = "feedforward"
    core_size: int = 64
    share_trunk: bool = False  # one encoder and core for policy and baseline
    log_std: float = 0.0  # of a continuous policy, to begin with

    def __post_init__(self) -> None:
        check_fields(self)


class State(NamedTuple):
    """Everything that changes while REINFORCE learns."""

    network: ActorCriticLike
    optimizer: PyTree
    normalizer: Normalizer
    key: Array
    env_steps: Count
    updates: Count


def validate(config: Config) -> None:
    """Raise ConfigError if these settings cannot work."""
    validate_settings(config, Config)


def require_whole_episodes(config: Config) -> None:
    """Raise ConfigError if there is no baseline to complete episodes that can outlast a rollout."""
    limit = episode_limit(config.env)
    require(
        config.baseline or limit is None or config.rollout_length >= limit,
        f"rollout_length {config.rollout_length} is below the {limit} steps that an episode of {config.env.id} can take, and without a "
        f"baseline only whole episodes are learned from; use rollout_length {limit} or more, or baseline True",
    )


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
        optimizer=initial_optimizer_state(make_optimizer(config.optimizer), network),
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


def returns_to_go(rollout: Rollout, next_values: Array, config: Config) -> tuple[Array, Array]:
    """G_t = Σ_k γ^k r_{t+k} to the end of t's episode, and the rows where it is known."""
    ends = rollout.terminated, rollout.truncated, rollout.valid
    bootstrap = next_values if config.baseline else jnp.zeros_like(next_values)
    return discounted_returns(rollout.rewards, *ends, bootstrap, config.discount), known_rows(rollout, config)


def known_rows(rollout: Rollout, config: Config) -> Array:
    """[T, B] the rows whose return is known: with a baseline, which bootstraps, all valid ones;
    else those whose episode ends inside.
    """
    return rollout.valid if config.baseline else ends_inside(rollout.terminated, rollout.truncated, rollout.valid)


def loss(
    network: ActorCriticLike, moments: PyTree, rollout: Rollout, entropy_weight: Array | float, config: Config
) -> tuple[Array, Metrics]:
    """-E[log π(a|s) (G - V(s))], minus the entropy bonus, plus the baseline's error, over the steps whose return is known."""
    evaluation = evaluate_rollout((network, moments), rollout)
    distribution, values = without_last(evaluation.distributions), evaluation.values[:-1]
    returns, known = returns_to_go(rollout, jax.lax.stop_gradient(evaluation.values[1:]), config)
    advantages = returns - values if config.baseline else returns
    advantages = losses.normalize(advantages, known) if config.normalize_advantages else advantages
    policy_loss = losses.policy_gradient(distribution.log_prob(rollout.actions), advantages, known)
    entropy = losses.masked_mean(distribution.entropy(), known)
    total = policy_loss - entropy_weight * entropy
    finished = ends_inside(rollout.terminated, rollout.truncated, rollout.valid).astype(jnp.float32)
    metrics = {
        "loss/policy": policy_loss,
        "policy/entropy": entropy,
        "episode/finished_share": losses.masked_mean(finished, rollout.valid),
    }
    if not config.baseline:
        return total, metrics
    value_loss = losses.value_loss(values, returns, known)
    metrics |= {"loss/value": value_loss, "value/explained_variance": explained_variance(values, returns, known)}
    return total + config.value_weight * value_loss, metrics


@partial(jax.jit, static_argnames="config")  # no donation: a user may keep update.state
def update(state: State, rollout: Rollout, config: Config) -> tuple[State, Metrics]:
    """The state after one gradient step on a rollout, and what happened."""
    progress = state.env_steps / config.run.total_steps
    learning_rate, entropy_weight = value_at(config.learning_rate, progress), value_at(config.entropy_weight, progress)
    rewards, normalizer = normalize_rewards(state.normalizer, rollout, config.discount)
    scaled = rollout._replace(rewards=rewards)
    gradients, metrics = jax.grad(loss, has_aux=True)(*policy(state), scaled, entropy_weight, config)
    network, optimizer, norm = gradient_step(
        make_optimizer(config.optimizer),
        state.network,
        state.optimizer,
        gradients,
        learning_rate,
        config.max_grad_norm,
        known_rows(rollout, config),
    )
    seen = update_observation_moments(normalizer.observations, without_last(rollout.observations))
    state = State(
        network=network,
        optimizer=optimizer,
        normalizer=normalizer._replace(observations=seen),
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
    if envs is None:  # of environments that were handed in, the limit is not known
        require_whole_episodes(config)
    with open_stage(config.env, config.run.seed, envs) as stage:
        state = replicate_unplaced(
            init(config, stage.observation_space, stage.action_space, make_network) if state is None else state
        )
        collect = stage.collector(act, config.rollout_length, state.network.initial_memory(stage.num_envs))
        collect.start(config.run.seed, snapshot)
        while int(state.env_steps) < config.run.total_steps:
            rollout = collect(policy(state), state.key)
            with collect.timed("learning"):
                state, metrics = update(state, rollout, config)
                metrics = finite_metrics(metrics)
            yield Update(state, metrics | collect.metrics(), collect.snapshot)
