"""Soft actor-critic, SAC (Haarnoja et al. 2018, arXiv 1812.05905).

1. Act by sampling from π(·|s) and keep every step in a replay.
2. Move two critics towards r + γ (min Q'(s', a') - α log π(a'|s')), with a' sampled from π.
3. Move the actor up min Q - α log π, the temperature α so that the entropy stays at its target, and
   soft-update the target critics.

Differs from the paper: many environments; all gradient steps of an update are one compiled call;
`n_step` returns, without the entropy of the actions in between; orthogonal initial weights; with
`gsde` noise is a function of the state, the same for some steps (Raffin et al. 2021).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import optax

from birl.checks import validate_replay, validate_settings
from birl.config import EnvConfig, RunConfig, check_fields
from birl.limits import Fraction, Natural, PositiveFloat, PositiveFraction, PositiveInt, Prefill, Rate, Sizes
from birl.maths.count import Count, count_of
from birl.maths.keys import stream
from birl.maths.schedules import value_at
from birl.nets.continuous import ActionCritic, random_in_warmup
from birl.nets.encoders import EncoderName
from birl.nets.gsde import StateDependentActor, make_sac_actor, matrix_steps, require_own_head, validate_gsde
from birl.nets.layers import Activation
from birl.nets.normalize import Normalizer, normalize_observations
from birl.nets.optimizers import gradient_step, initial_optimizer_state, make_optimizer, soft_update
from birl.nets.policies import SquashedPolicy
from birl.nets.twin_critics import (
    ActorTwinCritics,
    GaussianActor,
    MakeActorTwinCritics,
    make_actor_twin_critics,
    normalize_batch,
    twin_critic_loss,
    twin_values,
)
from birl.registry import Supports
from birl.rollouts.gradient_steps import gradient_steps, gradient_steps_due, update_if_due
from birl.rollouts.open import open_rollouts
from birl.rollouts.replay import Replay
from birl.rollouts.state import begin, count_rollout
from birl.search import CONTINUOUS_REPLAY, EITHER, SearchSpace
from birl.traced import traced_settings
from birl.types import Action, Array, Envs, Metrics, PyTree, Rollout, Snapshot, Source, Transitions, Update

Actor = GaussianActor | StateDependentActor
Network = ActorTwinCritics[Actor]
Critics = tuple[ActionCritic, ActionCritic]

SUPPORTS = Supports(
    ("Box",), bounded=True, prefill=True, compiled=True, distribution=True, rows=lambda config: config.batch_size
)


@traced_settings
@dataclass(frozen=True)
class Config:
    """SAC's settings."""

    env: EnvConfig = field(default_factory=partial(EnvConfig, num_envs=1))
    run: RunConfig = field(default_factory=RunConfig)
    rollout_length: PositiveInt = 8  # steps of each environment between updates; gradient steps are one compiled call
    update_ratio: PositiveFloat = 1.0  # gradient steps for each environment step; 0.25: one for every four
    learning_starts: Natural = 1000  # environment steps before the first gradient step, with uniform random actions
    batch_size: PositiveInt = 256  # transitions in a gradient step
    replay_size: Natural = 100_000  # transitions kept
    prefill: Prefill | None = None  # put these transitions into the replay first: an .npz file, or minari:DATASET-ID
    discount: Fraction = 0.99  # γ
    n_step: PositiveInt = 1  # rewards summed before the bootstrap
    temperature: PositiveFloat = 1.0  # first α
    temperature_learning_rate: Rate = 3e-4  # 0: α does not change
    target_entropy: float | None = None  # H̄ of actions on [-1, 1]; None: minus the number of action dimensions
    target_rate: PositiveFraction = 0.005  # τ: rate of the target critics' soft update at each gradient step
    actor_learning_rate: Rate = 3e-4
    critic_learning_rate: Rate = 3e-4
    max_grad_norm: PositiveFloat | None = None
    optimizer_epsilon: PositiveFloat = 1e-8
    normalize_observations: bool = False
    normalize_rewards: bool = False
    encoder: EncoderName = "auto"
    hidden_sizes: Sizes = (256, 256)
    policy_hidden_sizes: Sizes | None = None  # of the actor alone; None: hidden_sizes
    value_hidden_sizes: Sizes | None = None  # of each critic alone; None: hidden_sizes
    activation: Activation = "relu"
    layer_norm: bool = False
    gsde: bool = False  # exploration noise is a function of the state (Raffin et al. 2021)
    gsde_every: PositiveInt | None = None  # steps between new matrices of gsde; None: one for each rollout
    log_std: float = -3.0  # with gsde: first log standard deviation of the matrix

    def __post_init__(self) -> None:
        check_fields(self)


SEARCH: SearchSpace = CONTINUOUS_REPLAY | {"gsde": EITHER}


class State(NamedTuple):
    """Everything that changes while SAC learns, except the replay."""

    network: Network
    target: Critics
    log_temperature: Array  # log α: α itself must stay positive
    actor_optimizer: PyTree
    critic_optimizer: PyTree
    temperature_optimizer: PyTree
    normalizer: Normalizer
    in_warmup: Array  # the next rollout's actions are uniform random
    key: Array
    env_steps: Count
    updates: Count
    gradient_steps: Count
    owed: Array  # gradient steps that update_ratio asks for and that were not taken yet


class Rates(NamedTuple):
    """The learning rates of an update."""

    actor: Array
    critic: Array
    temperature: Array


def validate(config: Config) -> None:
    """Raise ConfigError if these settings cannot work."""
    validate_settings(config, Config)
    validate_replay(config)
    validate_gsde(config)


def init(
    config: Config,
    observation_space: gym.Space,
    action_space: gym.Space,
    make_network: MakeActorTwinCritics[Actor] | None = None,
) -> State:
    """A fresh State for these spaces, the same for the same seed."""
    require_own_head(config, make_network)
    make = make_network or partial(make_actor_twin_critics, make_actor=make_sac_actor, settings=config)
    network, normalizer, key = begin(config, Config, observation_space, action_space, make)
    return State(
        network=network,
        target=network.critics,
        log_temperature=np.float32(np.log(config.temperature)),
        actor_optimizer=initial_optimizer_state(optimizer_of(config), network.actor),
        critic_optimizer=initial_optimizer_state(optimizer_of(config), network.critics),
        temperature_optimizer=initial_optimizer_state(optimizer_of(config), np.float32(0)),
        normalizer=normalizer,
        in_warmup=np.bool_(config.learning_starts > 0),
        key=key,
        env_steps=count_of(0),
        updates=count_of(0),
        gradient_steps=count_of(0),
        owed=np.float32(0),
    )


def policy(state: State) -> PyTree:
    """The part of the state that acts."""
    return SquashedPolicy(state.network.actor, state.network.bounds, state.normalizer.observations, state.in_warmup)


def optimizer_of(config: Config) -> optax.GradientTransformation:
    """Adam with these settings."""
    return make_optimizer("adam", config.optimizer_epsilon)


@jax.jit
def act(
    policy: PyTree, observations: PyTree, memory: PyTree, resets: Array, action_masks: Array | None, key: Array | None
) -> Action:
    """Sampled actions for B observations, uniform in warmup; the mode if there is no key."""
    actor, bounds, moments, in_warmup = policy
    distribution = actor(normalize_observations(moments, observations))
    if key is None:
        return Action(bounds.from_unit(distribution.mode()), memory)
    sample_key, uniform_key = jax.random.split(key)
    actions = random_in_warmup(distribution.sample(sample_key), in_warmup, uniform_key)
    return Action(bounds.from_unit(actions), memory)


def targets_of(state: State, batch: Transitions, noise: Array) -> Array:
    """[N] r + γᵏ (min Q'(s', a') - α log π(a'|s')) (Haarnoja et al. 2018, section 4.2)."""
    next_actions, log_probs = state.network.actor(batch.next_observations).action_and_log_prob(noise)
    next_values = twin_values(state.target, batch.next_observations, next_actions).min(axis=0)
    return batch.rewards + batch.discounts * (next_values - jnp.exp(state.log_temperature) * log_probs)


def actor_loss(
    actor: Actor, critics: Critics, temperature: Array, batch: Transitions, noise: Array
) -> tuple[Array, Array]:
    """E[α log π(a|s) - min Q(s, a)], a ~ π (Haarnoja et al. 2018, section 6), and the entropy."""
    actions, log_probs = actor(batch.observations).action_and_log_prob(noise)
    values = twin_values(critics, batch.observations, actions).min(axis=0)
    return (temperature * log_probs - values).mean(), -log_probs.mean()


def temperature_loss(log_temperature: Array, entropy: Array, target_entropy: float) -> Array:
    """α (H - H̄): α falls while the entropy is above H̄ (Haarnoja et al. 2018, section 5)."""
    return jnp.exp(log_temperature) * (jax.lax.stop_gradient(entropy) - target_entropy)


def loss(state: State, batch: Transitions, noise: Array) -> Array:
    """The critics' loss plus the actor's. `learn` differentiates each by its own parameters."""
    actor, critics = state.network.actor, state.network.critics
    critics_loss, _ = twin_critic_loss(critics, targets_of(state, batch, noise[0]), batch)
    return critics_loss + actor_loss(actor, critics, jnp.exp(state.log_temperature), batch, noise[1])[0]


def target_entropy_of(config: Config, actions: int) -> float:
    """H̄ for actions of this many dimensions."""
    return -float(actions) if config.target_entropy is None else config.target_entropy


def learn(
    state: State, batch_and_noise: tuple[Transitions, Array], rates: Rates, config: Config
) -> tuple[State, Metrics]:
    """One gradient step on one batch: of the critics, then the actor, then the temperature."""
    transitions, (target_noise, actor_noise) = batch_and_noise
    batch = normalize_batch(transitions, state.network.bounds, state.normalizer)
    step = partial(gradient_step, optimizer_of(config), max_grad_norm=config.max_grad_norm)
    network = state.network

    targets = targets_of(state, batch, target_noise)
    gradients, metrics = jax.grad(twin_critic_loss, has_aux=True)(network.critics, targets, batch)
    critics, critic_optimizer, norm = step(network.critics, state.critic_optimizer, gradients, rates.critic)

    (policy_loss, entropy), gradients = jax.value_and_grad(actor_loss, has_aux=True)(
        network.actor, critics, jnp.exp(state.log_temperature), batch, actor_noise
    )
    actor, actor_optimizer, actor_norm = step(network.actor, state.actor_optimizer, gradients, rates.actor)

    target_entropy = target_entropy_of(config, network.bounds.size)
    alpha_loss, gradient = jax.value_and_grad(temperature_loss)(state.log_temperature, entropy, target_entropy)
    log_temperature, temperature_optimizer, _ = step(
        state.log_temperature, state.temperature_optimizer, gradient, rates.temperature, max_grad_norm=None
    )

    state = state._replace(
        network=replace(network, actor=actor, critics=critics),
        target=soft_update(state.target, critics, config.target_rate),
        log_temperature=log_temperature,
        actor_optimizer=actor_optimizer,
        critic_optimizer=critic_optimizer,
        temperature_optimizer=temperature_optimizer,
        gradient_steps=state.gradient_steps + 1,
    )
    metrics |= {"loss/policy": policy_loss, "loss/temperature": alpha_loss, "policy/entropy": entropy}
    return state, metrics | {"optimizer/grad_norm": norm, "optimizer/actor_grad_norm": actor_norm}


@jax.jit  # no donation: a user may keep update.state
def update(state: State, rollout: Rollout, batches: Transitions | None, config: Config) -> tuple[State, Metrics]:
    """The state after a rollout and its gradient steps, and the metrics."""
    progress = state.env_steps / config.run.total_steps
    metrics: Metrics = {"exploration/temperature": jnp.exp(state.log_temperature)}
    if batches is not None:
        schedules = config.actor_learning_rate, config.critic_learning_rate, config.temperature_learning_rate
        rates = Rates(*[value_at(rate, progress) for rate in schedules])
        step = partial(learn, rates=rates, config=config)
        # All noise at once: sampling it in each gradient step took 0.2 of 4.6 ms.
        shape = len(batches.rewards), 2, config.batch_size, state.network.bounds.size
        noise = jax.random.normal(stream(state.key, "learning"), shape)
        state, step_metrics = jax.lax.scan(step, state, (batches, noise))
        metrics |= jax.tree.map(jnp.mean, step_metrics) | {"optimizer/learning_rate": rates.critic}
    state = count_rollout(state, rollout, config.discount)
    return state._replace(in_warmup=state.env_steps < config.learning_starts), metrics


def cycle(state: State, source: Source, config: Config) -> tuple[State, Metrics]:
    """Collect a rollout, keep it in the replay, and learn from that if gradient steps are due."""
    rollout = source.collect(policy(state), state.key, matrix_steps(config, state.in_warmup))
    source.replay.add(rollout)
    due, owed = gradient_steps_due(config, state, source.replay, rollout)
    sample = partial(source.replay.sample, state.key, (gradient_steps(config), config.batch_size))
    return update_if_due(due, sample, lambda batches: update(state._replace(owed=owed), rollout, batches, config))


def train(
    config: Config,
    envs: Envs | gym.vector.VectorEnv | None = None,
    state: State | None = None,
    snapshot: Snapshot | None = None,
    make_network: MakeActorTwinCritics[Actor] | None = None,
) -> Iterator[Update]:
    """Learn until `total_steps`; yield after each update. Continue from `state` and `snapshot`."""
    validate(config)
    with open_rollouts(config, act, envs) as rollouts:
        state = init(config, *rollouts.spaces, make_network) if state is None else state
        current = rollouts.start(state, snapshot)
        like = rollouts.empty_rollout()
        rollouts.add_replay(Replay(config.replay_size, like, config.discount, config.n_step), config.prefill)
        while int(current.env_steps) < config.run.total_steps:
            current, metrics = rollouts.advance(cycle, current)
            yield rollouts.report(current, metrics)
