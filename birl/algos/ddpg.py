"""Deep deterministic policy gradient, DDPG (Lillicrap et al. 2016, arXiv 1509.02971).

1. Act by μ(s) with noise and keep every step in a replay.
2. Sample past transitions, move Q(s, a) towards r + γ Q'(s', μ'(s')) and μ(s) up Q's slope. All
   gradient steps of an update are one compiled call.
3. Soft-update the target networks μ' and Q' after each gradient step.

`noise` is `ou`, as in the paper, `gaussian` or `parameter`: see nets/critics.py.

Differs from the papers: many environments; the first actions are uniform; no weight decay, no batch
normalisation, and the action enters before the critic's first layer; orthogonal initial weights. A
perturbation of parameter noise lasts for an episode and to the end of the rollout in which it ends,
while the actor goes on learning; σ adapts to the perturbations that act, not to others.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, NamedTuple

import equinox as eqx
import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np

from birl.checks import require_config, validate_replay, validate_settings
from birl.config import EnvConfig, RunConfig
from birl.limits import Discount, PositiveFraction, PositiveInt, Rate
from birl.maths.count import Count, count_of
from birl.maths.keys import stream
from birl.maths.schedules import value_at
from birl.nets.critics import (
    DeterministicActorCriticLike,
    DeterministicPolicy,
    Exploration,
    MakeDeterministicActorCritic,
    adapted_scale,
    after_rollout,
    initial_exploration,
    initial_noise_memory,
    make_deterministic_actor_critic,
    noisy_actions,
    random_in_warmup,
    validate_noise,
    without_noise,
)
from birl.nets.normalize import Normalizer, normalize_observations, reward_scale
from birl.nets.optimizers import gradient_step, initial_optimizer_state, soft_update
from birl.parts import (
    NO_CORE,
    STEPS_ONLY,
    WIDE,
    NetworkConfig,
    NoiseConfig,
    NormalizeConfig,
    OptimizerConfig,
    ReplayConfig,
)
from birl.registry import Alias, Supports, critic_losses
from birl.rollouts.learning import Batch, take_steps
from birl.rollouts.source import open_rollouts
from birl.rollouts.state import begin, count_rollout
from birl.search import Choices, LogRange
from birl.settings import Search
from birl.traced import Scheduled, scheduled, settings
from birl.types import Action, Array, Envs, Metrics, PyTree, Rollout, Snapshot, Source, Transitions, Update

SUPPORTS = Supports(
    ("Box",),
    bounded=True,
    prefill=True,
    compiled=True,
    rows=lambda config: config.replay.batch_size,
    aliases=critic_losses(1.0, Alias("losses/qf1_loss")),
)


@settings
class Config:
    """DDPG's settings."""

    env: EnvConfig = EnvConfig(num_envs=1)
    run: RunConfig = RunConfig()
    network: Annotated[NetworkConfig, NO_CORE, WIDE] = NetworkConfig(hidden_sizes=(256, 256), activation="relu")
    normalize: Annotated[NormalizeConfig, Search(normalize_rewards=None)] = NormalizeConfig()
    gradient: OptimizerConfig = OptimizerConfig("adam", optimizer_epsilon=1e-8)
    replay: Annotated[ReplayConfig, STEPS_ONLY, Search(update_ratio=Choices((0.25, 0.5, 1.0)))] = ReplayConfig()
    exploration: NoiseConfig = NoiseConfig("ou")
    rollout_length: PositiveInt = 8  # steps of each environment between updates; gradient steps are one compiled call
    discount: Discount = 0.99  # γ
    # τ: rate of the target networks' soft update at each gradient step
    target_rate: Annotated[PositiveFraction, Choices((0.002, 0.005, 0.01, 0.02, 0.05))] = 0.005
    actor_learning_rate: Annotated[Rate, LogRange(5e-5, 3e-3)] = 1e-3  # learning rate of the actor
    critic_learning_rate: Annotated[Rate, LogRange(1e-4, 3e-3)] = 1e-3  # learning rate of the critic


class State(NamedTuple):
    """Everything that changes while DDPG learns, except the replay."""

    network: DeterministicActorCriticLike
    target: DeterministicActorCriticLike
    actor_optimizer: PyTree
    critic_optimizer: PyTree
    normalizer: Normalizer
    exploration: Exploration
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
    validate_noise(config.exploration, config.network.layer_norm)


def init(
    config: Config,
    observation_space: gym.Space,
    action_space: gym.Space,
    make_network: MakeDeterministicActorCritic | None = None,
) -> State:
    """A fresh State for these spaces, the same for the same seed."""
    require_config(config, Config)
    remembers_noise = config.exploration.noise == "ou"
    make = make_network or partial(
        make_deterministic_actor_critic, network=config.network, remembers_noise=remembers_noise
    )

    def make_with_noise(rng: np.random.Generator, *spaces: gym.Space) -> tuple[Any, Exploration]:
        network = make(rng, *spaces)
        scale = float(value_at(config.exploration.exploration_noise, 0.0))
        ou = config.exploration.noise_rate, config.exploration.noise_time_step
        return network, initial_exploration(
            rng, network.actor, config.env.num_envs, config.exploration.noise, scale, *ou
        )

    (network, exploration), normalizer, key = begin(config, Config, observation_space, action_space, make_with_noise)
    return State(
        network=network,
        target=network,
        actor_optimizer=initial_optimizer_state(config.gradient, network.actor),
        critic_optimizer=initial_optimizer_state(config.gradient, network.critic),
        normalizer=normalizer,
        exploration=exploration,
        in_warmup=np.bool_(config.replay.learning_starts > 0),
        key=key,
        env_steps=count_of(0),
        updates=count_of(0),
        gradient_steps=count_of(0),
        owed=np.float32(0),
    )


def policy(state: State) -> PyTree:
    """The part of the state that acts."""
    network, moments = state.network, state.normalizer.observations
    return DeterministicPolicy(network.actor, network.bounds, moments, state.exploration, state.in_warmup)


@jax.jit
def act(
    policy: PyTree, observations: PyTree, memory: PyTree, resets: Array, action_masks: Array | None, key: Array | None
) -> Action:
    """μ(s) with noise for B observations, uniform in warmup; μ(s) itself if there is no key."""
    actor, bounds, moments, exploration, in_warmup = policy
    observations = normalize_observations(moments, observations)
    if key is None:
        return Action(bounds.from_unit(actor(observations)), memory)
    noise_key, uniform_key = jax.random.split(key)
    actions, memory = noisy_actions(actor, exploration, observations, memory, resets, noise_key)
    actions = random_in_warmup(jnp.clip(actions, -1.0, 1.0), in_warmup, uniform_key)
    return Action(bounds.from_unit(actions), memory)


def critic_loss(
    critic: PyTree, target: DeterministicActorCriticLike, normalizer: Normalizer, batch: Transitions
) -> tuple[Array, Metrics]:
    """E[(r + γᵏ Q'(s', μ'(s')) - Q(s, a))²] (Lillicrap et al. 2016, eqs. 4 and 5)."""
    observations = normalize_observations(normalizer.observations, batch.observations)
    next_observations = normalize_observations(normalizer.observations, batch.next_observations)
    next_values = target.critic(next_observations, target.actor(next_observations))
    targets = batch.rewards * reward_scale(normalizer) + batch.discounts * next_values
    values = critic(observations, target.bounds.to_unit(batch.actions))
    value = jnp.mean((jax.lax.stop_gradient(targets) - values) ** 2)
    return value, {"loss/value": value, "value/mean": values.mean()}


loss = critic_loss  # the name that every algorithm has


def actor_loss(actor: PyTree, critic: PyTree, normalizer: Normalizer, batch: Transitions) -> tuple[Array, Metrics]:
    """-E[Q(s, μ(s))], by the deterministic policy gradient (Lillicrap et al. 2016, eq. 6)."""
    observations = normalize_observations(normalizer.observations, batch.observations)
    value = -jnp.mean(critic(observations, actor(observations)))
    return value, {"loss/policy": value}


def learn(state: State, sampled: Batch, config: Scheduled) -> tuple[State, tuple[Metrics, None]]:
    """One gradient step of the critic, then of the actor, then the targets' soft update."""
    batch, network = sampled.steps, state.network
    step = partial(gradient_step, config.gradient)
    gradients, metrics = jax.grad(critic_loss, has_aux=True)(network.critic, state.target, state.normalizer, batch)
    critic, critic_optimizer, norm = step(
        network.critic, state.critic_optimizer, gradients, config.critic_learning_rate
    )
    gradients, actor_metrics = jax.grad(actor_loss, has_aux=True)(network.actor, critic, state.normalizer, batch)
    actor, actor_optimizer, actor_norm = step(
        network.actor, state.actor_optimizer, gradients, config.actor_learning_rate
    )
    network = eqx.tree_at(lambda network: (network.actor, network.critic), network, (actor, critic))
    state = state._replace(
        network=network,
        target=soft_update(state.target, network, config.target_rate),
        actor_optimizer=actor_optimizer,
        critic_optimizer=critic_optimizer,
        gradient_steps=state.gradient_steps + 1,
    )
    metrics |= actor_metrics | {"optimizer/grad_norm": norm, "optimizer/actor_grad_norm": actor_norm}
    return state, (metrics | {"optimizer/learning_rate": config.critic_learning_rate}, None)


def explore(
    state: State, rollout: Rollout, batch: Transitions | None, key: Array, config: Config
) -> tuple[Exploration, Metrics]:
    """The noise of the next rollout; σ of parameter noise adapts on a batch."""
    exploration = state.exploration
    scale = value_at(config.exploration.exploration_noise, state.env_steps / config.run.total_steps)
    if config.exploration.noise != "parameter":
        return replace(exploration, scale=jnp.float32(scale)), {}
    if batch is None:
        return after_rollout(exploration, rollout, exploration.scale, key), {}
    observations = normalize_observations(state.normalizer.observations, batch.observations)
    acted = state.network.actor, exploration, observations, rollout.valid.shape[1]
    scale, metrics = adapted_scale(*acted, scale, config.exploration.noise_adaptation)
    return after_rollout(exploration, rollout, scale, key), metrics


@jax.jit  # no donation: a user may keep update.state
def update(
    state: State, rollout: Rollout, batches: Batch | None, config: Config
) -> tuple[State, Metrics, Array | None]:
    """The state after a rollout and its gradient steps on batches [G, N, ...], and the metrics."""
    metrics: Metrics = {"exploration/noise": state.exploration.scale}
    state, learned, errors = take_steps(learn, state, batches, scheduled(config, state.env_steps))
    noise_key = stream(state.key, "exploration")
    state = count_rollout(state, rollout, config.discount)
    state = state._replace(in_warmup=state.env_steps < config.replay.learning_starts)
    last = None if batches is None else jax.tree.map(lambda x: x[-1], batches.steps)
    exploration, noise_metrics = explore(state, rollout, last, noise_key, config)
    return state._replace(exploration=exploration), metrics | learned | noise_metrics, errors


def cycle(state: State, source: Source, config: Config) -> tuple[State, Metrics]:
    """Collect a rollout, keep it in the replay, and learn from that if gradient steps are due."""
    rollout = without_noise(source.collect(policy(state), state.key))
    return source.learn(update, state, rollout, config)


def train(
    config: Config,
    envs: Envs | gym.vector.VectorEnv | None = None,
    state: State | None = None,
    snapshot: Snapshot | None = None,
    make_network: MakeDeterministicActorCritic | None = None,
) -> Iterator[Update]:
    """Learn until `total_steps`; yield after each update. Continue from `state` and `snapshot`."""
    validate(config)
    with open_rollouts(config, act, envs) as rollouts:
        state = init(config, *rollouts.spaces, make_network) if state is None else state
        memory = initial_noise_memory(
            state.network.initial_memory(rollouts.num_envs), config.exploration.noise, rollouts.num_envs
        )
        current = rollouts.start(state, snapshot, memory=memory)
        rollouts.add_replay(config.replay, keep=without_noise)
        while int(current.env_steps) < config.run.total_steps:
            current, metrics = rollouts.advance(cycle, current)
            yield rollouts.report(current, metrics)
