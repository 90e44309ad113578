"""One-step actor-critic with action values, QAC (Sutton & Barto 2018, section 13.5).

1. Collect T steps of B environments with the current policy.
2. The critic takes a step towards Sarsa's target r + γ Q(s', a'), where a' is the next action.
3. The actor takes a step up log π(a|s) Q(s, a). There is no target network and no replay.
With critic "v" it is the book's box: V(s) moves towards r + γ V(s'), the actor up log π(a|s) δ with
the TD error δ. The critic should learn faster than the actor (Konda & Tsitsiklis 2000).

Differs from the book: one gradient step for T·B transitions instead of one for each, and no factor
γ^t. The action after a rollout's last step is not known yet: the critic does not learn from that
step unless its episode terminated there; the actor does. Where a time limit truncated the episode,
a' is the action sampled at the last observation, though it was not taken. With action masks, which
are not known there, the critic leaves that step out.
"""

from collections.abc import Iterator
from functools import partial
from typing import Annotated, Literal, NamedTuple

import gymnasium as gym
import jax
import jax.numpy as jnp
from gymnasium import spaces

from birl.checks import require_config, validate_settings
from birl.config import EnvConfig, RunConfig, require
from birl.limits import GRAD_NORMS, Discount, EntropyWeight, PositiveInt, Rate
from birl.maths import losses
from birl.maths.count import Count, count_of
from birl.maths.losses import explained_variance
from birl.maths.returns import n_step_returns, sarsa_known, sarsa_targets
from birl.nets.models import (
    ActorCriticLike,
    ActorQCritic,
    ActorQCriticPolicy,
    MakeNetwork,
    RolloutEvaluation,
    act,
    evaluate_rollout,
    make_actor_critic,
    make_actor_q_critic,
    without_last,
)
from birl.nets.normalize import Normalizer, normalize_rewards
from birl.nets.optimizers import gradient_step, initial_optimizer_state
from birl.parts import GAUSSIAN_ONLY, ActionConfig, NetworkConfig, NormalizeConfig, OptimizerConfig
from birl.registry import EVERY_ACTION, Supports
from birl.rollouts.source import open_rollouts
from birl.rollouts.state import begin, count_rollout
from birl.search import Choices, LogRange
from birl.settings import Search
from birl.traced import Scheduled, scheduled, settings
from birl.types import Array, Envs, Metrics, PyTree, Rollout, Snapshot, Source, Update

SUPPORTS = Supports(
    EVERY_ACTION,
    masks=True,
    recurrent=True,
    ray_rollouts=True,
    compiled=True,
    values="Q(s, ·) or V(s)",
    distribution=True,
)


@settings
class Config:
    """QAC's settings."""

    env: EnvConfig = EnvConfig()
    run: RunConfig = RunConfig()
    network: NetworkConfig = NetworkConfig(hidden_sizes=(64, 64), activation="tanh")
    actions: Annotated[ActionConfig, GAUSSIAN_ONLY] = ActionConfig()
    normalize: NormalizeConfig = NormalizeConfig()
    gradient: Annotated[OptimizerConfig, Search(max_grad_norm=GRAD_NORMS)] = OptimizerConfig("adam", max_grad_norm=0.5)
    rollout_length: Annotated[PositiveInt, Choices((8, 16, 32, 64))] = 16  # T: steps of each environment per update
    critic: Literal["q", "v"] = "q"  # Q(s, a) by Sarsa's target, or V(s) and the TD error
    baseline: bool = False  # the actor's Q(s, a) less its mean under the policy; critic "q", Discrete actions
    discount: Discount = 0.99  # γ
    normalize_advantages: bool = False  # standardise what log π is weighted by
    entropy_weight: EntropyWeight = 0.0
    learning_rate: Annotated[Rate, LogRange(3e-5, 3e-3)] = 3e-4  # α^θ, of the actor
    # α^w of the critic, which should be the faster one (Konda & Tsitsiklis 2000)
    critic_learning_rate: Annotated[Rate, LogRange(1e-4, 1e-2)] = 1e-3


class State(NamedTuple):
    """Everything that changes while QAC learns."""

    network: ActorCriticLike  # an ActorQCritic with critic "q"
    actor_optimizer: PyTree
    critic_optimizer: PyTree
    normalizer: Normalizer
    key: Array
    env_steps: Count
    updates: Count


class CriticTargets(NamedTuple):
    """The critic's values of a rollout's steps, and their targets; leaves [T, B]."""

    values: Array  # Q(s, a) or V(s)
    targets: Array  # r + γ times the next value
    known: Array  # where there is a target
    advantages: Array  # the weights of the actor's log π


def validate(config: Config) -> None:
    """Raise ConfigError if these settings cannot work."""
    validate_settings(config, Config)
    wrong = f"rollout_length {config.rollout_length} holds no next action for the target of critic 'q'"
    require(config.critic == "v" or config.rollout_length > 1, f"{wrong}; use 2 or more, or critic v")
    remedy = "its TD error has V(s) subtracted already; use baseline False, or critic q"
    require(config.critic == "q" or not config.baseline, f"baseline True does not go with critic 'v': {remedy}")


def init(
    config: Config, observation_space: gym.Space, action_space: gym.Space, make_network: MakeNetwork | None = None
) -> State:
    """A fresh State for these spaces, the same for the same seed."""
    require_config(config, Config)
    make = make_network or partial(
        make_actor_q_critic if config.critic == "q" else make_actor_critic,
        network=config.network,
        actions=config.actions,
    )
    network, normalizer, key = begin(config, Config, observation_space, action_space, make)
    countable = isinstance(action_space, spaces.Discrete)
    remedy = "the mean of Q(s, a) needs Discrete actions; use baseline False, or critic v"
    require(countable or not config.baseline, f"baseline True does not go with action space {action_space}: {remedy}")
    optimizer = initial_optimizer_state(config.gradient, network)
    return State(network, optimizer, optimizer, normalizer, key, env_steps=count_of(0), updates=count_of(0))


def policy(state: State) -> PyTree:
    """The part of the state that acts."""
    return ActorQCriticPolicy(state.network, state.normalizer.observations)


def critic_targets_q(
    network: ActorQCritic, evaluation: RolloutEvaluation, rollout: Rollout, config: Config
) -> CriticTargets:
    """Q(s, a) with Sarsa's targets (eq. 6.7); Q(s, a), or Q minus its mean, weights log π."""
    features = evaluation.values[:-1]
    values = network.action_value_head(features, rollout.actions)
    targets, known = sarsa_targets(rollout.rewards, values, rollout.terminated, rollout.valid, config.discount)
    advantages = values
    if config.baseline:
        # The mean of Q as baseline (Sutton & Barto 2018, eq. 13.10).
        advantages = values - network.action_value_head.expected(features, without_last(evaluation.distributions))
    return CriticTargets(values, targets, known, advantages)


def critic_targets_v(
    network: ActorCriticLike, evaluation: RolloutEvaluation, rollout: Rollout, config: Config
) -> CriticTargets:
    """V(s) with its targets r + γ V(s') (Sutton & Barto 2018, eqs. 13.12 to 13.14).

    The TD error weights log π.
    """
    values = evaluation.values[:-1]
    flags = rollout.terminated, rollout.truncated, rollout.valid
    targets = n_step_returns(rollout.rewards, *flags, evaluation.values[1:], config.discount, n=1)
    return CriticTargets(values, targets, rollout.valid, targets - values)


def loss(network: PyTree, moments: PyTree, rollout: Rollout, config: Scheduled) -> tuple[tuple[Array, Array], Metrics]:
    """The actor's -E[log π(a|s) Q(s, a)] - entropy bonus, and the critic's squared error."""
    evaluation = evaluate_rollout((network, moments), rollout)
    critic_targets = critic_targets_q if config.critic == "q" else critic_targets_v
    values, targets, known, advantages = critic_targets(network, evaluation, rollout, config)
    distribution = without_last(evaluation.distributions)
    advantages = losses.normalize(advantages, rollout.valid) if config.normalize_advantages else advantages
    policy_loss = losses.policy_gradient(distribution.log_prob(rollout.actions), advantages, rollout.valid)
    value_loss = losses.value_loss(values, targets, known)
    entropy = losses.masked_mean(distribution.entropy(), rollout.valid)
    return (policy_loss - config.entropy_weight * entropy, value_loss), {
        "loss/policy": policy_loss,
        "loss/value": value_loss,
        "policy/entropy": entropy,
        "value/explained_variance": explained_variance(values, targets, known),
    }


@jax.jit  # no donation: a user may keep update.state
def update(state: State, rollout: Rollout, config: Config) -> tuple[State, Metrics]:
    """The state after one gradient step of the actor and one of the critic, and the metrics.

    It is one step of the box One-step Actor-Critic of Sutton & Barto 2018, for a whole rollout.
    """
    now = scheduled(config, state.env_steps)
    rewards, _ = normalize_rewards(state.normalizer, rollout, config.discount)
    inputs = state.normalizer.observations, rollout._replace(rewards=rewards), now
    _, pull_back, metrics = jax.vjp(lambda network: loss(network, *inputs), state.network, has_aux=True)
    (actor_gradients,), (critic_gradients,) = (pull_back(which) for which in ((1.0, 0.0), (0.0, 1.0)))

    # Both gradients are of the network that acted, so the order of the two steps does not matter.
    known = sarsa_known(rollout.terminated, rollout.valid) if config.critic == "q" else rollout.valid
    network, actor_optimizer, actor_norm = gradient_step(
        config.gradient, state.network, state.actor_optimizer, actor_gradients, now.learning_rate, rollout.valid
    )
    network, critic_optimizer, critic_norm = gradient_step(
        config.gradient, network, state.critic_optimizer, critic_gradients, now.critic_learning_rate, known
    )
    state = state._replace(network=network, actor_optimizer=actor_optimizer, critic_optimizer=critic_optimizer)
    state = count_rollout(state, rollout, config.discount)
    return state, metrics | {
        "optimizer/grad_norm": jnp.hypot(actor_norm, critic_norm),
        "optimizer/learning_rate": now.learning_rate,
        "optimizer/critic_learning_rate": now.critic_learning_rate,
    }


def cycle(state: State, source: Source, config: Config) -> tuple[State, Metrics]:
    """Collect a rollout with the current policy and learn from it."""
    rollout = source.collect(policy(state), state.key)
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
