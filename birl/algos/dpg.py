"""Deterministic policy gradient, COPDAC-Q (Silver et al. 2014, "Deterministic Policy Gradient
Algorithms", section 4.3).

Act by μ(s) = x(s)ᵀΘ plus Gaussian noise. A linear critic Q(s, a) = (a - μ(s))ᵀ∇μ(s)ᵀw + vᵀφ(s)
learns from the error of r + γ Q(s', μ(s')), in which Q(s', μ(s')) = vᵀφ(s'); then Θ follows Q's
slope at μ(s). Nothing is kept: each step is learned from once.

Differs from the paper: B environments step together and each of a rollout's T steps learns from the
mean over them, so with one environment it is the paper's; the policy that acts is at most T steps
old; Fourier features instead of tiles; actions are on [-1, 1], scaled to the space's bounds; where
μ(s) lies beyond a bound it counts as the bound, and Θ does not follow a slope further out
(Hausknecht and Stone 2016); no step of the critic undoes more than its whole error; where an
episode is cut by a time limit, V goes on.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import equinox as eqx
import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np

from birl.checks import (
    require_config,
    validate_settings,
)
from birl.config import EnvConfig, RunConfig, check_fields
from birl.maths import losses
from birl.maths.count import Count, count_of
from birl.maths.keys import stream
from birl.maths.schedules import Schedule, value_at
from birl.nets.acting import without_last
from birl.nets.compatible import CompatibleActorCritic, MakeCompatible, make_compatible
from birl.nets.features import FeaturesName
from birl.nets.normalize import (
    Normalizer,
    initial_normalizer,
    normalize_observations,
    normalize_rewards,
    update_observation_moments,
)
from birl.registry import Supports, require_supported
from birl.rollouts.open import open_rollouts
from birl.types import Action, Array, Envs, Metrics, PyTree, Rollout, Snapshot, Update

SUPPORTS = Supports(("Box",), bounded=True)


@dataclass(frozen=True)
class Config:
    """DPG's settings."""

    env: EnvConfig = field(default_factory=EnvConfig)
    run: RunConfig = field(default_factory=RunConfig)
    rollout_length: int = (
        32  # T: steps of each environment between updates of the policy that acts; each is learned from in turn
    )
    discount: float = 0.99  # γ
    exploration_noise: float | Schedule = 0.3  # deviation of what is added to an action, of which 1 is half the range
    actor_learning_rate: float | Schedule = 1e-2  # α_θ
    critic_learning_rate: float | Schedule = 1.0  # α_w
    value_learning_rate: float | Schedule = 0.1  # α_v
    normalize_observations: bool = False
    normalize_rewards: bool = False
    actor_features: FeaturesName = "fourier"
    critic_features: FeaturesName = "fourier"
    num_features: int = 256  # of "fourier"
    feature_scale: float = 1.0  # ℓ of "fourier": how far apart observations are that have little in common

    def __post_init__(self) -> None:
        check_fields(self)


class State(NamedTuple):
    """Everything that changes while DPG learns."""

    network: CompatibleActorCritic
    normalizer: Normalizer
    noise: Array  # deviation of the next rollout's exploration
    key: Array
    env_steps: Count
    updates: Count


class Steps(NamedTuple):
    """One step of B environments, or T of them; observations and rewards are normalised, actions on
    [-1, 1].
    """

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
    require_supported(config, action_space)
    rng = np.random.default_rng(config.run.seed)
    make = make_network or partial(make_compatible, settings=config)
    return State(
        network=make(rng, observation_space, action_space),
        normalizer=initial_normalizer(
            observation_space, config.env.num_envs, config.normalize_observations, config.normalize_rewards
        ),
        noise=np.float32(value_at(config.exploration_noise, 0.0)),
        key=rng.integers(2**32, size=2, dtype=np.uint32),
        env_steps=count_of(0),
        updates=count_of(0),
    )


def policy(state: State) -> PyTree:
    """The part of the state that acts: what is evaluated, exported and played."""
    return state.network, state.normalizer.observations, state.noise


@jax.jit
def act(
    policy: PyTree, observations: PyTree, memory: PyTree, resets: Array, action_masks: Array | None, key: Array | None
) -> Action:
    """μ(s) plus noise for B observations, within the bounds; without noise if there is no key."""
    network, moments, noise = policy
    actions = network.preferred(normalize_observations(moments, observations))
    if key is not None:
        actions = actions + noise * jax.random.normal(key, actions.shape)
    # Clipped here and not only where it is sent: what was done is what is learned from.
    return Action(network.bounds.from_unit(jnp.clip(actions, -1.0, 1.0)), memory)


def td_errors(network: CompatibleActorCritic, steps: Steps, discount: float) -> Array:
    """δ = r + γ Q(s', μ(s')) - Q(s, a), with a gradient through Q(s, a) alone; nothing follows a
    terminated step.
    """
    next_values = jnp.where(steps.terminated, 0.0, network.values(steps.next_observations))
    targets = steps.rewards + discount * next_values
    return jax.lax.stop_gradient(targets) - network.action_values(steps.observations, steps.actions)


def step_shares(network: CompatibleActorCritic, steps: Steps, rates: LearningRates) -> Array:
    """1 over α_w |φ(s, a)|² + α_v |φ(s)|², how much of its error a step undoes, or 1 if that is
    less (Nagumo and Noda 1967).

    A step that undid more than the whole error would make the next one larger, and quadratic
    features have no bound.
    """
    action_lengths, state_lengths = network.feature_lengths(steps.observations, steps.actions)
    return 1.0 / jnp.maximum(1.0, rates.critic * action_lengths + rates.value * state_lengths)


def loss(network: CompatibleActorCritic, steps: Steps, shares: Array, discount: float) -> tuple[Array, Array]:
    """The critic's: E[δ²] / 2, whose gradient is -E[δ φ(s, a)] in w and -E[δ φ(s)] in v, with each
    step's share; and the errors δ.
    """
    errors = td_errors(network, steps, discount)
    return losses.masked_mean(shares * errors**2, steps.valid) / 2, errors


def policy_gradient(network: CompatibleActorCritic, steps: Steps) -> Array:
    """E[∇μ(s) ∇_a Q(s, a)], in Θ's shape (Silver et al. 2014, theorem 1), but for slopes that lead
    away from the bounds.
    """
    features, preferred, slopes = (
        f(steps.observations) for f in (network.actor_features, network.preferred, network.slopes)
    )
    outwards = (jnp.abs(preferred) >= 1.0) & (preferred * slopes > 0.0)
    weights = steps.valid / jnp.maximum(steps.valid.sum(), 1)
    return jnp.einsum("...,...f,...a->fa", weights, features, jnp.where(outwards, 0.0, slopes))


def learn(
    network: CompatibleActorCritic, steps: Steps, rates: LearningRates, discount: float
) -> tuple[CompatibleActorCritic, Metrics]:
    """The network after one step of each environment: Θ, w and v move at once, as in the paper."""
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


@partial(jax.jit, static_argnames="config")  # no donation: a user may keep update.state
def update(state: State, rollout: Rollout, config: Config) -> tuple[State, Metrics]:
    """The state after learning from each of a rollout's steps in turn, and what happened."""
    progress = state.env_steps / config.run.total_steps
    rates = LearningRates(
        value_at(config.actor_learning_rate, progress),
        value_at(config.critic_learning_rate, progress),
        value_at(config.value_learning_rate, progress),
    )
    moments = state.normalizer.observations
    rewards, normalizer = normalize_rewards(state.normalizer, rollout, config.discount)
    observations = normalize_observations(moments, rollout.observations)
    following = jax.tree.map(lambda x: x[1:], observations)
    actions = state.network.bounds.to_unit(rollout.actions)
    steps = Steps(without_last(observations), actions, rewards, rollout.terminated, rollout.valid, following)
    network, metrics = jax.lax.scan(partial(learn, rates=rates, discount=config.discount), state.network, steps)

    env_steps = state.env_steps + rollout.valid.sum(dtype=jnp.int32)
    in_each = rollout.valid.sum(axis=1) / rollout.valid.shape[1]
    metrics = {name: losses.masked_mean(values, in_each) for name, values in metrics.items()}
    state = State(
        network=network,
        normalizer=normalizer._replace(
            observations=update_observation_moments(moments, without_last(rollout.observations))
        ),
        noise=value_at(config.exploration_noise, env_steps / config.run.total_steps),
        key=stream(state.key, "next"),
        env_steps=env_steps,
        updates=state.updates + 1,
    )
    return state, metrics | {"exploration/noise": state.noise, "optimizer/learning_rate": rates.critic}


def train(
    config: Config,
    envs: Envs | gym.vector.VectorEnv | None = None,
    state: State | None = None,
    snapshot: Snapshot | None = None,
    make_network: MakeCompatible | None = None,
) -> Iterator[Update]:
    """Learn until `total_steps`, yielding after each update; go on from `state` and `snapshot`."""
    validate(config)
    with open_rollouts(config, act, envs) as rollouts:
        state = init(config, *rollouts.spaces, make_network) if state is None else state
        state = rollouts.start(state, snapshot)
        while int(state.env_steps) < config.run.total_steps:
            rollout = rollouts.collect(policy(state), state.key)
            state, metrics = update(state, rollout, config)
            yield rollouts.report(state, metrics)
