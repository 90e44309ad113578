"""Advantage actor-critic, A2C (Mnih et al. 2016, arXiv 1602.01783; OpenAI Baselines 2017).

1. Collect n steps of B environments with the current policy.
2. Compute n-step returns, bootstrapped from V where the episode goes on.
3. Take one gradient step on -log π(a|s) (G - V(s)), V's squared error and the entropy.

Differs from the paper (algorithm S3): the environments step together and one learner takes the mean
of their gradients, so none is stale; advantages may be GAE's (`gae_lambda` below 1); gradients are
clipped by their norm; where a time limit truncates an episode, V bootstraps.
"""

from collections.abc import Iterator
from functools import partial
from typing import Annotated, NamedTuple

import gymnasium as gym
import jax

from birl.checks import require_config, require_own_head, validate_gsde, validate_settings
from birl.config import EnvConfig, RunConfig
from birl.limits import GRAD_NORMS, Discount, EntropyWeight, PositiveInt, Rate, TraceDecay
from birl.maths.count import Count, count_of
from birl.maths.schedules import linear
from birl.nets.actor_critic_loss import actor_critic_loss
from birl.nets.models import ActorCriticLike, ActorCriticPolicy, MakeNetwork, act, make_actor_critic
from birl.nets.normalize import Normalizer, normalize_rewards
from birl.nets.optimizers import gradient_step, initial_optimizer_state, learning_rates, require_value_network
from birl.parts import ActionConfig, NetworkConfig, NormalizeConfig, OptimizerConfig
from birl.registry import EVERY_ACTION, Supports
from birl.rollouts.source import open_rollouts
from birl.rollouts.state import begin, count_rollout
from birl.search import EITHER, Choices, LogRange
from birl.settings import Search
from birl.traced import Scheduled, scheduled, settings
from birl.types import Array, Envs, Metrics, PyTree, Rollout, Snapshot, Source, Update

SUPPORTS = Supports(
    EVERY_ACTION, masks=True, recurrent=True, ray_rollouts=True, compiled=True, values="V(s)", distribution=True
)


@settings
class Config:
    """A2C's settings. The defaults are OpenAI Baselines', but RMSProp is PyTorch's."""

    env: Annotated[EnvConfig, Search(num_envs=Choices((4, 8, 16, 32)))] = EnvConfig(num_envs=8)
    run: RunConfig = RunConfig()
    network: NetworkConfig = NetworkConfig(hidden_sizes=(64, 64), activation="tanh")
    actions: Annotated[ActionConfig, Search(squash_actions=EITHER)] = ActionConfig()
    normalize: NormalizeConfig = NormalizeConfig()
    gradient: Annotated[OptimizerConfig, Search(max_grad_norm=GRAD_NORMS, optimizer=Choices(("rmsprop", "adam")))] = (
        OptimizerConfig("rmsprop", max_grad_norm=0.5)
    )
    # n: steps of each environment between updates, and the most rewards in a return
    rollout_length: Annotated[PositiveInt, Choices((5, 8, 16, 32, 64))] = 5
    discount: Discount = 0.99  # γ
    gae_lambda: TraceDecay = 1.0  # λ; 1: plain n-step returns
    entropy_weight: EntropyWeight = 0.01
    value_weight: float = 0.5  # weight of the value loss
    learning_rate: Annotated[Rate, LogRange(1e-4, 5e-3)] = linear(7e-4, 0.0)  # size of a gradient step
    value_learning_rate: Rate | None = None  # of the value network; None: learning_rate


class State(NamedTuple):
    """Everything that changes while A2C learns."""

    network: ActorCriticLike
    optimizer: PyTree
    normalizer: Normalizer
    key: Array
    env_steps: Count
    updates: Count


def validate(config: Config) -> None:
    """Raise ConfigError if these settings cannot work."""
    validate_settings(config, Config)
    validate_gsde(config.actions, config.rollout_length)


def init(
    config: Config, observation_space: gym.Space, action_space: gym.Space, make_network: MakeNetwork | None = None
) -> State:
    """A fresh State for these spaces, the same for the same seed."""
    require_config(config, Config)
    require_own_head(config.actions, make_network)
    make = make_network or partial(make_actor_critic, network=config.network, actions=config.actions)
    network, normalizer, key = begin(config, Config, observation_space, action_space, make)
    require_value_network(network, config.value_learning_rate)
    optimizer = initial_optimizer_state(config.gradient, network)
    return State(network, optimizer, normalizer, key, env_steps=count_of(0), updates=count_of(0))


def policy(state: State) -> PyTree:
    """The part of the state that acts."""
    return ActorCriticPolicy(state.network, state.normalizer.observations)


def loss(network: ActorCriticLike, moments: PyTree, rollout: Rollout, config: Scheduled) -> tuple[Array, Metrics]:
    """The loss of an actor-critic; with λ = 1 advantages are n-step returns minus V."""
    weights = config.entropy_weight, config.value_weight
    return actor_critic_loss(network, moments, rollout, *weights, config.discount, config.gae_lambda)


@jax.jit  # no donation: a user may keep update.state
def update(state: State, rollout: Rollout, config: Config) -> tuple[State, Metrics]:
    """The state after one gradient step on a rollout, and the metrics."""
    now = scheduled(config, state.env_steps)
    rates, rate_metrics = learning_rates(state.network, now.learning_rate, now.value_learning_rate)
    rewards, _ = normalize_rewards(state.normalizer, rollout, config.discount)
    gradients, metrics = jax.grad(loss, has_aux=True)(*policy(state), rollout._replace(rewards=rewards), now)
    network, optimizer, norm = gradient_step(
        config.gradient, state.network, state.optimizer, gradients, rates, rollout.valid
    )
    state = count_rollout(state._replace(network=network, optimizer=optimizer), rollout, config.discount)
    return state, metrics | rate_metrics | {"optimizer/grad_norm": norm}


def cycle(state: State, source: Source, config: Config) -> tuple[State, Metrics]:
    """Collect a rollout with the current policy and learn from it."""
    rollout = source.collect(policy(state), state.key, config.actions.steps_per_matrix(config.rollout_length))
    return update(state, rollout, config)


def train(
    config: Config,
    envs: Envs | gym.vector.VectorEnv | None = None,
    state: State | None = None,
    snapshot: Snapshot | None = None,
    make_network: MakeNetwork | None = None,
) -> Iterator[Update]:
    """Learn until `total_steps`; yield after each update. Continue from `state` and `snapshot`."""
    validate(config)
    with open_rollouts(config, act, envs) as rollouts:
        state = init(config, *rollouts.spaces, make_network) if state is None else state
        current = rollouts.start(state, snapshot)
        while int(current.env_steps) < config.run.total_steps:
            current, metrics = rollouts.advance(cycle, current)
            yield rollouts.report(current, metrics)
