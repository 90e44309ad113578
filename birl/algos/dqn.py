"""Deep Q-network, DQN (Mnih et al. 2015), with what was added to it since.

1. Act ε-greedily on Q and keep every step in a replay.
2. Sample past transitions and move Q(s, a) towards r + γ max Q'(s', ·) by the Huber loss, where
   Q' is the target network. All gradient steps of an update are one compiled call.
3. Every `target_every` gradient steps, move the target network to the network.

Switches: `double` (van Hasselt et al. 2016), `dueling` (Wang et al. 2016), `n_step` (Hessel et al.
2018), `prioritized` (Schaul et al. 2016), `core` (sequences with their memory: Kapturowski 2019).

Differs from the papers: Adam instead of RMSProp; many environments; the target network may move by
soft updates; priorities change after all gradient steps of an update, not after each.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import optax

from birl.checks import require_config, require_sequences_fit, validate_burn_in, validate_replay, validate_settings
from birl.config import EnvConfig, RunConfig, check_fields
from birl.limits import (
    Fraction,
    Natural,
    PositiveFloat,
    PositiveFraction,
    PositiveInt,
    Prefill,
    Probability,
    Rate,
    Sizes,
    Units,
)
from birl.maths import losses
from birl.maths.count import Count, count_of, increment_wrapped
from birl.maths.returns import n_step_returns
from birl.maths.schedules import linear, value_at
from birl.nets.acting import without_first
from birl.nets.encoders import EncoderName
from birl.nets.layers import Activation
from birl.nets.models import remembers
from birl.nets.normalize import Normalizer, normalize_observations, reward_scale
from birl.nets.optimizers import gradient_step, initial_optimizer_state, make_optimizer, soft_update
from birl.nets.policies import QPolicy
from birl.nets.recurrent import CoreName, rollout_resets
from birl.nets.values import (
    MakeQNetwork,
    QNetworkLike,
    act,
    double_q_values,
    make_q_network,
    q_of_actions,
    values_after_burn_in,
)
from birl.registry import Supports
from birl.rollouts.device_replay import AnyReplay
from birl.rollouts.gradient_steps import gradient_steps, gradient_steps_due, update_if_due
from birl.rollouts.open import open_rollouts
from birl.rollouts.replay import Indices, Replay
from birl.rollouts.state import begin, count_rollout
from birl.search import EITHER, Q_REPLAY, Choices, SearchSpace
from birl.traced import traced_settings
from birl.types import Array, Envs, Metrics, PyTree, Rollout, Snapshot, Source, Transitions, Update

SUPPORTS = Supports(
    ("Discrete",),
    masks=True,
    recurrent=True,
    prefill=True,
    compiled=True,
    values="Q(s, ·)",
    rows=lambda config: config.batch_size,
)


@traced_settings
@dataclass(frozen=True)
class Config:
    """DQN's settings."""

    env: EnvConfig = field(default_factory=partial(EnvConfig, num_envs=1))
    run: RunConfig = field(default_factory=RunConfig)
    rollout_length: PositiveInt = 4  # steps of each environment between updates; if recurrent, the length of sequences
    update_ratio: PositiveFloat = 0.25  # gradient steps for each environment step; 0.25: one for every four
    learning_starts: Natural = 1000  # environment steps before the first gradient step
    batch_size: PositiveInt = 64  # transitions in a gradient step; if recurrent, sequences
    replay_size: Natural = 100_000  # transitions kept
    prefill: Prefill | None = None  # put these transitions into the replay first: an .npz file, or minari:DATASET-ID
    frame_stack: PositiveInt = 1  # frames in an observation, newest last; the replay keeps each frame once
    discount: Fraction = 0.99  # γ
    n_step: PositiveInt = 1  # rewards summed before the bootstrap
    double: bool = True  # the network chooses the next action, the target network values it
    dueling: bool = False  # separate heads for value and advantages
    prioritized: bool = False  # sample in proportion to |error|^α instead of uniformly
    priority_exponent: Fraction = 0.6  # α
    priority_correction: Rate = field(default_factory=partial(linear, 0.4, 1.0))  # β: 1 removes the bias
    exploration: Probability = field(default_factory=partial(linear, 1.0, 0.05, 0.2))  # ε
    target_every: PositiveInt = 250  # gradient steps between updates of the target network
    target_rate: PositiveFraction = 1.0  # τ: rate of its soft update; 1: a copy
    burn_in: int = 0  # first steps of a sequence that only compute the memory
    learning_rate: Rate = 1e-3
    max_grad_norm: PositiveFloat | None = 10.0
    optimizer_epsilon: PositiveFloat = 1e-5
    normalize_observations: bool = False
    normalize_rewards: bool = False
    clip_rewards: bool = False  # learn from the signs of rewards (Mnih et al. 2015); returns are reported unclipped
    encoder: EncoderName = "auto"
    hidden_sizes: Sizes = (64, 64)
    activation: Activation = "relu"
    core: CoreName = "feedforward"
    core_size: Units = 64

    def __post_init__(self) -> None:
        check_fields(self)


SEARCH: SearchSpace = Q_REPLAY | {
    **dict.fromkeys(("dueling", "prioritized"), EITHER),
    "exploration": Choices(tuple(linear(1.0, last, until) for last in (0.01, 0.05, 0.1) for until in (0.1, 0.2, 0.5))),
}


class State(NamedTuple):
    """Everything that changes while DQN learns, except the replay."""

    network: QNetworkLike
    target: QNetworkLike
    optimizer: PyTree
    normalizer: Normalizer
    epsilon: Array  # ε of the next rollout
    key: Array
    env_steps: Count
    updates: Count
    gradient_steps: Array  # counts up, and wraps around before 32 bits are full
    owed: Array  # gradient steps that update_ratio asks for and that were not taken yet


class Batch(NamedTuple):
    """What gradient steps learn from: arrays [G, N, ...] in `update`, [N, ...] in `learn`."""

    steps: Transitions | Rollout  # if recurrent, sequences [G, T, N, ...]
    probabilities: Array  # [G, N] with which each was sampled, up to a factor


def validate(config: Config) -> None:
    """Raise ConfigError if these settings cannot work."""
    validate_settings(config, Config)
    validate_replay(config)
    validate_burn_in(config.burn_in, config.rollout_length)


def init(
    config: Config, observation_space: gym.Space, action_space: gym.Space, make_network: MakeQNetwork | None = None
) -> State:
    """A fresh State for these spaces, the same for the same seed."""
    require_config(config, Config)
    make = make_network or partial(make_q_network, settings=config, dueling=config.dueling)
    network, normalizer, key = begin(config, Config, observation_space, action_space, make)
    return State(
        network=network,
        target=network,
        optimizer=initial_optimizer_state(optimizer_of(config), network),
        normalizer=normalizer,
        epsilon=np.float32(value_at(config.exploration, 0.0)),
        key=key,
        env_steps=count_of(0),
        updates=count_of(0),
        gradient_steps=np.int32(0),
        owed=np.float32(0),
    )


def policy(state: State) -> PyTree:
    """The part of the state that acts."""
    return QPolicy(state.network, state.normalizer.observations, state.epsilon)


def optimizer_of(config: Config) -> optax.GradientTransformation:
    """Adam with these settings."""
    return make_optimizer("adam", config.optimizer_epsilon)


def transition_errors(
    network: QNetworkLike, target: QNetworkLike, normalizer: Normalizer, batch: Transitions, config: Config
) -> tuple[Array, Array, Array]:
    """[N] r + γᵏ max Q'(s', ·) - Q(s, a) (Mnih et al. 2015, algorithm 1); valid; targets."""
    observations, next_observations = (
        jax.tree.map(lambda x: x[None], normalize_observations(normalizer.observations, each))
        for each in (batch.observations, batch.next_observations)
    )
    resets = jnp.zeros((1, *batch.rewards.shape), bool)
    target_values = target(next_observations, (), resets)[0][0]
    selector_values = network(next_observations, (), resets)[0][0] if config.double else target_values
    bootstrap = double_q_values(selector_values, target_values, batch.next_action_masks)
    targets = batch.rewards * reward_scale(normalizer) + batch.discounts * bootstrap
    errors = jax.lax.stop_gradient(targets) - q_of_actions(network(observations, (), resets)[0][0], batch.actions)
    return errors, jnp.ones_like(errors), targets


def sequence_errors(
    network: QNetworkLike, target: QNetworkLike, normalizer: Normalizer, batch: Rollout, config: Config
) -> tuple[Array, Array, Array]:
    """[T, N] r + γᵏ max Q'(s', ·) - Q(s, a) of sequences after the burn-in; `valid`; targets."""
    observations = normalize_observations(normalizer.observations, batch.observations)
    resets = rollout_resets(batch)
    action_values = values_after_burn_in(network, observations, batch.memory, resets, config.burn_in)
    target_values = values_after_burn_in(target, observations, batch.memory, resets, config.burn_in)
    batch = jax.tree.map(lambda x: x[config.burn_in :], batch._replace(observations=None, memory=None, resets=None))
    selector_values = action_values if config.double else target_values
    bootstrap = double_q_values(selector_values[1:], target_values[1:], without_first(batch.action_masks))
    steps = batch.rewards * reward_scale(normalizer), batch.terminated, batch.truncated, batch.valid
    targets = n_step_returns(*steps, bootstrap, config.discount, config.n_step)
    return jax.lax.stop_gradient(targets) - q_of_actions(action_values[:-1], batch.actions), batch.valid, targets


def loss(
    network: QNetworkLike, target: QNetworkLike, normalizer: Normalizer, batch: Batch, correction: Array, config: Config
) -> tuple[Array, tuple[Metrics, Array]]:
    """The weighted Huber loss, with (metrics, TD errors).

    The weight of an error is P^-β, divided by the largest weight (Schaul et al. 2016, section 3.4).
    """
    if isinstance(batch.steps, Transitions):
        errors, valid, targets = transition_errors(network, target, normalizer, batch.steps, config)
    else:
        errors, valid, targets = sequence_errors(network, target, normalizer, batch.steps, config)
    weights = (batch.probabilities / batch.probabilities.min()) ** -correction
    value = losses.masked_mean(weights * losses.huber(errors), valid)
    metrics = {"loss/value": value, "value/td_error": losses.masked_mean(jnp.abs(errors), valid)}
    metrics |= {"value/mean": losses.masked_mean(targets, valid)}
    return value, (metrics, errors)


def learn(
    state: State, batch: Batch, learning_rate: Array, correction: Array, config: Config
) -> tuple[State, tuple[Metrics, Array]]:
    """One gradient step on one batch."""
    networks = state.network, state.target, state.normalizer
    gradients, (metrics, errors) = jax.grad(loss, has_aux=True)(*networks, batch, correction, config)
    valid = None if isinstance(batch.steps, Transitions) else batch.steps.valid[config.burn_in :]
    step = partial(gradient_step, optimizer_of(config), state.network, state.optimizer)
    network, optimizer, norm = step(gradients, learning_rate, config.max_grad_norm, valid)
    steps = increment_wrapped(state.gradient_steps, config.target_every)
    move = partial(soft_update, rate=config.target_rate)
    target = jax.lax.cond(steps % config.target_every == 0, move, lambda target, _: target, state.target, network)
    state = state._replace(network=network, target=target, optimizer=optimizer, gradient_steps=steps)
    return state, (metrics | {"optimizer/grad_norm": norm}, errors)


@jax.jit  # no donation: a user may keep update.state
def update(
    state: State, rollout: Rollout, batches: Batch | None, config: Config
) -> tuple[State, Metrics, Array | None]:
    """The state after a rollout and its gradient steps, the metrics, and the TD errors."""
    progress = state.env_steps / config.run.total_steps
    learning_rate = value_at(config.learning_rate, progress)
    correction = value_at(config.priority_correction, progress)
    metrics: Metrics = {"exploration/epsilon": state.epsilon}
    errors = None
    if batches is not None:
        step = partial(learn, learning_rate=learning_rate, correction=correction, config=config)
        state, (step_metrics, errors) = jax.lax.scan(step, state, batches)
        metrics |= jax.tree.map(jnp.mean, step_metrics) | {"optimizer/learning_rate": learning_rate}
    state = count_rollout(state, rollout, config.discount)
    epsilon = value_at(config.exploration, state.env_steps / config.run.total_steps)
    return state._replace(epsilon=epsilon), metrics, errors


def sample_batches(replay: AnyReplay, key: Array, config: Config) -> tuple[Batch, Indices | None]:
    """The G batches of one update, and the indices of their transitions; None for sequences."""
    rng = replay.rng(key)
    shape = gradient_steps(config), config.batch_size
    indices = replay.sample_indices(rng, shape)
    if replay.recurrent:  # never prioritized, so all probabilities are 1
        return Batch(replay.sample_sequences(rng, shape), indices.probabilities), None
    return Batch(replay.gather(indices), indices.probabilities), indices


def cycle(state: State, source: Source, config: Config) -> tuple[State, Metrics]:
    """Collect a rollout, keep it in the replay, and learn from that if gradient steps are due."""
    rollout = source.collect(policy(state), state.key)
    source.replay.add(rollout)
    due, owed = gradient_steps_due(config, state, source.replay, rollout)

    def learn_from(sampled: tuple[Batch, Indices | None] | None) -> tuple[State, Metrics, Array, Indices | None]:
        batches, indices = sampled or (None, None)
        return *update(state._replace(owed=owed), rollout, batches, config), indices

    sample = partial(sample_batches, source.replay, state.key, config)
    state, metrics, errors, indices = update_if_due(due, sample, learn_from)
    if indices is not None:
        source.replay.set_errors(indices, errors)
    return state, metrics


def train(
    config: Config,
    envs: Envs | gym.vector.VectorEnv | None = None,
    state: State | None = None,
    snapshot: Snapshot | None = None,
    make_network: MakeQNetwork | None = None,
) -> Iterator[Update]:
    """Learn until `total_steps`; yield after each update. Continue from `state` and `snapshot`."""
    validate(config)
    with open_rollouts(config, act, envs, clip_rewards=config.clip_rewards) as rollouts:
        state = init(config, *rollouts.spaces, make_network) if state is None else state
        require_sequences_fit(config, remembers(state.network))
        current = rollouts.start(state, snapshot)
        exponent = config.priority_exponent if config.prioritized else None
        kept = rollouts.empty_rollout(), config.discount, config.n_step, config.frame_stack, exponent
        rollouts.add_replay(Replay(config.replay_size, *kept), config.prefill)
        while int(current.env_steps) < config.run.total_steps:
            current, metrics = rollouts.advance(cycle, current)
            yield rollouts.report(current, metrics)
