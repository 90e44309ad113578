"""Deep deterministic policy gradient (Lillicrap et al. 2016, "Continuous control with deep
reinforcement learning").

Act by μ(s) with noise and keep every step in a replay. Draw past steps, move Q(s, a) towards r + γ
Q'(s', μ'(s')) and μ(s) to where Q is higher; after each gradient step μ' and Q' follow softly. Each
cycle's gradient steps are one compiled call on batches drawn before it.

Noise, of each environment its own: `ou`, correlated in time, as in the paper; `gaussian`, not
correlated; `parameter`, on the actor's weights instead of its actions, as large as moves the
actions by a wanted distance (Plappert et al. 2018).

Differs from the papers: many environments; first actions are uniform; no weight decay, no batch
normalisation, and the action joins before the critic's first layer; orthogonal weights. A
perturbation stands through an episode and to the end of the rollout in which that ends, while the
actor under it learns on, and σ adapts to the perturbations that act, not to others drawn for it.
"""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, NamedTuple

import equinox as eqx
import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import optax

from birl.checks import (
    lowest,
    require_config,
    validate_replay,
    validate_settings,
)
from birl.config import EnvConfig, RunConfig, check_fields, require
from birl.maths.count import Count, count_of, next_turn
from birl.maths.exploration import action_distance, adapt_noise_scale, gaussian, ornstein_uhlenbeck, parameter_noise
from birl.maths.keys import stream
from birl.maths.schedules import Schedule, value_at
from birl.nets.continuous import (
    ActionBounds,
    DeterministicActorCriticLike,
    MakeDeterministicActorCritic,
    make_deterministic_actor_critic,
)
from birl.nets.encoders import EncoderName
from birl.nets.images import Conv
from birl.nets.layers import Activation, LayerNorm
from birl.nets.normalize import (
    Normalizer,
    initial_normalizer,
    normalize_observations,
    reward_scale,
    update_normalizer,
)
from birl.nets.optimizers import (
    gradient_step,
    initial_optimizer_state,
    make_optimizer,
    soft_update,
)
from birl.nets.recurrent import reset_memory
from birl.registry import Supports, require_supported
from birl.rollouts.gradient_steps import gradient_steps_due
from birl.rollouts.open import open_rollouts
from birl.rollouts.replay import Replay
from birl.types import Action, Array, Envs, Metrics, PyTree, Rollout, Snapshot, Transitions, Update

NoiseName = Literal["ou", "gaussian", "parameter"]

SUPPORTS = Supports(("Box",), bounded=True)


@dataclass(frozen=True)
class Config:
    """DDPG's settings."""

    env: EnvConfig = field(default_factory=partial(EnvConfig, num_envs=1))
    run: RunConfig = field(default_factory=RunConfig)
    rollout_length: int = 8  # steps of each environment between updates, whose gradient steps are one compiled call
    update_ratio: float = 1.0  # gradient steps for each environment step: 0.25 learns once from a batch in four steps
    learning_starts: int = 1000  # environment steps before the first gradient step; up to it actions are uniform
    batch_size: int = 256  # transitions in a gradient step
    replay_size: int = 100_000  # transitions kept
    discount: float = 0.99  # γ
    n_step: int = 1  # rewards summed before the bootstrap
    target_rate: float = 0.005  # τ: how far the target networks move at each gradient step
    noise: NoiseName = "ou"
    exploration_noise: float | Schedule = 0.2  # σ of actions on [-1, 1]; of parameter noise δ, how far it moves them
    noise_rate: float = 0.15  # θ: how fast Ornstein-Uhlenbeck noise drifts back to 0
    noise_time_step: float = 1.0  # Δt of a step of it
    noise_adaptation: float = 1.01  # α: the factor by which parameter noise changes in a cycle
    actor_learning_rate: float | Schedule = 1e-3
    critic_learning_rate: float | Schedule = 1e-3
    max_grad_norm: float | None = None
    optimizer_epsilon: float = 1e-8
    normalize_observations: bool = False
    normalize_rewards: bool = False
    encoder: EncoderName = "mlp"
    hidden_sizes: tuple[int, ...] = (256, 256)
    activation: Activation = "relu"
    layer_norm: bool = False  # after each dense layer; parameter noise needs it: one σ then suits all layers

    def __post_init__(self) -> None:
        check_fields(self)


class Exploration(eqx.Module):
    """How to act other than by μ(s)."""

    noise: NoiseName = eqx.field(static=True)
    rate: float = eqx.field(static=True)  # θ
    time_step: float = eqx.field(static=True)  # Δt
    scale: Array  # σ of the next rollout
    rollout: Array  # the number of the next rollout, from 1; see next_turn
    # [2, B, ...] N(0, 1) for the actor's weights: of episodes that run when it begins, of those
    # that begin in it; None: no such noise
    perturbations: PyTree


class State(NamedTuple):
    """Everything that changes while DDPG learns, but for the replay."""

    network: DeterministicActorCriticLike
    target: DeterministicActorCriticLike
    actor_optimizer: PyTree
    critic_optimizer: PyTree
    normalizer: Normalizer
    exploration: Exploration
    in_warmup: Array  # still acting at random
    key: Array
    env_steps: Count
    updates: Count
    gradient_steps: Count
    owed: Array  # gradient steps that update_ratio has asked for and that are still to be taken


def validate(config: Config) -> None:
    """Raise ConfigError if these settings cannot work."""
    validate_settings(config, Config)
    drift = config.noise_rate * config.noise_time_step
    require(
        drift < 2,
        f"noise_rate {config.noise_rate} times noise_time_step {config.noise_time_step} must be below 2, else noise grows",
    )
    require(config.noise_adaptation > 1, f"noise_adaptation {config.noise_adaptation} must be above 1; 1.01 is usual")
    if config.noise == "parameter":
        require(
            config.layer_norm,
            "noise parameter with layer_norm False: one σ cannot suit layers of all sizes; use layer_norm True",
        )
        positive = lowest(config.exploration_noise) > 0
        require(
            positive,
            "exploration_noise reaches 0 and parameter noise cannot adapt to no distance; use noise gaussian to end without",
        )
    validate_replay(config)


def init(
    config: Config,
    observation_space: gym.Space,
    action_space: gym.Space,
    make_network: MakeDeterministicActorCritic | None = None,
) -> State:
    """A fresh State for these spaces, the same for the same seed."""
    require_config(config, Config)
    require_supported(config, action_space)
    rng = np.random.default_rng(config.run.seed)
    make = make_network or partial(
        make_deterministic_actor_critic, settings=config, remembers_noise=config.noise == "ou"
    )
    network = make(rng, observation_space, action_space)
    optimizer = optimizer_of(config)
    return State(
        network=network,
        target=network,
        actor_optimizer=initial_optimizer_state(optimizer, network.actor),
        critic_optimizer=initial_optimizer_state(optimizer, network.critic),
        normalizer=initial_normalizer(
            observation_space, config.env.num_envs, config.normalize_observations, config.normalize_rewards
        ),
        exploration=initial_exploration(rng, network.actor, config),
        in_warmup=np.bool_(config.learning_starts > 0),
        key=rng.integers(2**32, size=2, dtype=np.uint32),
        env_steps=count_of(0),
        updates=count_of(0),
        gradient_steps=count_of(0),
        owed=np.float32(0),
    )


def initial_exploration(rng: np.random.Generator, actor: PyTree, config: Config) -> Exploration:
    """Noise as large as the settings begin with; of parameter noise, a perturbation for each
    environment's episode and the one after.
    """
    perturbations, num_envs = None, config.env.num_envs
    if config.noise == "parameter":
        draw = partial(rng.standard_normal, dtype=np.float32)
        perturbations = jax.tree.map(lambda leaf: draw((2, num_envs, *leaf.shape)), perturbable(actor))
    scale = np.float32(value_at(config.exploration_noise, 0.0))
    return Exploration(config.noise, config.noise_rate, config.noise_time_step, scale, np.int32(1), perturbations)


def perturbable(actor: PyTree) -> PyTree:
    """The actor with None in place of what noise must leave alone: layer norms, and convolutions
    (Plappert et al. 2018).
    """
    left_alone = LayerNorm, Conv
    kept = jax.tree.map(
        lambda node: not isinstance(node, left_alone), actor, is_leaf=lambda node: isinstance(node, left_alone)
    )
    return eqx.filter(actor, kept)


def initial_memory(network: DeterministicActorCriticLike, noise: NoiseName, num_envs: int) -> PyTree:
    """What noise remembers: of parameter noise [B, 1] the rollout in which each environment's
    episode began, 0 for those before.
    """
    return np.zeros((num_envs, 1), np.int32) if noise == "parameter" else network.initial_memory(num_envs)


def policy(state: State) -> PyTree:
    """The part of the state that acts: what is evaluated, exported and played."""
    return state.network.actor, state.network.bounds, state.normalizer.observations, state.exploration, state.in_warmup


def optimizer_of(config: Config) -> optax.GradientTransformation:
    """Adam with these settings."""
    return make_optimizer("adam", config.optimizer_epsilon)


@jax.jit
def act(
    policy: PyTree, observations: PyTree, memory: PyTree, resets: Array, action_masks: Array | None, key: Array | None
) -> Action:
    """Actions for B observations: μ(s) and noise, uniform ones while warming; μ(s) alone if there
    is no key.
    """
    actor, bounds, moments, exploration, in_warmup = policy
    observations = normalize_observations(moments, observations)
    if key is None:
        return _in_bounds(actor(observations), bounds, memory)
    key, uniform_key = jax.random.split(key)
    match exploration.noise:
        case "ou":
            memory = ornstein_uhlenbeck(
                key,
                reset_memory(memory, resets, jnp.zeros_like(memory)),
                exploration.rate,
                exploration.scale,
                exploration.time_step,
            )
            actions = actor(observations) + memory
        case "gaussian":
            actions = actor(observations)
            actions = actions + gaussian(key, actions.shape, exploration.scale)
        case "parameter":
            began = resets
            if jax.tree.leaves(memory):  # an evaluation has none: there no rollout ends
                began = resets | (memory[:, 0] == exploration.rollout)
                memory = jnp.where(began[:, None], exploration.rollout, memory)
            weights = selected(began, *(perturbed_weights(actor, exploration, which, len(resets)) for which in (1, 0)))
            actions = jax.vmap(lambda own, observation: eqx.combine(own, actor)(observation))(weights, observations)
    uniform = jax.random.uniform(uniform_key, actions.shape, minval=-1.0, maxval=1.0)
    return _in_bounds(jnp.where(in_warmup, uniform, jnp.clip(actions, -1.0, 1.0)), bounds, memory)


def _in_bounds(actions: Array, bounds: ActionBounds, memory: PyTree) -> Action:
    return Action(bounds.from_unit(actions), memory)


def perturbed_weights(actor: PyTree, exploration: Exploration, which: int, num_envs: int) -> PyTree:
    """[B, ...] the weights of an actor for each environment, with σ times its perturbation number
    `which` added; None for all others.
    """
    own = jax.tree.leaves(exploration.perturbations)[0].shape[1]
    rows = np.arange(num_envs) % own  # an evaluation may have more environments, and then they share
    perturbations = jax.tree.map(lambda x: x[which] if num_envs == own else x[which][rows], exploration.perturbations)
    return jax.tree.map(lambda x, weight: weight + exploration.scale * x, perturbations, perturbable(actor))


def critic_loss(
    critic: PyTree, target: DeterministicActorCriticLike, normalizer: Normalizer, batch: Transitions
) -> tuple[Array, Metrics]:
    """E[(r + γᵏ Q'(s', μ'(s')) - Q(s, a))²] (Lillicrap et al. 2016, eqs. 4 and 5). This is the
    module's `loss`.
    """
    now, following = (
        normalize_observations(normalizer.observations, observations)
        for observations in (batch.observations, batch.next_observations)
    )
    targets = batch.rewards * reward_scale(normalizer) + batch.discounts * target.critic(
        following, target.actor(following)
    )
    values = critic(now, target.bounds.to_unit(batch.actions))
    value = jnp.mean((jax.lax.stop_gradient(targets) - values) ** 2)
    return value, {"loss/value": value, "value/mean": values.mean()}


loss = critic_loss


def actor_loss(actor: PyTree, critic: PyTree, normalizer: Normalizer, batch: Transitions) -> tuple[Array, Metrics]:
    """-E[Q(s, μ(s))]: its gradient is that of Silver et al. 2014 (Lillicrap et al. 2016, eq. 6)."""
    observations = normalize_observations(normalizer.observations, batch.observations)
    value = -jnp.mean(critic(observations, actor(observations)))
    return value, {"loss/policy": value}


def learn(
    state: State, batch: Transitions, actor_learning_rate: Array, critic_learning_rate: Array, config: Config
) -> tuple[State, Metrics]:
    """One gradient step of the critic, then of the actor, on one batch; then the target networks
    follow.
    """
    network, optimizer = state.network, optimizer_of(config)
    (_, found), gradients = jax.value_and_grad(critic_loss, has_aux=True)(
        network.critic, state.target, state.normalizer, batch
    )
    critic, critic_optimizer, norm = gradient_step(
        optimizer, network.critic, state.critic_optimizer, gradients, critic_learning_rate, config.max_grad_norm
    )
    (_, found_too), gradients = jax.value_and_grad(actor_loss, has_aux=True)(
        network.actor, critic, state.normalizer, batch
    )
    actor, actor_optimizer, actor_norm = gradient_step(
        optimizer, network.actor, state.actor_optimizer, gradients, actor_learning_rate, config.max_grad_norm
    )
    network = eqx.tree_at(lambda network: (network.actor, network.critic), network, (actor, critic))
    state = state._replace(
        network=network,
        target=soft_update(state.target, network, config.target_rate),
        actor_optimizer=actor_optimizer,
        critic_optimizer=critic_optimizer,
        gradient_steps=state.gradient_steps + 1,
    )
    return state, found | found_too | {"optimizer/grad_norm": norm, "optimizer/actor_grad_norm": actor_norm}


def explore(
    state: State, rollout: Rollout, batch: Transitions | None, key: Array, config: Config
) -> tuple[Exploration, Metrics]:
    """How to act in the next rollout: where an episode began, its perturbation goes on and the next
    is drawn; σ adapts on a batch.
    """
    exploration, wanted = (
        state.exploration,
        value_at(config.exploration_noise, state.env_steps / config.run.total_steps),
    )
    if config.noise != "parameter":
        return dataclasses.replace(exploration, scale=jnp.float32(wanted)), {}
    scale, metrics = exploration.scale, {}
    if batch is not None:
        observations, num_envs = (
            normalize_observations(state.normalizer.observations, batch.observations),
            rollout.valid.shape[1],
        )
        actor, weights = state.network.actor, perturbed_weights(state.network.actor, exploration, 0, num_envs)
        distance = action_distance(
            actor(observations), jax.vmap(lambda own: eqx.combine(own, actor)(observations))(weights)
        )
        scale = adapt_noise_scale(scale, distance, wanted, config.noise_adaptation)
        metrics = {"exploration/action_distance": distance}
    began = rollout.resets | ~rollout.valid[:-1].all(
        axis=0
    )  # one that begins after the last step begins in the next rollout
    perturbations = jax.lax.cond(
        began.any(),
        lambda old: passed_on(old, began, key),
        lambda old: jax.tree.map(jnp.asarray, old),
        exploration.perturbations,
    )
    return dataclasses.replace(
        exploration, scale=scale, rollout=next_turn(exploration.rollout), perturbations=perturbations
    ), metrics


def passed_on(perturbations: PyTree, began: Array, key: Array) -> PyTree:
    """Perturbations with those of some environments' new episodes in the place of the running
    ones', and others drawn for the next.
    """
    drawn = parameter_noise(key, jax.tree.map(lambda x: x[0], perturbations))

    running, new = (jax.tree.map(lambda x, which=which: x[which], perturbations) for which in (0, 1))
    return jax.tree.map(lambda *two: jnp.stack(two), selected(began, new, running), selected(began, drawn, new))


def selected(which: Array, trees: PyTree, others: PyTree) -> PyTree:
    """[B, ...] leaves with the rows of one tree where [B] flags are set, else those of another."""
    return jax.tree.map(
        lambda x, other: jnp.where(jax.lax.broadcast_in_dim(which, x.shape, (0,)), x, other), trees, others
    )


@partial(jax.jit, static_argnames="config")  # no donation: a user may keep update.state
def update(state: State, rollout: Rollout, batches: Transitions | None, config: Config) -> tuple[State, Metrics]:
    """The state after a rollout and a cycle's gradient steps on batches [G, N, ...], and what
    happened.
    """
    progress = state.env_steps / config.run.total_steps
    actor_rate, critic_rate = (
        value_at(rate, progress) for rate in (config.actor_learning_rate, config.critic_learning_rate)
    )
    metrics: Metrics = {"exploration/noise": state.exploration.scale}
    if batches is not None:
        step = partial(learn, actor_learning_rate=actor_rate, critic_learning_rate=critic_rate, config=config)
        state, found = jax.lax.scan(step, state, batches)
        metrics |= jax.tree.map(jnp.mean, found) | {"optimizer/learning_rate": critic_rate}
    env_steps = state.env_steps + rollout.valid.sum(dtype=jnp.int32)
    noise_key = stream(state.key, "exploration")
    state = state._replace(
        normalizer=update_normalizer(state.normalizer, rollout, config.discount),
        in_warmup=env_steps < config.learning_starts,
        key=stream(state.key, "next"),
        env_steps=env_steps,
        updates=state.updates + 1,
    )
    last = None if batches is None else jax.tree.map(lambda x: x[-1], batches)
    exploration, found = explore(state, rollout, last, noise_key, config)
    return state._replace(exploration=exploration), metrics | found


def train(
    config: Config,
    envs: Envs | gym.vector.VectorEnv | None = None,
    state: State | None = None,
    snapshot: Snapshot | None = None,
    make_network: MakeDeterministicActorCritic | None = None,
) -> Iterator[Update]:
    """Learn until `total_steps`, yielding after each update; go on from `state` and `snapshot`."""
    validate(config)
    with open_rollouts(config, act, envs) as rollouts:
        state = init(config, *rollouts.spaces, make_network) if state is None else state
        memory = initial_memory(state.network, config.noise, rollouts.num_envs)
        state = rollouts.start(state, snapshot, memory=memory)
        like = without_noise(rollouts.empty_rollout())
        replay = rollouts.add_replay(Replay(config.replay_size, like, config.discount, config.n_step))
        while int(state.env_steps) < config.run.total_steps:
            rollout = without_noise(rollouts.collect(policy(state), state.key))
            replay.add(rollout)
            due, owed = gradient_steps_due(config, state, replay, rollout)
            batches = replay.sample(state.key, (due, config.batch_size)) if due else None
            state, metrics = update(state._replace(owed=owed), rollout, batches, config)
            yield rollouts.report(state, metrics)


def without_noise(rollout: Rollout) -> Rollout:
    """The rollout without the noise it began with, from which nothing is learned."""
    return rollout._replace(memory=())
