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
from dataclasses import replace
from functools import partial
from typing import Annotated, NamedTuple

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np

from birl.checks import require_config, require_own_head, validate_gsde, validate_replay, validate_settings
from birl.config import EnvConfig, RunConfig
from birl.limits import Discount, PositiveFloat, PositiveFraction, PositiveInt, Rate
from birl.maths.count import Count, count_of
from birl.nets.critics import (
    ActionCritic,
    ActorCritics,
    GaussianActor,
    MakeActorCritics,
    SquashedPolicy,
    StateDependentActor,
    critic_loss,
    critic_values,
    make_actor_critics,
    make_sac_actor,
    normalize_batch,
    random_in_warmup,
)
from birl.nets.normalize import Normalizer, normalize_observations
from birl.nets.optimizers import gradient_step, group_leaves, initial_optimizer_state, soft_update, unclipped_step
from birl.parts import (
    NO_CORE,
    STEPS_ONLY,
    WIDE,
    ActionConfig,
    NetworkConfig,
    NormalizeConfig,
    OptimizerConfig,
    ReplayConfig,
)
from birl.registry import Alias, Supports, critic_losses
from birl.rollouts.learning import Batch, take_steps
from birl.rollouts.source import open_rollouts
from birl.rollouts.state import begin, count_rollout
from birl.search import EITHER, Choices, LogRange
from birl.settings import Search, Without
from birl.traced import Scheduled, scheduled, settings
from birl.types import Action, Array, Envs, Metrics, PyTree, Rollout, Snapshot, Source, Transitions, Update

Actor = GaussianActor | StateDependentActor
Network = ActorCritics[Actor]
Critics = tuple[ActionCritic, ...]

SUPPORTS = Supports(
    ("Box",),
    bounded=True,
    prefill=True,
    compiled=True,
    distribution=True,
    rows=lambda config: config.replay.batch_size,
    aliases=critic_losses(0.5, Alias("losses/qf_loss", 0.5)),  # ours is a sum of two
)


@settings
class Config:
    """SAC's settings."""

    env: EnvConfig = EnvConfig(num_envs=1)
    run: RunConfig = RunConfig()
    network: Annotated[NetworkConfig, NO_CORE, WIDE] = NetworkConfig(hidden_sizes=(256, 256), activation="relu")
    actions: Annotated[
        ActionConfig,
        Without(("state_dependent_std", "scale_actions", "squash_actions")),
        Search(log_std=None, gsde=EITHER),
    ] = ActionConfig(log_std=-3.0)  # the log standard deviation is that of gsde's matrix
    normalize: Annotated[NormalizeConfig, Search(normalize_rewards=None)] = NormalizeConfig()
    gradient: OptimizerConfig = OptimizerConfig("adam", optimizer_epsilon=1e-8)
    replay: Annotated[ReplayConfig, STEPS_ONLY, Search(update_ratio=Choices((0.25, 0.5, 1.0)))] = ReplayConfig()
    rollout_length: PositiveInt = 8  # steps of each environment between updates; gradient steps are one compiled call
    discount: Discount = 0.99  # γ
    temperature: PositiveFloat = 1.0  # first α: weight of the entropy, which is then learned
    temperature_learning_rate: Rate = 3e-4  # 0: α does not change
    target_entropy: float | None = None  # H̄ of actions on [-1, 1]; None: minus the number of action dimensions
    # τ: rate of the target critics' soft update at each gradient step
    target_rate: Annotated[PositiveFraction, Choices((0.002, 0.005, 0.01, 0.02, 0.05))] = 0.005
    actor_learning_rate: Annotated[Rate, LogRange(5e-5, 3e-3)] = 3e-4  # learning rate of the actor
    critic_learning_rate: Annotated[Rate, LogRange(1e-4, 3e-3)] = 3e-4  # learning rate of the critics


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


def validate(config: Config) -> None:
    """Raise ConfigError if these settings cannot work."""
    validate_settings(config, Config)
    validate_replay(config.replay, config.run)
    validate_gsde(config.actions, config.rollout_length)


def init(
    config: Config,
    observation_space: gym.Space,
    action_space: gym.Space,
    make_network: MakeActorCritics[Actor] | None = None,
) -> State:
    """A fresh State for these spaces, the same for the same seed."""
    require_config(config, Config)
    require_own_head(config.actions, make_network)
    make_actor = partial(make_sac_actor, actions=config.actions)
    make = make_network or partial(make_actor_critics, make_actor=make_actor, network=config.network)
    network, normalizer, key = begin(config, Config, observation_space, action_space, make)
    return State(
        network=network,
        target=network.critics,
        log_temperature=np.float32(np.log(config.temperature)),
        actor_optimizer=initial_optimizer_state(config.gradient, network.actor),
        critic_optimizer=initial_optimizer_state(config.gradient, network.critics),
        temperature_optimizer=initial_optimizer_state(config.gradient, np.float32(0)),
        normalizer=normalizer,
        in_warmup=np.bool_(config.replay.learning_starts > 0),
        key=key,
        env_steps=count_of(0),
        updates=count_of(0),
        gradient_steps=count_of(0),
        owed=np.float32(0),
    )


def policy(state: State) -> PyTree:
    """The part of the state that acts."""
    return SquashedPolicy(state.network.actor, state.network.bounds, state.normalizer.observations, state.in_warmup)


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
    next_values = critic_values(state.target, batch.next_observations, next_actions).min(axis=0)
    return batch.rewards + batch.discounts * (next_values - jnp.exp(state.log_temperature) * log_probs)


def actor_loss(
    actor: Actor, critics: Critics, temperature: Array, batch: Transitions, noise: Array
) -> tuple[Array, Array]:
    """E[α log π(a|s) - min Q(s, a)], a ~ π (Haarnoja et al. 2018, section 6), and the entropy."""
    actions, log_probs = actor(batch.observations).action_and_log_prob(noise)
    values = critic_values(critics, batch.observations, actions).min(axis=0)
    return (temperature * log_probs - values).mean(), -log_probs.mean()


def temperature_loss(log_temperature: Array, entropy: Array, target_entropy: float) -> Array:
    """α (H - H̄): α falls while the entropy is above H̄ (Haarnoja et al. 2018, section 5)."""
    return jnp.exp(log_temperature) * (jax.lax.stop_gradient(entropy) - target_entropy)


def loss(state: State, batch: Transitions, noise: Array) -> Array:
    """The critics' loss plus the actor's. `learn` differentiates each by its own parameters."""
    actor, critics = state.network.actor, state.network.critics
    critics_loss, _ = critic_loss(critics, targets_of(state, batch, noise[0]), batch)
    return critics_loss + actor_loss(actor, critics, jnp.exp(state.log_temperature), batch, noise[1])[0]


def target_entropy_of(config: Config, actions: int) -> float:
    """H̄ for actions of this many dimensions."""
    return -float(actions) if config.target_entropy is None else config.target_entropy


def learn(state: State, sampled: Batch, config: Scheduled) -> tuple[State, tuple[Metrics, None]]:
    """One gradient step on one batch: of the critics, then the actor, then the temperature."""
    batch = normalize_batch(sampled.steps, state.network.bounds, state.normalizer)
    target_noise, actor_noise = sampled.noise
    step = partial(gradient_step, config.gradient)
    network = state.network
    actor_rate, critic_rate = config.actor_learning_rate, config.critic_learning_rate

    targets = targets_of(state, batch, target_noise)
    gradients, metrics = jax.grad(critic_loss, has_aux=True)(network.critics, targets, batch)
    critics, critic_optimizer, norm = step(network.critics, state.critic_optimizer, gradients, critic_rate)

    (policy_loss, entropy), gradients = jax.value_and_grad(actor_loss, has_aux=True)(
        network.actor, critics, jnp.exp(state.log_temperature), batch, actor_noise
    )
    actor, actor_optimizer, actor_norm = step(network.actor, state.actor_optimizer, gradients, actor_rate)

    log_alpha, rate = state.log_temperature, config.temperature_learning_rate
    target_entropy = target_entropy_of(config, network.bounds.size)
    alpha_loss, gradient = jax.value_and_grad(temperature_loss)(log_alpha, entropy, target_entropy)
    log_temperature, temperature_optimizer = unclipped_step(
        config.gradient, log_alpha, state.temperature_optimizer, group_leaves(gradient), rate
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
    metrics |= {"optimizer/grad_norm": norm, "optimizer/actor_grad_norm": actor_norm}
    return state, (metrics | {"optimizer/learning_rate": critic_rate}, None)


@jax.jit  # no donation: a user may keep update.state
def update(
    state: State, rollout: Rollout, batches: Batch | None, config: Config
) -> tuple[State, Metrics, Array | None]:
    """The state after a rollout and its gradient steps, and the metrics."""
    metrics: Metrics = {"exploration/temperature": jnp.exp(state.log_temperature)}
    now = scheduled(config, state.env_steps)
    state, learned, errors = take_steps(learn, state, batches, now, noise=(2, state.network.bounds.size))
    state = count_rollout(state, rollout, config.discount)
    in_warmup = state.env_steps < config.replay.learning_starts
    return state._replace(in_warmup=in_warmup), metrics | learned, errors


def steps_per_key(state: State, config: Config) -> int | Array:
    """The steps of a rollout that share a random key: uniform actions are not repeated."""
    steps = config.actions.steps_per_matrix(config.rollout_length)
    if isinstance(state.in_warmup, jax.core.Tracer):
        return jnp.where(state.in_warmup, 1, steps)
    return 1 if state.in_warmup else steps


def cycle(state: State, source: Source, config: Config) -> tuple[State, Metrics]:
    """Collect a rollout, keep it in the replay, and learn from that if gradient steps are due."""
    rollout = source.collect(policy(state), state.key, steps_per_key(state, config))
    return source.learn(update, state, rollout, config)


def train(
    config: Config,
    envs: Envs | gym.vector.VectorEnv | None = None,
    state: State | None = None,
    snapshot: Snapshot | None = None,
    make_network: MakeActorCritics[Actor] | None = None,
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
