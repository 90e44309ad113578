"""Advantage actor-critic, A2C (Mnih et al. 2016, arXiv 1602.01783; OpenAI Baselines 2017).

1. Collect n steps of B environments with the current policy.
2. Compute n-step returns, bootstrapped from V where the episode goes on.
3. Take one gradient step on -log π(a|s) (G - V(s)), V's squared error and the entropy.

Differs from the paper (algorithm S3): the environments step together and one learner takes the mean
of their gradients, so none is stale; advantages may be GAE's (`gae_lambda` below 1); gradients are
clipped by their norm; where a time limit truncates an episode, V bootstraps.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import gymnasium as gym
import jax
import optax

from birl.checks import validate_settings
from birl.config import EnvConfig, RunConfig, check_fields
from birl.limits import Decay, Fraction, PositiveFloat, PositiveInt, Rate, Sizes, Units
from birl.maths.count import Count, count_of
from birl.maths.schedules import Schedule, linear, value_at
from birl.nets.acting import act_keeping_layers as act
from birl.nets.actor_critic_loss import actor_critic_loss
from birl.nets.encoders import EncoderName
from birl.nets.gsde import make_gaussian_head, require_own_head, steps_per_matrix, validate_gsde
from birl.nets.layers import Activation
from birl.nets.learning_rates import learning_rates, require_value_network
from birl.nets.models import ActorCriticLike, MakeNetwork, make_actor_critic
from birl.nets.normalize import Normalizer, normalize_rewards
from birl.nets.optimizers import OptimizerName, gradient_step, initial_optimizer_state, make_optimizer
from birl.nets.policies import ActorCriticPolicy
from birl.nets.recurrent import CoreName
from birl.registry import EVERY_ACTION, Supports
from birl.rollouts.open import open_rollouts
from birl.rollouts.state import begin, count_rollout
from birl.search import ACTOR_CRITIC, EITHER, LAMBDAS, Choices, LogRange, SearchSpace
from birl.traced import traced_settings
from birl.types import Array, Envs, Metrics, PyTree, Rollout, Snapshot, Source, Update

SUPPORTS = Supports(
    EVERY_ACTION, masks=True, recurrent=True, ray_rollouts=True, compiled=True, values="V(s)", distribution=True
)


@traced_settings
@dataclass(frozen=True)
class Config:
    """A2C's settings. The defaults are OpenAI Baselines', but RMSProp is PyTorch's."""

    env: EnvConfig = field(default_factory=EnvConfig)
    run: RunConfig = field(default_factory=RunConfig)
    rollout_length: PositiveInt = 5  # n: steps of each environment between updates, and the most rewards in a return
    discount: Fraction = 0.99  # γ
    gae_lambda: Fraction = 1.0  # λ; 1: plain n-step returns
    entropy_weight: float | Schedule = 0.01
    value_weight: float = 0.5
    learning_rate: Rate = field(default_factory=partial(linear, 7e-4, 0.0))
    value_learning_rate: Rate | None = None  # of the value network; None: learning_rate
    max_grad_norm: PositiveFloat | None = 0.5
    optimizer: OptimizerName = "rmsprop"  # PyTorch's: ε outside the root; rmsprop-tf: ε inside, mean square from 1
    optimizer_epsilon: PositiveFloat = 1e-5  # ε
    rmsprop_decay: Decay = 0.99  # α: decay of the mean of squared gradients, for rmsprop and rmsprop-tf
    normalize_observations: bool = False
    normalize_rewards: bool = False
    clip_rewards: bool = False  # learn from the signs of rewards (Mnih et al. 2015); returns are reported unclipped
    encoder: EncoderName = "auto"
    hidden_sizes: Sizes = (64, 64)
    policy_hidden_sizes: Sizes | None = None  # of the policy alone; None: hidden_sizes
    value_hidden_sizes: Sizes | None = None  # of the value alone; None: hidden_sizes
    activation: Activation = "tanh"
    core: CoreName = "feedforward"
    core_size: Units = 64
    share_trunk: bool = False  # one encoder and core for policy and value
    log_std: float = 0.0  # first log standard deviation of a continuous policy; with gsde, of the matrix
    state_dependent_std: bool = False  # the log standard deviation is an output of the network
    scale_actions: bool = True  # to a Box whose bounds are not near ±1; False: the policy has the environment's numbers
    squash_actions: bool = False  # by tanh into the bounds of a Box; False: the environment gets them clipped
    gsde: bool = False  # exploration noise is a function of the state (Raffin et al. 2021); for Box actions
    gsde_every: PositiveInt | None = None  # steps between new matrices of gsde; None: one for each rollout

    def __post_init__(self) -> None:
        check_fields(self)


SEARCH: SearchSpace = ACTOR_CRITIC | {
    "num_envs": Choices((4, 8, 16, 32)),
    "rollout_length": Choices((5, 8, 16, 32, 64)),
    "gae_lambda": LAMBDAS,
    "learning_rate": LogRange(1e-4, 5e-3),
    "optimizer": Choices(("rmsprop", "adam")),
    "squash_actions": EITHER,
}


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
    validate_gsde(config, config.state_dependent_std)


def init(
    config: Config, observation_space: gym.Space, action_space: gym.Space, make_network: MakeNetwork | None = None
) -> State:
    """A fresh State for these spaces, the same for the same seed."""
    require_own_head(config, make_network)
    make = make_network or partial(make_actor_critic, settings=config, make_head=make_gaussian_head)
    network, normalizer, key = begin(config, Config, observation_space, action_space, make)
    require_value_network(network, config)
    optimizer = initial_optimizer_state(optimizer_of(config), network)
    return State(network, optimizer, normalizer, key, env_steps=count_of(0), updates=count_of(0))


def policy(state: State) -> PyTree:
    """The part of the state that acts."""
    return ActorCriticPolicy(state.network, state.normalizer.observations)


def optimizer_of(config: Config) -> optax.GradientTransformation:
    """RMSProp or Adam with these settings."""
    return make_optimizer(config.optimizer, config.optimizer_epsilon, config.rmsprop_decay)


def loss(
    network: ActorCriticLike, moments: PyTree, rollout: Rollout, entropy_weight: Array, config: Config
) -> tuple[Array, Metrics]:
    """The loss of an actor-critic; with λ = 1 advantages are n-step returns minus V."""
    weights = entropy_weight, config.value_weight
    return actor_critic_loss(network, moments, rollout, *weights, config.discount, config.gae_lambda)


@jax.jit  # no donation: a user may keep update.state
def update(state: State, rollout: Rollout, config: Config) -> tuple[State, Metrics]:
    """The state after one gradient step on a rollout, and the metrics."""
    progress = state.env_steps / config.run.total_steps
    rates, rate_metrics = learning_rates(state.network, config, progress)
    entropy_weight = value_at(config.entropy_weight, progress)
    rewards, _ = normalize_rewards(state.normalizer, rollout, config.discount)
    gradients, metrics = jax.grad(loss, has_aux=True)(
        *policy(state), rollout._replace(rewards=rewards), entropy_weight, config
    )
    network, optimizer, norm = gradient_step(
        optimizer_of(config),
        state.network,
        state.optimizer,
        gradients,
        rates,
        config.max_grad_norm,
        rollout.valid,
    )
    state = count_rollout(state._replace(network=network, optimizer=optimizer), rollout, config.discount)
    return state, metrics | rate_metrics | {"optimizer/grad_norm": norm}


def cycle(state: State, source: Source, config: Config) -> tuple[State, Metrics]:
    """Collect a rollout with the current policy and learn from it."""
    rollout = source.collect(policy(state), state.key, steps_per_matrix(config))
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
    with open_rollouts(config, act, envs, clip_rewards=config.clip_rewards) as rollouts:
        state = init(config, *rollouts.spaces, make_network) if state is None else state
        current = rollouts.start(state, snapshot)
        while int(current.env_steps) < config.run.total_steps:
            current, metrics = rollouts.advance(cycle, current)
            yield rollouts.report(current, metrics)
