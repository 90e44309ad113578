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
from functools import partial
from typing import Annotated, Any, NamedTuple

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np

from birl.checks import (
    require_config,
    require_sequences_fit,
    validate_burn_in,
    validate_replay,
    validate_settings,
    validate_values,
)
from birl.config import EnvConfig, RunConfig
from birl.limits import Discount, PositiveFraction, PositiveInt, Probability, Rate
from birl.maths import losses
from birl.maths.count import Count, count_of, increment_wrapped
from birl.maths.exploration import greedy_actions
from birl.maths.returns import n_step_terms
from birl.maths.schedules import linear, value_at
from birl.maths.value_distributions import ValueDistribution
from birl.nets.models import remembers
from birl.nets.normalize import Normalizer, normalize_observations, reward_scale
from birl.nets.optimizers import gradient_step, initial_optimizer_state, soft_update
from birl.nets.recurrent import rollout_resets
from birl.nets.values import (
    MakeQNetwork,
    QNetworkLike,
    QPolicy,
    act,
    make_q_network,
    values_after_burn_in,
    values_here,
)
from birl.parts import VALUES_ONLY, NetworkConfig, NormalizeConfig, OptimizerConfig, ReplayConfig, ValueConfig
from birl.registry import Alias, Supports
from birl.rollouts.learning import Batch, take_steps
from birl.rollouts.source import open_rollouts
from birl.rollouts.state import begin, count_rollout
from birl.search import EITHER, Choices, LogRange
from birl.settings import Search
from birl.traced import Scheduled, scheduled, settings
from birl.types import Array, Envs, Metrics, PyTree, Rollout, Snapshot, Source, Transitions, Update
from birl.variants import variant

EXPLORATIONS = Choices(tuple(linear(1.0, last, until) for last in (0.01, 0.05, 0.1) for until in (0.1, 0.2, 0.5)))

SUPPORTS = Supports(
    ("Discrete",),
    masks=True,
    recurrent=True,
    prefill=True,
    compiled=True,
    values="Q(s, ·)",
    rows=lambda config: config.replay.batch_size,
    aliases={
        "sb3": {"loss/value": Alias("train/loss")},
        "cleanrl": {"loss/value": Alias("losses/td_loss"), "value/mean": Alias("losses/q_values")},
    },
)


@settings
class Config:
    """DQN's settings."""

    env: EnvConfig = EnvConfig(num_envs=1)
    run: RunConfig = RunConfig()
    network: Annotated[NetworkConfig, VALUES_ONLY, Search(activation=None)] = NetworkConfig(activation="relu")
    value: Annotated[ValueConfig, Search(num_quantiles=None, num_atoms=None)] = ValueConfig()
    normalize: Annotated[NormalizeConfig, Search(normalize_rewards=None)] = NormalizeConfig()
    gradient: OptimizerConfig = OptimizerConfig("adam", max_grad_norm=10.0)
    replay: Annotated[
        ReplayConfig,
        Search(
            prioritized=EITHER,
            replay_size=Choices((10_000, 50_000, 100_000)),
            update_ratio=Choices((0.125, 0.25, 0.5, 1.0)),
        ),
    ] = ReplayConfig(batch_size=64, update_ratio=0.25)
    rollout_length: PositiveInt = 4  # steps of each environment between updates; if recurrent, the length of sequences
    discount: Discount = 0.99  # γ
    double: bool = True  # the network chooses the next action, the target network values it
    exploration: Annotated[Probability, EXPLORATIONS] = linear(1.0, 0.05, 0.2)  # ε: probability of a random action
    # gradient steps between updates of the target network
    target_every: Annotated[PositiveInt, Choices((50, 100, 250, 1000))] = 250
    target_rate: PositiveFraction = 1.0  # τ: rate of its soft update; 1: a copy
    learning_rate: Annotated[Rate, LogRange(5e-5, 5e-3)] = 1e-3  # size of a gradient step


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


class Compared(NamedTuple):
    """What the network predicts and what it should have predicted, for arrays [N] or [T, N]."""

    predicted: ValueDistribution
    targets: Any  # what `predicted.loss` takes
    valid: Array


def validate(config: Config) -> None:
    """Raise ConfigError if these settings cannot work."""
    validate_settings(config, Config)
    validate_replay(config.replay, config.run)
    validate_burn_in(config.replay.burn_in, config.rollout_length)
    validate_values(config.value)


def init(
    config: Config, observation_space: gym.Space, action_space: gym.Space, make_network: MakeQNetwork | None = None
) -> State:
    """A fresh State for these spaces, the same for the same seed."""
    require_config(config, Config)
    make = make_network or partial(make_q_network, network=config.network, kind=config.value)
    network, normalizer, key = begin(config, Config, observation_space, action_space, make)
    return State(
        network=network,
        target=network,
        optimizer=initial_optimizer_state(config.gradient, network),
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


def compare_transitions(
    network: QNetworkLike, target: QNetworkLike, normalizer: Normalizer, batch: Transitions, config: Config
) -> Compared:
    """[N] Q(s, a), and r + γᵏ max Q'(s', ·) (Mnih et al. 2015, algorithm 1)."""
    observations, next_observations = (
        normalize_observations(normalizer.observations, each) for each in (batch.observations, batch.next_observations)
    )
    values, next_values, next_targets = (
        values_here(each, inputs, (), jnp.zeros(batch.rewards.shape, bool))[0]
        for each, inputs in ((network, observations), (network, next_observations), (target, next_observations))
    )
    # Double: the network chooses, the target network values (van Hasselt et al. 2016, eq. 4).
    best = greedy_actions((next_values if config.double else next_targets).mean(), batch.next_action_masks)
    targets = next_targets.of(best).backup(batch.rewards * reward_scale(normalizer), batch.discounts)
    return Compared(values.of(batch.actions), targets, jnp.ones_like(batch.rewards))


def compare_sequences(
    network: QNetworkLike, target: QNetworkLike, normalizer: Normalizer, batch: Rollout, config: Config
) -> Compared:
    """[T, N] Q(s, a) of sequences after the burn-in, and r + γᵏ max Q'(s', ·)."""
    inputs = normalize_observations(normalizer.observations, batch.observations), batch.memory, rollout_resets(batch)
    burn_in = config.replay.burn_in
    values, target_values = (values_after_burn_in(each, *inputs, burn_in) for each in (network, target))
    batch = jax.tree.map(lambda x: x[burn_in:], batch._replace(observations=None, memory=None, resets=None))
    best = greedy_actions((values if config.double else target_values).mean(), batch.action_masks)
    steps = batch.rewards * reward_scale(normalizer), batch.terminated, batch.truncated, batch.valid
    rewards, discounts, counts = n_step_terms(*steps, config.discount, config.replay.n_step)
    length, sequences = rewards.shape
    successors = jnp.arange(length)[:, None] + counts, jnp.arange(sequences)
    targets = target_values.of(best).rows(successors).backup(rewards, discounts)
    return Compared(values.rows(slice(length)).of(batch.actions), targets, batch.valid)


def loss(
    network: QNetworkLike, target: QNetworkLike, normalizer: Normalizer, batch: Batch, config: Scheduled
) -> tuple[Array, tuple[Metrics, Array]]:
    """The weighted loss of what is learned of the values, with (metrics, new priorities).

    The weight of an error is P^-β, divided by the largest weight (Schaul et al. 2016, section 3.4).
    """
    compare = compare_transitions if isinstance(batch.steps, Transitions) else compare_sequences
    predicted, targets, valid = compare(network, target, normalizer, batch.steps, config)
    errors, priorities = predicted.loss(jax.lax.stop_gradient(targets))
    weights = (batch.probabilities / batch.probabilities.min()) ** -config.replay.priority_correction
    value = losses.masked_mean(weights * errors, valid)
    return value, (
        {
            "loss/value": value,
            "value/td_error": losses.masked_mean(jnp.abs(targets.mean() - predicted.mean()), valid),
            "value/mean": losses.masked_mean(targets.mean(), valid),
        },
        priorities,
    )


def learn(state: State, batch: Batch, config: Scheduled) -> tuple[State, tuple[Metrics, Array]]:
    """One gradient step on one batch, and its TD errors."""
    networks = state.network, state.target, state.normalizer
    gradients, (metrics, errors) = jax.grad(loss, has_aux=True)(*networks, batch, config)
    valid = None if isinstance(batch.steps, Transitions) else batch.steps.valid[config.replay.burn_in :]
    step = partial(gradient_step, config.gradient, state.network, state.optimizer)
    network, optimizer, norm = step(gradients, config.learning_rate, valid)
    steps = increment_wrapped(state.gradient_steps, config.target_every)
    move = partial(soft_update, rate=config.target_rate)
    target = jax.lax.cond(steps % config.target_every == 0, move, lambda target, _: target, state.target, network)
    state = state._replace(network=network, target=target, optimizer=optimizer, gradient_steps=steps)
    return state, (metrics | {"optimizer/grad_norm": norm, "optimizer/learning_rate": config.learning_rate}, errors)


@jax.jit  # no donation: a user may keep update.state
def update(
    state: State, rollout: Rollout, batches: Batch | None, config: Config
) -> tuple[State, Metrics, Array | None]:
    """The state after a rollout and its gradient steps, the metrics, and the TD errors."""
    metrics: Metrics = {"exploration/epsilon": state.epsilon}
    state, learned, errors = take_steps(learn, state, batches, scheduled(config, state.env_steps))
    state = count_rollout(state, rollout, config.discount)
    epsilon = value_at(config.exploration, state.env_steps / config.run.total_steps)
    return state._replace(epsilon=epsilon), metrics | learned, errors


def cycle(state: State, source: Source, config: Config) -> tuple[State, Metrics]:
    """Collect a rollout, keep it in the replay, and learn from that if gradient steps are due."""
    rollout = source.collect(policy(state), state.key)
    return source.learn(update, state, rollout, config)


def train(
    config: Config,
    envs: Envs | gym.vector.VectorEnv | None = None,
    state: State | None = None,
    snapshot: Snapshot | None = None,
    make_network: MakeQNetwork | None = None,
) -> Iterator[Update]:
    """Learn until `total_steps`; yield after each update. Continue from `state` and `snapshot`."""
    validate(config)
    with open_rollouts(config, act, envs) as rollouts:
        state = init(config, *rollouts.spaces, make_network) if state is None else state
        require_sequences_fit(config.replay, remembers(state.network))
        current = rollouts.start(state, snapshot)
        rollouts.add_replay(config.replay)
        while int(current.env_steps) < config.run.total_steps:
            current, metrics = rollouts.advance(cycle, current)
            yield rollouts.report(current, metrics)


# QR-DQN (Dabney et al. 2018, arXiv 1710.10044) and C51 (Bellemare et al. 2017, arXiv 1707.06887).
# The quantile loss is a sum over quantiles, so its gradient is that many times larger: not clipped.
qr_dqn = variant(__name__, "qr_dqn", values="quantiles", max_grad_norm=None)
c51 = variant(__name__, "c51", values="categorical")
