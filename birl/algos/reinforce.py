"""REINFORCE (Williams 1992, Machine Learning 8: 229-256; Sutton & Barto 2018, sections 13.3, 13.4).

1. Collect T steps of B environments with the current policy.
2. Sum the rewards that followed each step, up to its episode's end: G.
3. Take one gradient step on -log π(a|s) (G - V(s)), where V is a learned baseline or 0.

Differs from the paper: a step is credited with the rewards after it only (reward-to-go), its weight
is standardised over the rollout, and the mean is over steps, without the factor γ^t. With the
baseline, an episode that is cut by the rollout or by a time limit is completed by V. Without it,
only episodes that end in the rollout are learned from, and a time limit is an end. To leave out
longer episodes favours short ones, so `rollout_length` must not be below the time limit, and
`episode/finished_share` says how much was used.
"""

from collections.abc import Iterator
from functools import partial
from typing import Annotated, NamedTuple

import gymnasium as gym
import jax
import jax.numpy as jnp

from birl.checks import require_config, validate_settings
from birl.config import EnvConfig, RunConfig, require
from birl.envs.make import episode_limit
from birl.limits import GRAD_NORMS, Discount, EntropyWeight, PositiveInt, Rate
from birl.maths import losses
from birl.maths.count import Count, count_of
from birl.maths.losses import explained_variance
from birl.maths.returns import discounted_returns, ends_inside
from birl.nets.models import (
    ActorCriticLike,
    ActorCriticPolicy,
    MakeNetwork,
    act,
    evaluate_rollout,
    make_actor_critic,
    without_last,
)
from birl.nets.normalize import Normalizer, normalize_rewards
from birl.nets.optimizers import gradient_step, initial_optimizer_state
from birl.parts import GAUSSIAN_ONLY, ActionConfig, NetworkConfig, NormalizeConfig, OptimizerConfig
from birl.registry import EVERY_ACTION, Supports
from birl.rollouts.source import open_rollouts
from birl.rollouts.state import begin, count_rollout
from birl.search import Choices, LogRange
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
    values_need="baseline",
    distribution=True,
)


@settings
class Config:
    """REINFORCE's settings."""

    env: EnvConfig = EnvConfig()
    run: RunConfig = RunConfig()
    network: NetworkConfig = NetworkConfig(hidden_sizes=(64, 64), activation="tanh")
    actions: Annotated[ActionConfig, GAUSSIAN_ONLY] = ActionConfig()
    normalize: NormalizeConfig = NormalizeConfig()
    gradient: Annotated[OptimizerConfig, Search(max_grad_norm=GRAD_NORMS)] = OptimizerConfig("adam", max_grad_norm=0.5)
    rollout_length: Annotated[PositiveInt, Choices((256, 512, 1024))] = 512  # T: best longer than an episode
    discount: Discount = 0.99  # γ
    baseline: bool = True  # learn V(s), subtract it from returns, and bootstrap from it where episodes are cut
    normalize_advantages: bool = True  # standardise G - V(s), or G without the baseline
    entropy_weight: EntropyWeight = 0.0
    value_weight: float = 0.5  # weight of the value loss
    learning_rate: Annotated[Rate, LogRange(3e-4, 3e-2)] = 3e-3  # size of a gradient step


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
    wrong = (
        f"value_hidden_sizes {config.network.value_hidden_sizes} does not go with baseline False: no value is learned"
    )
    require(config.baseline or config.network.value_hidden_sizes is None, f"{wrong}; use None, or baseline True")


def require_whole_episodes(config: Config) -> None:
    """Raise ConfigError if there is no baseline to complete episodes that can outlast a rollout."""
    limit = episode_limit(config.env)
    wrong = f"rollout_length {config.rollout_length} is below the {limit} steps of an episode of {config.env.id}"
    reason = "without a baseline only whole episodes are learned from"
    remedy = f"use rollout_length {limit} or more, or baseline True"
    fits = config.baseline or limit is None or config.rollout_length >= limit
    require(fits, f"{wrong}: {reason}; {remedy}")


def init(
    config: Config, observation_space: gym.Space, action_space: gym.Space, make_network: MakeNetwork | None = None
) -> State:
    """A fresh State for these spaces, the same for the same seed."""
    require_config(config, Config)
    make = make_network or partial(make_actor_critic, network=config.network, actions=config.actions)
    network, normalizer, key = begin(config, Config, observation_space, action_space, make)
    optimizer = initial_optimizer_state(config.gradient, network)
    return State(network, optimizer, normalizer, key, env_steps=count_of(0), updates=count_of(0))


def policy(state: State) -> PyTree:
    """The part of the state that acts."""
    return ActorCriticPolicy(state.network, state.normalizer.observations)


def returns_to_go(rollout: Rollout, next_values: Array, config: Config) -> Array:
    """G_t = Σ_k γ^k r_{t+k} to the end of t's episode (Sutton & Barto 2018, eq. 3.8).

    A baseline bootstraps where the rollout cuts an episode.
    """
    bootstrap = next_values if config.baseline else jnp.zeros_like(next_values)
    flags = rollout.terminated, rollout.truncated, rollout.valid
    return discounted_returns(rollout.rewards, *flags, bootstrap, config.discount)


def known_rows(rollout: Rollout, config: Config) -> Array:
    """[T, B] the rows whose return is known.

    With a baseline, which bootstraps, all valid ones; without, those whose episode ends in the
    rollout.
    """
    return rollout.valid if config.baseline else ends_inside(rollout.terminated, rollout.truncated, rollout.valid)


def loss(network: ActorCriticLike, moments: PyTree, rollout: Rollout, config: Scheduled) -> tuple[Array, Metrics]:
    """-E[log π(a|s) (G - V(s))], plus V's squared error, minus the entropy (Williams & Peng 1991).

    The mean is over the rows where G is known.
    """
    evaluation = evaluate_rollout((network, moments), rollout)
    distribution = without_last(evaluation.distributions)
    values = evaluation.values[:-1]
    returns = returns_to_go(rollout, jax.lax.stop_gradient(evaluation.values[1:]), config)
    known = known_rows(rollout, config)
    advantages = returns - values if config.baseline else returns  # Sutton & Barto 2018, eqs. 13.11 and 13.8
    advantages = losses.normalize(advantages, known) if config.normalize_advantages else advantages
    policy_loss = losses.policy_gradient(distribution.log_prob(rollout.actions), advantages, known)
    entropy = losses.masked_mean(distribution.entropy(), known)
    total = policy_loss - config.entropy_weight * entropy
    finished = ends_inside(rollout.terminated, rollout.truncated, rollout.valid)
    metrics = {
        "loss/policy": policy_loss,
        "policy/entropy": entropy,
        "episode/finished_share": losses.masked_mean(finished.astype(jnp.float32), rollout.valid),
    }
    if not config.baseline:
        return total, metrics
    value_loss = losses.value_loss(values, returns, known)
    metrics |= {"loss/value": value_loss, "value/explained_variance": explained_variance(values, returns, known)}
    return total + config.value_weight * value_loss, metrics


@jax.jit  # no donation: a user may keep update.state
def update(state: State, rollout: Rollout, config: Config) -> tuple[State, Metrics]:
    """The state after one gradient step on a rollout, and the metrics."""
    now = scheduled(config, state.env_steps)
    rewards, _ = normalize_rewards(state.normalizer, rollout, config.discount)
    gradients, metrics = jax.grad(loss, has_aux=True)(*policy(state), rollout._replace(rewards=rewards), now)
    network, optimizer, norm = gradient_step(
        config.gradient, state.network, state.optimizer, gradients, now.learning_rate, known_rows(rollout, config)
    )
    state = count_rollout(state._replace(network=network, optimizer=optimizer), rollout, config.discount)
    return state, metrics | {"optimizer/grad_norm": norm, "optimizer/learning_rate": now.learning_rate}


def cycle(state: State, source: Source, config: Config) -> tuple[State, Metrics]:
    """Collect a rollout with the current policy and learn from it."""
    rollout = source.collect(policy(state), state.key)
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
    if envs is None:  # the limit of environments that were passed in is not known
        require_whole_episodes(config)
    with open_rollouts(config, act, envs) as rollouts:
        state = init(config, *rollouts.spaces, make_network) if state is None else state
        current = rollouts.start(state, snapshot)
        while int(current.env_steps) < config.run.total_steps:
            current, metrics = rollouts.advance(cycle, current)
            yield rollouts.report(current, metrics)
