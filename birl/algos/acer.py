"""Actor-critic with experience replay, ACER (Wang et al. 2017, arXiv 1611.01224).

1. Collect T steps of B environments, and store them in a replay.
2. Learn from them, and then, Poisson(`replay_ratio`) times, from sequences of the replay. Q moves
   towards Retrace targets. The policy gradient has importance weights truncated at c, with a bias
   correction by Q.
3. In each state the policy gradient is projected, so that the KL from the average of past policies
   grows by no more than δ, to first order.
Discrete actions have a softmax policy and Q(s, ·) (algorithm 2), a Box has a Gaussian policy and a
stochastic dueling network (algorithm 3).

With `pool` none, one learner steps all environments together. Otherwise, as in the paper,
actor-learners with their own environments and replays share parameters without locks.

Differs from the paper: gradients are means over sequences, not sums, and clipped by their norm; the
statistics of the softmax are its logits, which stay finite where a probability is 0; the Gaussian's
deviation is learned, the same in all states unless `state_dependent_std`, and the trust region
includes it; the Q loss has a weight; where a time limit truncates an episode, V bootstraps; the
average network also starts a sequence from the stored memory.
"""

from collections.abc import Iterator
from functools import partial
from typing import Annotated, NamedTuple

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np

from birl.asynchronous.actor_learner import initial_state
from birl.asynchronous.parameters import SharedParameters, WorkerResult
from birl.asynchronous.parameters import State as SharedState
from birl.asynchronous.pool import train_actor_learners
from birl.asynchronous.replay_learner import Learner, ReplayShare, replay_worker_step, validate_share
from birl.checks import require_config, require_own_envs, require_rmsprop, validate_actor_learners, validate_settings
from birl.config import ConfigError, EnvConfig, RunConfig
from birl.limits import Discount, EntropyWeight, Fraction, Natural, NotNegative, PositiveFloat, PositiveInt, Rate
from birl.maths import losses
from birl.maths.count import Count, count_of, increment_wrapped
from birl.maths.keys import numbered, stream
from birl.maths.losses import explained_variance
from birl.maths.schedules import value_at
from birl.maths.trust_region import dot
from birl.nets.actor_q import (
    ActorQLike,
    ActorQPolicy,
    DuelingActorLike,
    MakeActorQ,
    critic_estimates,
    empty_behaviour,
    log_ratios,
    make_actor_q,
    policy_step,
)
from birl.nets.models import act, evaluate_rollout, without_last
from birl.nets.normalize import Normalizer, merge_moments, reward_scale
from birl.nets.optimizers import (
    gradient_step,
    initial_optimizer_state,
    shared_rmsprop,
    soft_update,
)
from birl.parts import (
    GAUSSIAN_ONLY,
    ActionConfig,
    ActorLearnerConfig,
    NetworkConfig,
    NormalizeConfig,
    OptimizerConfig,
    ReplayConfig,
)
from birl.registry import Supports
from birl.rollouts.finite import check_finite_metrics
from birl.rollouts.replay import Replay
from birl.rollouts.source import open_rollouts
from birl.rollouts.state import begin, count_rollout
from birl.search import Choices, LogRange
from birl.traced import settings
from birl.types import Array, Envs, Metrics, PyTree, Rollout, Snapshot, Source, Update

SUPPORTS = Supports(
    ("Discrete", "Box"),
    masks=True,
    recurrent=True,
    actor_learners=True,
    values="Q(s, ·) or V(s)",
    distribution=True,
    rows=lambda config: config.rollout_length * max(config.env.num_envs, config.batch_size or 1),
)


@settings
class Config:
    """ACER's settings. The defaults are OpenAI Baselines', except RMSProp and `learning_starts`."""

    env: EnvConfig = EnvConfig()
    run: RunConfig = RunConfig()
    learners: ActorLearnerConfig = ActorLearnerConfig(pool="none")
    network: NetworkConfig = NetworkConfig(hidden_sizes=(64, 64), activation="tanh")
    actions: Annotated[ActionConfig, GAUSSIAN_ONLY] = ActionConfig()
    normalize: NormalizeConfig = NormalizeConfig()
    gradient: OptimizerConfig = OptimizerConfig("rmsprop", max_grad_norm=10.0)
    # T: steps of each environment between updates, and length of replayed sequences
    rollout_length: Annotated[PositiveInt, Choices((10, 20, 50))] = 20
    discount: Discount = 0.99  # γ
    entropy_weight: EntropyWeight = 0.01
    value_weight: float = 0.5  # weight of the value loss
    importance_truncation: PositiveFloat = 10.0  # c: largest importance weight; a correction by Q replaces the rest
    # δ: how far an update may lead from the average policy; None: no limit
    trust_region: Annotated[PositiveFloat, Choices((0.1, 0.3, 1.0, 3.0))] | None = 1.0
    average_decay: Fraction = 0.99  # α: decay of the average policy network, in each gradient step
    advantage_samples: PositiveInt = 5  # sampled actions whose mean advantage is 0, in the dueling network for a Box
    # transitions kept by all actor-learners together; 0: no replay
    replay_size: Annotated[Natural, Choices((10_000, 50_000, 100_000))] = 50_000
    # mean number of replayed updates for each new rollout; it is drawn from a Poisson
    replay_ratio: Annotated[NotNegative, Choices((1.0, 2.0, 4.0, 8.0))] = 4.0
    learning_starts: Natural = 1000  # environment steps before the first replayed update
    batch_size: PositiveInt | None = None  # sequences in a replayed update; None: as many as environments
    frame_stack: PositiveInt = 1  # observations are stacks of so many frames, newest last; the replay keeps each once
    learning_rate: Annotated[Rate, LogRange(1e-4, 5e-3)] = 7e-4  # size of a gradient step


class State(NamedTuple):
    """Everything that changes while one learner learns, except the replay."""

    network: ActorQLike | DuelingActorLike
    average: ActorQLike | DuelingActorLike  # average of past networks: the centre of the trust region
    optimizer: PyTree
    normalizer: Normalizer
    key: Array
    env_steps: Count
    updates: Count
    gradient_steps: Array  # see increment_wrapped


def validate(config: Config) -> None:
    """Raise ConfigError if these settings cannot work."""
    validate_settings(config, Config)
    if config.learners.pool == "none":
        return
    validate_actor_learners(config.env, config.learners)
    require_rmsprop(config.gradient, config.learners, otherwise=", or pool none")
    validate_share(config.replay_size, config.rollout_length, config.env, config.learners)


def init(
    config: Config, observation_space: gym.Space, action_space: gym.Space, make_network: MakeActorQ | None = None
) -> State | SharedState:
    """A fresh State for these spaces, the same for the same seed; a SharedState with a pool."""
    require_config(config, Config)
    make = make_network or partial(make_actor_q, network=config.network, actions=config.actions)
    if config.learners.pool != "none":
        return initial_state(config, Config, observation_space, action_space, make, has_target=True)
    network, normalizer, key = begin(config, Config, observation_space, action_space, make)
    optimizer = initial_optimizer_state(config.gradient, network)
    return State(network, network, optimizer, normalizer, key, count_of(0), count_of(0), np.int32(0))


def policy(state: State | SharedState) -> PyTree:
    """The part of the state that acts."""
    moments = state.normalizer.observations
    return ActorQPolicy(state.network, merge_moments(moments) if isinstance(state, SharedState) else moments)


def loss(
    network: ActorQLike | DuelingActorLike,
    average: ActorQLike | DuelingActorLike,
    normalizer: Normalizer,
    rollout: Rollout,
    key: Array,
    entropy_weight: Array,
    config: Config,
) -> tuple[Array, Metrics]:
    """The critic's loss, minus what the projected policy step raises, minus the entropy bonus."""
    moments = normalizer.observations
    valid = rollout.valid
    rollout = rollout._replace(rewards=rollout.rewards * reward_scale(normalizer))
    evaluation = evaluate_rollout((network, moments), rollout)
    distribution = without_last(evaluation.distributions)
    average_evaluation = evaluate_rollout((average, moments), rollout)
    average_distribution = jax.lax.stop_gradient(without_last(average_evaluation.distributions))
    settings = config.discount, config.importance_truncation, config.advantage_samples
    critic = critic_estimates(network, evaluation, rollout, key, *settings)
    step = policy_step(critic.objective, distribution, average_distribution, config.trust_region)
    # The gradient of statistics · constant is that constant; the chain rule takes it on.
    ascent = losses.masked_mean(dot(distribution, step.directions), valid)
    entropy = losses.masked_mean(distribution.entropy(), valid)
    truncated = jnp.exp(log_ratios(jax.lax.stop_gradient(distribution), rollout)) > config.importance_truncation
    return config.value_weight * critic.value_loss - ascent - entropy_weight * entropy, {
        "loss/policy": -losses.masked_mean(step.objectives, valid),
        "loss/value": critic.value_loss,
        "policy/entropy": entropy,
        "policy/average_kl": losses.masked_mean(step.kls, valid),
        "policy/truncated_share": losses.masked_mean(truncated.astype(jnp.float32), valid),
        "trust_region/projected_share": losses.masked_mean(step.projected.astype(jnp.float32), valid),
        "value/explained_variance": explained_variance(critic.action_values, critic.targets, valid),
    }


def gradients(learner: Learner, rollout: Rollout, config: Config) -> tuple[PyTree, Metrics]:
    """The loss's gradients with respect to a learner's network, and the metrics."""
    progress = learner.env_steps / config.run.total_steps
    entropy_weight = value_at(config.entropy_weight, progress)
    key = jax.random.fold_in(stream(learner.key, "learning"), learner.gradient_steps)  # to sample actions
    gradient, metrics = jax.grad(loss, has_aux=True)(
        learner.network, learner.target_network, learner.normalizer, rollout, key, entropy_weight, config
    )
    return gradient, metrics | {"optimizer/learning_rate": value_at(config.learning_rate, progress)}


@jax.jit  # no donation: a user may keep update.state
def update(state: State, rollout: Rollout, config: Config) -> tuple[State, Metrics]:
    """The state after one gradient step on a rollout, new or replayed, and the metrics."""
    counts = state.env_steps, state.gradient_steps
    learner = Learner(state.network, state.average, state.normalizer, state.key, *counts)
    gradient, metrics = gradients(learner, rollout, config)
    learning_rate = metrics["optimizer/learning_rate"]
    step = partial(gradient_step, config.gradient, state.network, state.optimizer)
    network, optimizer, norm = step(gradient, learning_rate, rollout.valid)
    average = soft_update(state.average, network, 1.0 - config.average_decay)  # Wang et al. 2017, section 3.3
    steps = increment_wrapped(state.gradient_steps)
    state = state._replace(network=network, average=average, optimizer=optimizer, gradient_steps=steps)
    return state, metrics | {"optimizer/grad_norm": norm}


count = jax.jit(count_rollout)


def sample_replayed(replay: Replay, key: Array, env_steps: int, config: Config) -> list[Rollout]:
    """The sequences to replay after a new rollout. Their number is drawn from a Poisson."""
    if config.replay_size == 0 or env_steps < config.learning_starts or not replay.ready:
        return []
    key = np.asarray(key)
    times = int(np.random.default_rng(key).poisson(config.replay_ratio))
    shape = (config.batch_size or replay.shape.num_envs,)
    return [replay.sample_sequences(numbered(key, number), shape) for number in range(times)]


def cycle(state: State, source: Source, config: Config) -> tuple[State, Metrics]:
    """Collect a rollout, and learn from it and from some that were collected before."""
    rollout = source.collect(policy(state), state.key)
    source.replay.require_fits(rollout)
    source.replay.add(rollout)
    steps = []
    for sequences in (rollout, *sample_replayed(source.replay, state.key, int(state.env_steps), config)):
        state, metrics = update(state, sequences, config)
        steps.append(check_finite_metrics(metrics))
    state = count(state, rollout, config.discount)
    metrics = {name: float(np.mean([step[name] for step in steps])) for name in steps[0]}
    return state, metrics | {"replay/updates": len(steps) - 1}


# One step of an actor-learner: dθ of a new rollout, or of the next replayed sequences.
worker_step = partial(replay_worker_step, gradients=gradients, sample_sequences=sample_replayed)


def apply_gradients(shared: SharedParameters, result: WorkerResult, config: Config) -> None:
    """Apply dθ to the shared θ by RMSProp, without a lock; then θ_a ← αθ_a + (1-α)θ."""
    shared_rmsprop(shared.weights, shared.mean_squares, result.gradients, result.learning_rate, config.gradient)
    shared.target_weights[:] = soft_update(shared.target_weights, shared.weights, 1.0 - config.average_decay)


def replay_share(config: Config, action_space: gym.Space) -> ReplayShare:
    """An equal part of the replay for each actor-learner; for replay_size 0, one rollout."""
    num_envs = config.env.num_envs
    size = config.replay_size // config.learners.actor_learners or config.rollout_length * num_envs
    behaviour = empty_behaviour(action_space, num_envs, config.actions.scale_actions)
    return ReplayShare(size, config.discount, config.frame_stack, behaviour)


def train(
    config: Config,
    envs: Envs | gym.vector.VectorEnv | None = None,
    state: State | SharedState | None = None,
    snapshot: Snapshot | None = None,
    make_network: MakeActorQ | None = None,
) -> Iterator[Update]:
    """Learn until `total_steps`; yield after each update. Continue from `state` and `snapshot`."""
    validate(config)
    if config.learners.pool != "none":
        require_own_envs(envs)
        if isinstance(state, State):
            raise ConfigError(
                f"the state is that of one learner; continue with pool none, not with pool {config.learners.pool}"
            )
        start = partial(init, config, make_network=make_network)
        learners = partial(train_actor_learners, config, __name__, start, worker_step, apply_gradients)
        yield from learners(state, snapshot, replay=partial(replay_share, config))
        return
    with open_rollouts(config, act, envs) as rollouts:
        state = init(config, *rollouts.spaces, make_network) if state is None else state
        if not isinstance(state, State):
            remedy = "continue with the pool that it was taken from, not with pool none"
            raise ConfigError(f"the state is that of actor-learners; {remedy}")
        behaviour = empty_behaviour(rollouts.spaces[1], rollouts.num_envs, config.actions.scale_actions)
        current = rollouts.start(state, snapshot, behaviour=behaviour)
        size = config.replay_size or config.rollout_length * rollouts.num_envs  # 0: one rollout, never replayed
        rollouts.add_replay(ReplayConfig(replay_size=size, frame_stack=config.frame_stack))
        while int(current.env_steps) < config.run.total_steps:
            current, metrics = rollouts.advance(cycle, current)
            yield rollouts.report(current, metrics)
