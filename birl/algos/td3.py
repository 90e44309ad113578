"""Twin delayed DDPG, TD3 (Fujimoto et al. 2018, arXiv 1802.09477).

1. Act by μ(s) with Gaussian noise and keep every step in a replay.
2. Move two critics towards r + γ min Q'(s', ã), where ã is the target actor's action with clipped
   noise. The minimum and the noise keep errors of one critic from being exploited.
3. Every second gradient step, move the actor up Q₁(s, μ(s)) and soft-update the target networks.

Differs from the paper: many environments; all gradient steps of an update are one compiled call;
`n_step` returns; batches of 256 and learning rates of 3e-4, as in the authors' later code;
orthogonal initial weights.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Annotated, NamedTuple

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np

from birl.checks import require_config, validate_replay, validate_settings
from birl.config import EnvConfig, RunConfig
from birl.limits import Discount, NotNegative, PositiveFraction, PositiveInt, Rate
from birl.maths.count import Count, count_of, increment_wrapped
from birl.maths.schedules import value_at
from birl.nets.critics import (
    ActionCritic,
    ActorCritics,
    DeterministicActor,
    DeterministicPolicy,
    MakeActorCritics,
    critic_loss,
    critic_values,
    make_actor_critics,
    make_deterministic_actor,
    normalize_batch,
    random_in_warmup,
)
from birl.nets.normalize import Normalizer, normalize_observations
from birl.nets.optimizers import gradient_step, initial_optimizer_state, soft_update
from birl.parts import NO_CORE, STEPS_ONLY, WIDE, NetworkConfig, NormalizeConfig, OptimizerConfig, ReplayConfig
from birl.registry import Alias, Supports, critic_losses
from birl.rollouts.learning import Batch, take_steps
from birl.rollouts.source import open_rollouts
from birl.rollouts.state import begin, count_rollout
from birl.search import Choices, LogRange, Range
from birl.settings import Search
from birl.traced import Scheduled, scheduled, settings
from birl.types import Action, Array, Envs, Metrics, PyTree, Rollout, Snapshot, Source, Transitions, Update

Network = ActorCritics[DeterministicActor]
Critics = tuple[ActionCritic, ...]

SUPPORTS = Supports(
    ("Box",),
    bounded=True,
    prefill=True,
    compiled=True,
    rows=lambda config: config.replay.batch_size,
    aliases=critic_losses(1.0, Alias("losses/qf_loss", 0.5)),  # ours is a sum of two
)


@settings
class Config:
    """TD3's settings. Noise is that of actions on [-1, 1]."""

    env: EnvConfig = EnvConfig(num_envs=1)
    run: RunConfig = RunConfig()
    network: Annotated[NetworkConfig, NO_CORE, WIDE] = NetworkConfig(hidden_sizes=(256, 256), activation="relu")
    normalize: Annotated[NormalizeConfig, Search(normalize_rewards=None)] = NormalizeConfig()
    gradient: OptimizerConfig = OptimizerConfig("adam", optimizer_epsilon=1e-8)
    replay: Annotated[ReplayConfig, STEPS_ONLY, Search(update_ratio=Choices((0.25, 0.5, 1.0)))] = ReplayConfig()
    rollout_length: PositiveInt = 8  # steps of each environment between updates; gradient steps are one compiled call
    discount: Discount = 0.99  # γ
    exploration_noise: Annotated[Rate, Range(0.0, 0.4)] = 0.1  # standard deviation of the noise on the actions taken
    # standard deviation of the noise on the target actor's actions
    target_noise: Annotated[Rate, Choices((0.1, 0.2, 0.3))] = 0.2
    target_noise_clip: NotNegative = 0.5  # c: clipping range of that noise
    # d: critic steps for each step of the actor and of the target networks
    policy_delay: Annotated[PositiveInt, Choices((1, 2, 4))] = 2
    # τ: rate of the target networks' soft update
    target_rate: Annotated[PositiveFraction, Choices((0.002, 0.005, 0.01, 0.02, 0.05))] = 0.005
    actor_learning_rate: Annotated[Rate, LogRange(5e-5, 3e-3)] = 3e-4  # learning rate of the actor
    critic_learning_rate: Annotated[Rate, LogRange(1e-4, 3e-3)] = 3e-4  # learning rate of the critics


class State(NamedTuple):
    """Everything that changes while TD3 learns, except the replay."""

    network: Network
    target: Network
    actor_optimizer: PyTree
    critic_optimizer: PyTree
    normalizer: Normalizer
    exploration_noise: Array  # of the next rollout
    in_warmup: Array  # the next rollout's actions are uniform random
    policy_loss: Array  # of the actor's last gradient step, to report when an update has none
    actor_grad_norm: Array  # of that step
    key: Array
    env_steps: Count
    updates: Count
    gradient_steps: Array  # counts up, and wraps around before 32 bits are full
    owed: Array  # gradient steps that update_ratio asks for and that were not taken yet


def validate(config: Config) -> None:
    """Raise ConfigError if these settings cannot work."""
    validate_settings(config, Config)
    validate_replay(config.replay, config.run)


def init(
    config: Config,
    observation_space: gym.Space,
    action_space: gym.Space,
    make_network: MakeActorCritics[DeterministicActor] | None = None,
) -> State:
    """A fresh State for these spaces, the same for the same seed."""
    require_config(config, Config)
    make = make_network or partial(make_actor_critics, make_actor=make_deterministic_actor, network=config.network)
    network, normalizer, key = begin(config, Config, observation_space, action_space, make)
    return State(
        network=network,
        target=network,
        actor_optimizer=initial_optimizer_state(config.gradient, network.actor),
        critic_optimizer=initial_optimizer_state(config.gradient, network.critics),
        normalizer=normalizer,
        exploration_noise=np.float32(value_at(config.exploration_noise, 0.0)),
        in_warmup=np.bool_(config.replay.learning_starts > 0),
        policy_loss=np.float32(0),
        actor_grad_norm=np.float32(0),
        key=key,
        env_steps=count_of(0),
        updates=count_of(0),
        gradient_steps=np.int32(0),
        owed=np.float32(0),
    )


def policy(state: State) -> PyTree:
    """The part of the state that acts."""
    network, moments = state.network, state.normalizer.observations
    return DeterministicPolicy(network.actor, network.bounds, moments, state.exploration_noise, state.in_warmup)


@jax.jit
def act(
    policy: PyTree, observations: PyTree, memory: PyTree, resets: Array, action_masks: Array | None, key: Array | None
) -> Action:
    """μ(s) with noise for B observations, uniform in warmup; μ(s) itself if there is no key."""
    actor, bounds, moments, deviation, in_warmup = policy
    actions = actor(normalize_observations(moments, observations))
    if key is not None:
        noise_key, uniform_key = jax.random.split(key)
        # The exploration noise of Fujimoto et al. 2018, algorithm 1.
        noisy = jnp.clip(actions + deviation * jax.random.normal(noise_key, actions.shape), -1.0, 1.0)
        actions = random_in_warmup(noisy, in_warmup, uniform_key)
    return Action(bounds.from_unit(actions), memory)


def smoothed(actions: Array, noise: Array, config: Config) -> Array:
    """clip(a + clip(noise, -c, c), -1, 1), noise ~ N(0, σ) (Fujimoto et al. 2018, section 5.3)."""
    limit = config.target_noise_clip
    return jnp.clip(actions + jnp.clip(noise, -limit, limit), -1.0, 1.0)


def targets_of(target: Network, batch: Transitions, noise: Array, config: Config) -> Array:
    """[N] r + γᵏ min(Q'₁(s', ã), Q'₂(s', ã)) (Fujimoto et al. 2018, section 4.2)."""
    next_actions = smoothed(target.actor(batch.next_observations), noise, config)
    next_values = critic_values(target.critics, batch.next_observations, next_actions).min(axis=0)
    return batch.rewards + batch.discounts * next_values


def actor_loss(actor: DeterministicActor, critics: Critics, batch: Transitions) -> Array:
    """-E[Q₁(s, μ(s))], by the deterministic policy gradient (Silver et al. 2014, eq. 9)."""
    return -critics[0](batch.observations, actor(batch.observations)).mean()


def loss(network: Network, target: Network, batch: Transitions, noise: Array, config: Config) -> Array:
    """The critics' loss plus the actor's. `learn` differentiates each by its own parameters."""
    critics_loss, _ = critic_loss(network.critics, targets_of(target, batch, noise, config), batch)
    return critics_loss + actor_loss(network.actor, network.critics, batch)


def learn_actor(state: State, batch: Transitions, config: Scheduled) -> State:
    """The state after a step of the actor and the targets (Fujimoto et al. 2018, section 5.2)."""
    policy_loss, gradients = jax.value_and_grad(actor_loss)(state.network.actor, state.network.critics, batch)
    actor, optimizer, norm = gradient_step(
        config.gradient, state.network.actor, state.actor_optimizer, gradients, config.actor_learning_rate
    )
    network = replace(state.network, actor=actor)
    target = soft_update(state.target, network, config.target_rate)
    return state._replace(
        network=network, target=target, actor_optimizer=optimizer, policy_loss=policy_loss, actor_grad_norm=norm
    )


def learn(state: State, sampled: Batch, config: Scheduled) -> tuple[State, tuple[Metrics, None]]:
    """One gradient step of the critics; every `policy_delay` steps one of the actor."""
    batch = normalize_batch(sampled.steps, state.network.bounds, state.normalizer)
    critics = state.network.critics
    targets = targets_of(state.target, batch, config.target_noise * sampled.noise, config)
    gradients, metrics = jax.grad(critic_loss, has_aux=True)(critics, targets, batch)
    rate = config.critic_learning_rate
    critics, optimizer, norm = gradient_step(config.gradient, critics, state.critic_optimizer, gradients, rate)
    steps = increment_wrapped(state.gradient_steps, config.policy_delay)
    network = replace(state.network, critics=critics)
    state = state._replace(network=network, critic_optimizer=optimizer, gradient_steps=steps)
    with_actor = partial(learn_actor, batch=batch, config=config)
    state = jax.lax.cond(steps % config.policy_delay == 0, with_actor, lambda state: state, state)
    metrics |= {"loss/policy": state.policy_loss, "optimizer/actor_grad_norm": state.actor_grad_norm}
    return state, (metrics | {"optimizer/grad_norm": norm, "optimizer/learning_rate": rate}, None)


@jax.jit  # no donation: a user may keep update.state
def update(
    state: State, rollout: Rollout, batches: Batch | None, config: Config
) -> tuple[State, Metrics, Array | None]:
    """The state after a rollout and its gradient steps, and the metrics."""
    metrics: Metrics = {"exploration/noise": state.exploration_noise}
    now = scheduled(config, state.env_steps)
    state, learned, errors = take_steps(learn, state, batches, now, noise=(state.network.bounds.size,))
    state = count_rollout(state, rollout, config.discount)
    state = state._replace(
        exploration_noise=value_at(config.exploration_noise, state.env_steps / config.run.total_steps),
        in_warmup=state.env_steps < config.replay.learning_starts,
    )
    return state, metrics | learned, errors


def cycle(state: State, source: Source, config: Config) -> tuple[State, Metrics]:
    """Collect a rollout, keep it in the replay, and learn from that if gradient steps are due."""
    rollout = source.collect(policy(state), state.key)
    return source.learn(update, state, rollout, config)


def train(
    config: Config,
    envs: Envs | gym.vector.VectorEnv | None = None,
    state: State | None = None,
    snapshot: Snapshot | None = None,
    make_network: MakeActorCritics[DeterministicActor] | None = None,
) -> Iterator[Update]:
    """Learn until `total_steps`; yield after each update. Continue from `state` and `snapshot`."""
    validate(config)
    with open_rollouts(config, act, envs) as rollouts:
        state = init(config, *rollouts.spaces, make_network) if state is None else state
        current = rollouts.start(state, snapshot)
        rollouts.add_replay(config.replay)
        while int(current.env_steps) < config.run.total_steps:
            current, metrics = rollouts.advance(cycle, current)
            yield rollouts.report(current, metrics)
