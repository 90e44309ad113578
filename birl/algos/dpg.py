"""Deterministic policy gradient, DPG: COPDAC-Q (Silver et al. 2014, section 4.3).

1. Act by μ(s) = x(s)ᵀΘ plus Gaussian noise.
2. A linear critic Q(s, a) = (a - μ(s))ᵀ∇μ(s)ᵀw + vᵀφ(s) learns from the TD error of
   r + γ Q(s', μ(s')), where Q(s', μ(s')) = vᵀφ(s').
3. Θ moves up Q's slope at μ(s). There is no replay: each step is learned from once.

Differs from the paper: B environments step together and each of a rollout's T steps learns from the
mean over them, so one environment is the paper's case; the acting policy is at most T steps old;
Fourier features instead of tiles; actions are on [-1, 1], scaled to the space's bounds; where μ(s)
lies outside a bound it counts as the bound, and Θ does not move further out (Hausknecht and Stone
2016); no critic step corrects more than its whole error; where a time limit truncates an episode, V
bootstraps.
"""

from collections.abc import Iterator
from functools import partial
from typing import Annotated, NamedTuple

import equinox as eqx
import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np

from birl.checks import require_config, validate_settings
from birl.config import EnvConfig, RunConfig
from birl.limits import Discount, PositiveFloat, PositiveInt, Rate
from birl.maths import losses
from birl.maths.count import Count, count_of
from birl.maths.schedules import value_at
from birl.nets.compatible import CompatibleActorCritic, CompatiblePolicy, FeaturesName, MakeCompatible, make_compatible
from birl.nets.models import without_first, without_last
from birl.nets.normalize import Normalizer, normalize_observations, normalize_rewards
from birl.parts import NormalizeConfig
from birl.registry import Alias, Supports
from birl.rollouts.source import open_rollouts
from birl.rollouts.state import begin, count_rollout
from birl.search import Choices, LogRange, Range
from birl.settings import IN_NETWORK, Search
from birl.traced import settings
from birl.types import Action, Array, Envs, Metrics, PyTree, Rollout, Snapshot, Source, Update

SUPPORTS = Supports(
    ("Box",),
    bounded=True,
    compiled=True,
    values="V(s)",
    rows=lambda config: config.env.num_envs * config.num_features,
    aliases={  # ours is half a mean squared error
        "sb3": {"loss/value": Alias("train/critic_loss", 2.0)},
        "cleanrl": {"loss/value": Alias("losses/qf1_loss", 2.0)},
    },
)


@settings
class Config:
    """DPG's settings."""

    env: EnvConfig = EnvConfig()
    run: RunConfig = RunConfig()
    normalize: Annotated[NormalizeConfig, Search(normalize_rewards=None)] = NormalizeConfig()
    # T: steps of each environment between updates of the acting policy
    rollout_length: Annotated[PositiveInt, Choices((8, 32, 128))] = 32
    discount: Discount = 0.99  # γ
    # standard deviation of the noise on actions in [-1, 1]
    exploration_noise: Annotated[Rate, Range(0.1, 0.6)] = 0.3
    actor_learning_rate: Annotated[Rate, LogRange(1e-3, 0.1)] = 1e-2  # α_θ: learning rate of the actor
    critic_learning_rate: Annotated[Rate, LogRange(0.1, 3.0)] = 1.0  # α_w: learning rate of the critic
    value_learning_rate: Annotated[Rate, LogRange(0.01, 0.5)] = 0.1  # α_v: learning rate of the value function
    actor_features: Annotated[FeaturesName, IN_NETWORK] = "fourier"  # of the observation, which the actor is linear in
    critic_features: Annotated[FeaturesName, IN_NETWORK] = "fourier"  # ... and which the critic is linear in
    num_features: Annotated[PositiveInt, Choices((64, 256, 1024)), IN_NETWORK] = 256  # number of Fourier features
    # ℓ of "fourier": the distance over which features change
    feature_scale: Annotated[PositiveFloat, LogRange(0.3, 3.0), IN_NETWORK] = 1.0


class State(NamedTuple):
    """Everything that changes while DPG learns."""

    network: CompatibleActorCritic
    normalizer: Normalizer
    noise: Array  # standard deviation of the next rollout's noise
    key: Array
    env_steps: Count
    updates: Count


class Steps(NamedTuple):
    """One or T steps of B environments, normalised; actions are on [-1, 1]."""

    observations: PyTree
    actions: Array
    rewards: Array
    terminated: Array
    valid: Array
    next_observations: PyTree


class LearningRates(NamedTuple):
    """α_θ, α_w and α_v of one update."""

    actor: Array
    critic: Array
    value: Array


def validate(config: Config) -> None:
    """Raise ConfigError if these settings cannot work."""
    validate_settings(config, Config)


def init(
    config: Config, observation_space: gym.Space, action_space: gym.Space, make_network: MakeCompatible | None = None
) -> State:
    """A fresh State for these spaces, the same for the same seed."""
    require_config(config, Config)
    make = make_network or partial(
        make_compatible,
        actor_features=config.actor_features,
        critic_features=config.critic_features,
        num_features=config.num_features,
        feature_scale=config.feature_scale,
    )
    network, normalizer, key = begin(config, Config, observation_space, action_space, make)
    noise = np.float32(value_at(config.exploration_noise, 0.0))
    return State(network, normalizer, noise, key, env_steps=count_of(0), updates=count_of(0))


def policy(state: State) -> PyTree:
    """The part of the state that acts."""
    return CompatiblePolicy(state.network, state.normalizer.observations, state.noise)


@jax.jit
def act(
    policy: PyTree, observations: PyTree, memory: PyTree, resets: Array, action_masks: Array | None, key: Array | None
) -> Action:
    """μ(s) plus noise for B observations, within the bounds; without noise if there is no key."""
    network, moments, noise = policy
    actions = network.preferred(normalize_observations(moments, observations))
    if key is not None:
        actions = actions + noise * jax.random.normal(key, actions.shape)
    # Clipped here, not only in the environment: the action learned from is the one taken.
    return Action(network.bounds.from_unit(jnp.clip(actions, -1.0, 1.0)), memory)


def td_errors(network: CompatibleActorCritic, steps: Steps, discount: float) -> Array:
    """COPDAC-Q's δ = r + γ Q(s', μ(s')) - Q(s, a), with a gradient through Q(s, a) only."""
    next_values = jnp.where(steps.terminated, 0.0, network.values(steps.next_observations))
    targets = steps.rewards + discount * next_values
    return jax.lax.stop_gradient(targets) - network.action_values(steps.observations, steps.actions)


def step_shares(network: CompatibleActorCritic, steps: Steps, rates: LearningRates) -> Array:
    """The factor of each step that keeps it from correcting more than its error, at most 1.

    A step corrects α_w |φ(s, a)|² + α_v |φ(s)|² of its error (Nagumo and Noda 1967). More than all
    of it would make the next error larger, and quadratic features have no bound.
    """
    action_lengths, state_lengths = network.feature_lengths(steps.observations, steps.actions)
    return 1.0 / jnp.maximum(1.0, rates.critic * action_lengths + rates.value * state_lengths)


def loss(network: CompatibleActorCritic, steps: Steps, shares: Array, discount: float) -> tuple[Array, Array]:
    """The critic's loss E[share · δ²] / 2, and the errors δ.

    Its gradient is -E[δ φ(s, a)] in w and -E[δ φ(s)] in v, each step times its share.
    """
    errors = td_errors(network, steps, discount)
    return losses.masked_mean(shares * errors**2, steps.valid) / 2, errors


def policy_gradient(network: CompatibleActorCritic, steps: Steps) -> Array:
    """E[∇μ(s) ∇_a Q(s, a)] in Θ's shape (Silver et al. 2014, theorem 1).

    Slopes that lead out of the bounds are left out.
    """
    features = network.actor_features(steps.observations)
    preferred = network.preferred(steps.observations)
    slopes = network.slopes(steps.observations)
    outwards = (jnp.abs(preferred) >= 1.0) & (preferred * slopes > 0.0)
    weights = steps.valid / jnp.maximum(steps.valid.sum(), 1)
    return jnp.einsum("...,...f,...a->fa", weights, features, jnp.where(outwards, 0.0, slopes))


def learn(
    network: CompatibleActorCritic, steps: Steps, rates: LearningRates, discount: float
) -> tuple[CompatibleActorCritic, Metrics]:
    """The network after COPDAC-Q's steps of Θ, w and v, from one step of each environment."""
    shares = step_shares(network, steps, rates)
    (_, errors), gradients = jax.value_and_grad(loss, has_aux=True)(network, steps, shares, discount)
    ascent = policy_gradient(network, steps)
    moved = (
        network.theta + rates.actor * ascent,
        network.w - rates.critic * gradients.w,
        network.v - rates.value * gradients.v,
    )
    saturated = jnp.mean(jnp.abs(network.preferred(steps.observations)) >= 1.0, axis=-1)
    return eqx.tree_at(lambda n: (n.theta, n.w, n.v), network, moved), {
        "loss/value": losses.masked_mean(errors**2, steps.valid) / 2,
        "value/td_error": losses.masked_mean(jnp.abs(errors), steps.valid),
        "value/mean": losses.masked_mean(network.values(steps.observations), steps.valid),
        "policy/saturation": losses.masked_mean(saturated, steps.valid),
        "optimizer/grad_norm": jnp.sqrt(jnp.sum(gradients.w**2) + jnp.sum(gradients.v**2)),
        "optimizer/actor_grad_norm": jnp.sqrt(jnp.sum(ascent**2)),
    }


@jax.jit  # no donation: a user may keep update.state
def update(state: State, rollout: Rollout, config: Config) -> tuple[State, Metrics]:
    """The state after learning from a rollout's steps one after the other, and the metrics."""
    progress = state.env_steps / config.run.total_steps
    rates = LearningRates(
        value_at(config.actor_learning_rate, progress),
        value_at(config.critic_learning_rate, progress),
        value_at(config.value_learning_rate, progress),
    )
    moments = state.normalizer.observations
    rewards, _ = normalize_rewards(state.normalizer, rollout, config.discount)
    observations = normalize_observations(moments, rollout.observations)
    actions = state.network.bounds.to_unit(rollout.actions)
    steps = Steps(
        without_last(observations), actions, rewards, rollout.terminated, rollout.valid, without_first(observations)
    )
    network, metrics = jax.lax.scan(partial(learn, rates=rates, discount=config.discount), state.network, steps)

    in_each = rollout.valid.sum(axis=1) / rollout.valid.shape[1]
    metrics = {name: losses.masked_mean(values, in_each) for name, values in metrics.items()}
    state = count_rollout(state._replace(network=network), rollout, config.discount)
    noise = value_at(config.exploration_noise, state.env_steps / config.run.total_steps)
    state = state._replace(noise=noise)
    return state, metrics | {"exploration/noise": state.noise, "optimizer/learning_rate": rates.critic}


def cycle(state: State, source: Source, config: Config) -> tuple[State, Metrics]:
    """Collect a rollout with the current policy and learn from it."""
    rollout = source.collect(policy(state), state.key)
    return update(state, rollout, config)


def train(
    config: Config,
    envs: Envs | gym.vector.VectorEnv | None = None,
    state: State | None = None,
    snapshot: Snapshot | None = None,
    make_network: MakeCompatible | None = None,
) -> Iterator[Update]:
    """Learn until `total_steps`; yield after each update. Continue from `state` and `snapshot`."""
    validate(config)
    with open_rollouts(config, act, envs) as rollouts:
        state = init(config, *rollouts.spaces, make_network) if state is None else state
        current = rollouts.start(state, snapshot)
        while int(current.env_steps) < config.run.total_steps:
            current, metrics = rollouts.advance(cycle, current)
            yield rollouts.report(current, metrics)
