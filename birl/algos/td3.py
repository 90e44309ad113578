"""TD3, twin delayed DDPG (Fujimoto et al. 2018, "Addressing function approximation error in
actor-critic methods").

Act by μ(s) with Gaussian noise and keep every step in a replay. Move two critics towards r + γ min
Q'(s', ã), where ã is the target actor's action with clipped noise, so that neither an error of one
critic nor a narrow peak of it is believed. Every second gradient step, move the actor up Q₁(s,
μ(s)), and the targets a little towards the networks.

Differs from the paper: many environments; each cycle's gradient steps are one compiled call on
batches that were drawn before it; `n_step` returns; batches of 256 and learning rates of 3e-4, as
in the authors' later code; orthogonal first weights.
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

from birl.checks import (
    require_config,
    validate_replay,
    validate_settings,
)
from birl.config import EnvConfig, RunConfig, check_fields
from birl.maths import losses
from birl.maths.count import Count, count_of, next_turn
from birl.maths.keys import stream
from birl.maths.schedules import Schedule, value_at
from birl.nets.continuous import (
    ActionCritic,
    DeterministicActor,
    make_deterministic_actor,
)
from birl.nets.encoders import EncoderName
from birl.nets.layers import Activation
from birl.nets.normalize import (
    Normalizer,
    initial_normalizer,
    normalize_observations,
    update_normalizer,
)
from birl.nets.optimizers import (
    gradient_step,
    initial_optimizer_state,
    make_optimizer,
    soft_update,
)
from birl.nets.twin_critics import (
    ActorTwinCritics,
    MakeActorTwinCritics,
    make_actor_twin_critics,
    normalize_batch,
    twin_values,
)
from birl.registry import Supports, require_supported
from birl.rollouts.gradient_steps import gradient_steps_due
from birl.rollouts.open import open_rollouts
from birl.rollouts.replay import Replay
from birl.types import Action, Array, Envs, Metrics, PyTree, Rollout, Snapshot, Transitions, Update

Network = ActorTwinCritics[DeterministicActor]
Critics = tuple[ActionCritic, ActionCritic]

SUPPORTS = Supports(("Box",), bounded=True)


@dataclass(frozen=True)
class Config:
    """TD3's settings. Noise is in units of half the width of the action's bounds."""

    env: EnvConfig = field(default_factory=partial(EnvConfig, num_envs=1))
    run: RunConfig = field(default_factory=RunConfig)
    rollout_length: int = 8  # steps of each environment between updates, whose gradient steps are one compiled call
    update_ratio: float = 1.0  # gradient steps for each environment step: 0.25 learns once from a batch in four steps
    learning_starts: int = (
        1000  # environment steps before the first gradient step, with actions drawn from the whole box
    )
    batch_size: int = 256  # transitions in a gradient step
    replay_size: int = 100_000  # transitions kept
    discount: float = 0.99  # γ
    n_step: int = 1  # rewards summed before the bootstrap
    exploration_noise: float | Schedule = 0.1  # deviation of the noise on the actions taken
    target_noise: float = 0.2  # deviation of the noise on the target actor's actions
    target_noise_clip: float = 0.5  # c: that noise is never larger
    policy_delay: int = 2  # d: gradient steps of the critics for one of the actor, with which the targets move
    target_rate: float = 0.005  # τ: how far the targets then move to the networks
    actor_learning_rate: float | Schedule = 3e-4
    critic_learning_rate: float | Schedule = 3e-4
    max_grad_norm: float | None = None
    optimizer_epsilon: float = 1e-8
    normalize_observations: bool = False
    normalize_rewards: bool = False
    encoder: EncoderName = "mlp"
    hidden_sizes: tuple[int, ...] = (256, 256)
    activation: Activation = "relu"
    layer_norm: bool = False

    def __post_init__(self) -> None:
        check_fields(self)


class State(NamedTuple):
    """Everything that changes while TD3 learns, but for the replay."""

    network: Network
    target: Network
    actor_optimizer: PyTree
    critic_optimizer: PyTree
    normalizer: Normalizer
    exploration_noise: Array  # of the next rollout
    in_warmup: Array  # whether the next rollout's actions are drawn from the whole box
    policy_loss: Array  # of the actor's newest gradient step, to report in a cycle that has none
    actor_grad_norm: Array  # of the same step
    key: Array
    env_steps: Count
    updates: Count
    gradient_steps: Array  # see next_turn
    owed: Array  # gradient steps that update_ratio has asked for and that are still to be taken


def validate(config: Config) -> None:
    """Raise ConfigError if these settings cannot work."""
    validate_settings(config, Config)
    validate_replay(config)


def init(
    config: Config,
    observation_space: gym.Space,
    action_space: gym.Space,
    make_network: MakeActorTwinCritics[DeterministicActor] | None = None,
) -> State:
    """A fresh State for these spaces, the same for the same seed."""
    require_config(config, Config)
    require_supported(config, action_space)
    rng = np.random.default_rng(config.run.seed)
    make = make_network or partial(make_actor_twin_critics, make_actor=make_deterministic_actor, settings=config)
    network = make(rng, observation_space, action_space)
    return State(
        network=network,
        target=network,
        actor_optimizer=initial_optimizer_state(optimizer_of(config), network.actor),
        critic_optimizer=initial_optimizer_state(optimizer_of(config), network.critics),
        normalizer=initial_normalizer(
            observation_space, config.env.num_envs, config.normalize_observations, config.normalize_rewards
        ),
        exploration_noise=np.float32(value_at(config.exploration_noise, 0.0)),
        in_warmup=np.bool_(config.learning_starts > 0),
        policy_loss=np.float32(0),
        actor_grad_norm=np.float32(0),
        key=rng.integers(2**32, size=2, dtype=np.uint32),
        env_steps=count_of(0),
        updates=count_of(0),
        gradient_steps=np.int32(0),
        owed=np.float32(0),
    )


def policy(state: State) -> PyTree:
    """The part of the state that acts: what is evaluated, exported and played."""
    return (
        state.network.actor,
        state.network.bounds,
        state.normalizer.observations,
        state.exploration_noise,
        state.in_warmup,
    )


def optimizer_of(config: Config) -> optax.GradientTransformation:
    """Adam with these settings."""
    return make_optimizer("adam", config.optimizer_epsilon)


@jax.jit
def act(
    policy: PyTree, observations: PyTree, memory: PyTree, resets: Array, action_masks: Array | None, key: Array | None
) -> Action:
    """μ(s) with noise for B observations, while warming any action of the box; μ(s) itself if there
    is no key.
    """
    actor, bounds, moments, deviation, in_warmup = policy
    actions = actor(normalize_observations(moments, observations))
    if key is not None:
        noise_key, uniform_key = jax.random.split(key)
        noisy = jnp.clip(actions + deviation * jax.random.normal(noise_key, actions.shape), -1.0, 1.0)
        actions = jnp.where(in_warmup, jax.random.uniform(uniform_key, actions.shape, minval=-1.0, maxval=1.0), noisy)
    return Action(bounds.from_unit(actions), memory)


def smoothed(actions: Array, noise: Array, config: Config) -> Array:
    """clip(a + clip(ε, -c, c), -1, 1) with ε = σ times the noise (Fujimoto et al. 2018, section
    5.3).
    """
    limit = config.target_noise_clip
    return jnp.clip(actions + jnp.clip(config.target_noise * noise, -limit, limit), -1.0, 1.0)


def targets_of(target: Network, batch: Transitions, noise: Array, config: Config) -> Array:
    """[N] r + γᵏ min(Q'₁(s', ã), Q'₂(s', ã)) (Fujimoto et al. 2018, algorithm 1)."""
    next_actions = smoothed(target.actor(batch.next_observations), noise, config)
    next_values = twin_values(target.critics, batch.next_observations, next_actions).min(axis=0)
    return batch.rewards + batch.discounts * next_values


def critic_loss(
    critics: Critics, target: Network, batch: Transitions, noise: Array, config: Config
) -> tuple[Array, Metrics]:
    """E[(Q₁(s, a) - y)²] + E[(Q₂(s, a) - y)²] with one target y for both; what happened."""
    values = twin_values(critics, batch.observations, batch.actions)
    targets = targets_of(target, batch, noise, config)
    value = sum(losses.value_loss(each, targets, jnp.ones_like(targets)) for each in values)
    return value, {"loss/value": value, "value/mean": values.mean()}


def actor_loss(actor: DeterministicActor, critics: Critics, batch: Transitions) -> Array:
    """-E[Q₁(s, μ(s))], whose gradient is the deterministic policy gradient (Silver et al. 2014, eq. 9)."""
    return -critics[0](batch.observations, actor(batch.observations)).mean()


def loss(network: Network, target: Network, batch: Transitions, noise: Array, config: Config) -> Array:
    """critic_loss + actor_loss: the whole objective. `learn` differentiates each by its own
    parameters, the actor's less often.
    """
    return critic_loss(network.critics, target, batch, noise, config)[0] + actor_loss(
        network.actor, network.critics, batch
    )


def learn_actor(state: State, batch: Transitions, learning_rate: Array, config: Config) -> State:
    """The state after one gradient step of the actor, and the targets' move that goes with it."""
    policy_loss, gradients = jax.value_and_grad(actor_loss)(state.network.actor, state.network.critics, batch)
    actor, optimizer, norm = gradient_step(
        optimizer_of(config), state.network.actor, state.actor_optimizer, gradients, learning_rate, config.max_grad_norm
    )
    network = replace(state.network, actor=actor)
    target = soft_update(state.target, network, config.target_rate)
    return state._replace(
        network=network, target=target, actor_optimizer=optimizer, policy_loss=policy_loss, actor_grad_norm=norm
    )


def learn(
    state: State,
    drawn: tuple[Transitions, Array],
    actor_learning_rate: Array,
    critic_learning_rate: Array,
    config: Config,
) -> tuple[State, Metrics]:
    """One gradient step of the critics on one batch, and each `policy_delay` of them one of the
    actor.
    """
    batch, noise = normalize_batch(drawn[0], state.network.bounds, state.normalizer), drawn[1]
    (_, metrics), gradients = jax.value_and_grad(critic_loss, has_aux=True)(
        state.network.critics, state.target, batch, noise, config
    )
    critics, optimizer, norm = gradient_step(
        optimizer_of(config),
        state.network.critics,
        state.critic_optimizer,
        gradients,
        critic_learning_rate,
        config.max_grad_norm,
    )
    steps = next_turn(state.gradient_steps, config.policy_delay)
    state = state._replace(
        network=replace(state.network, critics=critics), critic_optimizer=optimizer, gradient_steps=steps
    )
    with_actor = partial(learn_actor, batch=batch, learning_rate=actor_learning_rate, config=config)
    state = jax.lax.cond(steps % config.policy_delay == 0, with_actor, lambda state: state, state)
    of_actor = {"loss/policy": state.policy_loss, "optimizer/actor_grad_norm": state.actor_grad_norm}
    return state, metrics | of_actor | {"optimizer/grad_norm": norm}


@partial(jax.jit, static_argnames="config")  # no donation: a user may keep update.state
def update(state: State, rollout: Rollout, batches: Transitions | None, config: Config) -> tuple[State, Metrics]:
    """The state after a rollout and a cycle's gradient steps, and what happened."""
    progress = state.env_steps / config.run.total_steps
    metrics: Metrics = {"exploration/noise": state.exploration_noise}
    if batches is not None:
        rates = [value_at(rate, progress) for rate in (config.actor_learning_rate, config.critic_learning_rate)]
        step = partial(learn, actor_learning_rate=rates[0], critic_learning_rate=rates[1], config=config)
        noise = jax.random.normal(
            stream(state.key, "learning"), (len(batches.rewards), config.batch_size, state.network.bounds.size)
        )
        state, found = jax.lax.scan(step, state, (batches, noise))
        metrics |= jax.tree.map(jnp.mean, found) | {"optimizer/learning_rate": rates[1]}
    env_steps = state.env_steps + rollout.valid.sum(dtype=jnp.int32)
    state = state._replace(
        normalizer=update_normalizer(state.normalizer, rollout, config.discount),
        exploration_noise=value_at(config.exploration_noise, env_steps / config.run.total_steps),
        in_warmup=env_steps < config.learning_starts,
        key=stream(state.key, "next"),
        env_steps=env_steps,
        updates=state.updates + 1,
    )
    return state, metrics


def train(
    config: Config,
    envs: Envs | gym.vector.VectorEnv | None = None,
    state: State | None = None,
    snapshot: Snapshot | None = None,
    make_network: MakeActorTwinCritics[DeterministicActor] | None = None,
) -> Iterator[Update]:
    """Learn until `total_steps`, yielding after each update; go on from `state` and `snapshot`."""
    validate(config)
    with open_rollouts(config, act, envs) as rollouts:
        state = init(config, *rollouts.spaces, make_network) if state is None else state
        state = rollouts.start(state, snapshot)
        like = rollouts.empty_rollout()
        replay = rollouts.add_replay(Replay(config.replay_size, like, config.discount, config.n_step))
        while int(state.env_steps) < config.run.total_steps:
            rollout = rollouts.collect(policy(state), state.key)
            replay.add(rollout)
            due, owed = gradient_steps_due(config, state, replay, rollout)
            batches = replay.sample(state.key, (due, config.batch_size)) if due else None
            state, metrics = update(state._replace(owed=owed), rollout, batches, config)
            yield rollouts.report(state, metrics)
