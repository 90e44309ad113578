"""Actor-critic with experience replay (Wang et al. 2017, arXiv 1611.01224).

Collect T steps of B environments and learn from them; then, Poisson(`replay_ratio`) times, from
sequences that were collected before. Q moves towards Retrace's targets; the policy, up a gradient
with importance weights truncated at c and the bias corrected by Q. In each state that gradient is
projected so that the policy leaves the average of past policies, in KL, by no more than δ to first
order.

One `update` for what is fresh and what is replayed: off-policy is only that the behaviour's
distributions are older. Discrete actions have a softmax policy and Q(s, ·) (algorithm 2), a Box a
Gaussian policy and a stochastic dueling network (algorithm 3).

Either one learner steps all environments together (`train_in_step`), or, as in the paper,
actor-learners with environments and a replay of their own write to shared parameters without locks
(`train_in_pool`): from the same gradients, one in each turn (`worker_step`).

Differs from the paper: gradients are means over sequences, not sums, and clipped by their norm; the
softmax's statistics are its logits, for they are finite where a probability is 0; the Gaussian's
deviation is learned, one for all states, and is among the statistics that the trust region holds;
the Q loss has a weight; where an episode is cut by a time limit, V goes on; the average network,
too, starts a sequence from the memory it was lived with.
"""

import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, NamedTuple

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import optax

from birl.accel.devices import prepare_jax, replicate_unplaced
from birl.asynchronous.actor_learner import (
    ActorLearner,
    Result,
    SharedParameters,
    Weights,
    Work,
    open_pool,
    require_own_envs,
    validate_pool,
)
from birl.asynchronous.flat import ParameterLayout
from birl.asynchronous.parameters import State as SharedState
from birl.asynchronous.parameters import initial_state, make_work, shared_parameters_of, state_of
from birl.asynchronous.replay_cycle import Cycle, ReplayShare
from birl.config import (
    ConfigError,
    EnvConfig,
    RunConfig,
    check_fields,
    require,
    require_at_least_one,
    require_config,
    require_fractions,
    require_positive,
)
from birl.envs.make import open_envs, spaces_of, validate_fields
from birl.maths import losses, truncated
from birl.maths.count import Count, count_of, next_turn
from birl.maths.distributions import Categorical
from birl.maths.keys import stream
from birl.maths.returns import retrace
from birl.maths.schedules import Schedule, value_at
from birl.maths.statistics import explained_variance
from birl.maths.trust_region import dot, project
from birl.nets.acting import Evaluation, act, evaluate_rollout, without_last
from birl.nets.actor_q import ActorQLike, DuelingActorLike, MakeActorQ, empty_behaviour, make_actor_q
from birl.nets.encoders import EncoderName
from birl.nets.layers import Activation
from birl.nets.models import Distribution, largest_product, validate_network
from birl.nets.normalize import Normalizer, initial_normalizer, update_normalizer, merge_moments, reward_scale
from birl.nets.optimizers import (
    OptimizerName,
    RMSPropName,
    clip_by_norm,
    flatten_tree,
    gradient_step,
    initial_optimizer_state,
    make_optimizer,
    require_not_negative,
    shared_rmsprop,
    soft_update,
)
from birl.nets.recurrent import CoreName
from birl.rollouts.collector import Collector, finite_metrics, learnable
from birl.rollouts.replay import Replay
from birl.types import Array, Envs, Metrics, PyTree, Rollout, Snapshot, Update


@dataclass(frozen=True)
class Config:
    """ACER's settings; the defaults are OpenAI Baselines', but for when the replay starts and the
    form of RMSProp.
    """

    env: EnvConfig = field(default_factory=EnvConfig)
    run: RunConfig = field(default_factory=RunConfig)
    pool: Literal["none", "serial", "processes", "ray"] = (
        "none"  # none: one learner; else where actor-learners run, each with `env`
    )
    actor_learners: int = 4  # how many of them; with processes, as many as there are cores
    report_every: int = 1000  # environment steps of all together between what they log
    rollout_length: int = 20  # T: steps of each environment between updates, and of the sequences replayed
    discount: float = 0.99  # γ
    entropy_weight: float | Schedule = 0.01
    value_weight: float = 0.5
    importance_truncation: float = 10.0  # c: the largest importance weight; what is cut off comes back by Q
    trust_region: float | None = 1.0  # δ: how far an update may lead from the average policy; None: as far as it likes
    average_decay: float = 0.99  # α of the average policy network, for each gradient step
    advantage_samples: int = 5  # actions whose mean advantage is 0 in a Box's stochastic dueling network
    replay_size: int = 50_000  # transitions kept, by all actor-learners together; 0: nothing is replayed
    replay_ratio: float = 4.0  # replayed updates for each fresh one, in the mean: their number is Poisson's
    learning_starts: int = 1000  # environment steps before the first replayed update
    batch_size: int | None = None  # sequences in a replayed update; None: as many as environments
    frame_stack: int = 1  # observations are stacks of so many frames, newest last: each frame is kept once
    learning_rate: float | Schedule = 7e-4
    max_grad_norm: float | None = 10.0
    optimizer: OptimizerName = (
        "rmsprop"  # with ε outside the square root, as PyTorch has it; rmsprop-tf: inside, and g from 1
    )
    optimizer_epsilon: float = 1e-5  # ε
    rmsprop_decay: float = 0.99  # of the mean of squared gradients, with rmsprop and rmsprop-tf
    normalize_observations: bool = False
    normalize_rewards: bool = False
    clip_rewards: bool = False  # learn from the signs of rewards (Mnih et al. 2015); returns are reported as they are
    encoder: EncoderName = "mlp"
    hidden_sizes: tuple[int, ...] = (64, 64)
    activation: Activation = "tanh"
    core: CoreName = "feedforward"
    core_size: int = 64
    share_trunk: bool = False  # one encoder and core for policy and values
    log_std: float = 0.0  # of a continuous policy, to begin with

    def __post_init__(self) -> None:
        check_fields(self)


class State(NamedTuple):
    """Everything that changes while one learner learns, but for the replay; what actor-learners
    share is a SharedState.
    """

    network: ActorQLike | DuelingActorLike
    average: ActorQLike | DuelingActorLike  # of past networks; its policy is the centre of the trust region
    optimizer: PyTree
    normalizer: Normalizer
    key: Array
    env_steps: Count
    updates: Count
    gradient_steps: Array  # see next_turn


class CriticTargets(NamedTuple):
    """What the critic says of a rollout."""

    objective: Callable[[Distribution], Array]  # [T, B] of a policy; its gradient is the policy gradient
    action_values: Array  # [T, B] Q(s, a) of the actions taken
    targets: Array  # [T, B] for them
    value_loss: Array


def validate(config: Config) -> None:
    """Raise ConfigError if these settings cannot work."""
    validate_settings(config, Config)
; 0.99 is usual")
    if config.pool != "none":
        validate_actor_learners(config)


def validate_actor_learners(config: Config) -> None:
    """Raise ConfigError if actor-learners cannot work with these settings."""
    validate_actor_learners(config)
    remedy = "actor-learners share the statistics of RMSProp; use optimizer rmsprop or rmsprop-tf, or pool none"
    wrong = f"optimizer {config.optimizer!r} does not go with pool {config.pool!r}"
    require(config.optimizer in typing.get_args(RMSPropName), f"{wrong}: {remedy}")
    share, rollout = config.replay_size // config.actor_learners, config.rollout_length * config.env.num_envs
    each = f"{share} each, less than a rollout: {config.rollout_length} steps of {config.env.num_envs} environments"
    remedy = f"use at least {rollout * config.actor_learners}, or 0"
    shared_out = f"replay_size {config.replay_size} leaves {config.actor_learners} actor-learners {each}; {remedy}"
    require(config.replay_size == 0 or share >= rollout, shared_out)


def init(
    config: Config, observation_space: gym.Space, action_space: gym.Space, make_network: MakeActorQ | None = None
) -> State | SharedState:
    """A fresh State for these spaces, the same for the same seed; of actor-learners, what they
    share.
    """
    require_config(config, Config)
    prepare_jax(largest_product(config, config.rollout_length * max(config.env.num_envs, config.batch_size or 1)))
    rng = np.random.default_rng(config.run.seed)
    make = make_network or partial(make_actor_q, settings=config)
    network = make(rng, observation_space, action_space)
    if config.pool != "none":
        return initial_state(config, observation_space, network, network, rng)
    return State(
        network=network,
        average=network,
        optimizer=initial_optimizer_state(optimizer_of(config), network),
        normalizer=initial_normalizer(
            observation_space, config.env.num_envs, config.normalize_observations, config.normalize_rewards
        ),
        key=rng.integers(2**32, size=2, dtype=np.uint32),
        env_steps=count_of(0),
        updates=count_of(0),
        gradient_steps=np.int32(0),
    )


def policy(state: State | SharedState) -> PyTree:
    """The part of the state that acts: what is evaluated, exported and played."""
    seen = state.normalizer.observations
    return state.network, merge_moments(seen) if isinstance(state, SharedState) else seen


def optimizer_of(config: Config) -> optax.GradientTransformation:
    """RMSProp or Adam with these settings."""
    return make_optimizer(config.optimizer, config.optimizer_epsilon, config.rmsprop_decay)


def critic_targets_discrete(
    policy: Categorical, evaluation: Evaluation, rollout: Rollout, config: Config
) -> CriticTargets:
    """Q(s, ·), V = Σ π Q and Retrace's targets (algorithm 2)."""
    values = jnp.sum(jax.nn.softmax(policy.logits) * evaluation.values, axis=-1)  # [T+1, B]
    all_action_values, log_ratios = evaluation.values[:-1], _log_ratios(without_last(policy), rollout)
    action_values = jnp.take_along_axis(all_action_values, rollout.actions[..., None], axis=-1)[..., 0]
    ends = rollout.terminated, rollout.truncated, rollout.valid
    targets = retrace(rollout.rewards, action_values, values[1:], *ends, log_ratios, config.discount)
    objective = partial(
        truncated.softmax_objective,
        behaviour=rollout.behaviour,
        actions=rollout.actions,
        targets=targets,
        action_values=all_action_values,
        values=values[:-1],
        truncation=config.importance_truncation,
    )
    return CriticTargets(objective, action_values, targets, losses.value_loss(action_values, targets, rollout.valid))


def critic_targets_continuous(
    network: DuelingActorLike, evaluation: Evaluation, rollout: Rollout, key: Array, config: Config
) -> CriticTargets:
    """Q of the stochastic dueling network, Retrace's targets with traces min(1, ρ^(1/d)), and for
    the policy uncut ones (algorithm 3).
    """
    features, distribution = evaluation.values, jax.lax.stop_gradient(without_last(evaluation.distributions))
    sampled_actions = jax.vmap(distribution.sample)(jax.random.split(key, config.advantage_samples + 1))
    new_actions, sampled_actions = sampled_actions[0], sampled_actions[1:]
    values = network.values(features)  # [T+1, B]
    advantages_of = partial(network.advantages, features[:-1])
    dueling_values = partial(
        truncated.dueling_values, values[:-1], sampled_advantages=jax.vmap(advantages_of)(sampled_actions)
    )
    action_values, new_action_values = (
        dueling_values(advantages_of(rollout.actions)),
        dueling_values(advantages_of(new_actions)),
    )

    log_ratios = _log_ratios(distribution, rollout)
    ends = rollout.terminated, rollout.truncated, rollout.valid
    constant_values, constant_action_values = jax.lax.stop_gradient((values, action_values))
    targets_with = partial(
        retrace, rollout.rewards, constant_action_values, constant_values[1:], *ends, discount=config.discount
    )
    targets = targets_with(log_ratios / rollout.actions.shape[-1])
    value_targets = constant_values[:-1] + truncated.truncated_weights(log_ratios, 1.0) * (
        targets - constant_action_values
    )  # eq. 14
    objective = partial(
        truncated.gaussian_objective,
        behaviour=rollout.behaviour,
        actions=rollout.actions,
        targets=targets_with(jnp.zeros_like(log_ratios)),
        new_actions=new_actions,
        new_action_values=new_action_values,
        values=values[:-1],
        truncation=config.importance_truncation,
    )
    value_loss = losses.value_loss(action_values, targets, rollout.valid) + losses.value_loss(
        values[:-1], value_targets, rollout.valid
    )
    return CriticTargets(objective, action_values, targets, value_loss)


def loss(
    network: ActorQLike | DuelingActorLike,
    average: ActorQLike | DuelingActorLike,
    normalizer: Normalizer,
    rollout: Rollout,
    key: Array,
    entropy_weight: Array,
    config: Config,
) -> tuple[Array, Metrics]:
    """A scalar whose gradient is the projected policy gradient's, the Q loss's and the entropy
    bonus's, over the valid steps.
    """
    moments, valid = normalizer.observations, rollout.valid
    rollout = rollout._replace(rewards=rollout.rewards * reward_scale(normalizer))
    evaluation = evaluate_rollout((network, moments), rollout)
    distribution = without_last(evaluation.distributions)
    average_distribution = jax.lax.stop_gradient(
        without_last(evaluate_rollout((average, moments), rollout).distributions)
    )
    if isinstance(evaluation.distributions, Categorical):
        critic_targets = critic_targets_discrete(evaluation.distributions, evaluation, rollout, config)
    else:
        critic_targets = critic_targets_continuous(network, evaluation, rollout, key, config)  # type: ignore[arg-type]

    statistics = jax.lax.stop_gradient(distribution)
    objectives, policy_gradients = _with_gradients(critic_targets.objective, statistics)
    kls, kl_gradients = _with_gradients(average_distribution.kl, statistics)
    limit = jnp.inf if config.trust_region is None else config.trust_region
    steps = jax.lax.stop_gradient(project(policy_gradients, kl_gradients, limit))
    # The gradient of statistics · constant is the constant, which the chain rule then takes through
    # the network.
    ascent = losses.masked_mean(dot(distribution, steps), valid)
    entropy = losses.masked_mean(distribution.entropy(), valid)
    projected = dot(kl_gradients, policy_gradients) > limit
    ratios = jnp.exp(_log_ratios(statistics, rollout))
    return config.value_weight * critic_targets.value_loss - ascent - entropy_weight * entropy, {
        "loss/policy": -losses.masked_mean(objectives, valid),
        "loss/value": critic_targets.value_loss,
        "policy/entropy": entropy,
        "policy/average_kl": losses.masked_mean(kls, valid),
        "policy/truncated_share": losses.masked_mean(
            (ratios > config.importance_truncation).astype(jnp.float32), valid
        ),
        "trust_region/projected_share": losses.masked_mean(projected.astype(jnp.float32), valid),
        "value/explained_variance": explained_variance(critic_targets.action_values, critic_targets.targets, valid),
    }


def _with_gradients(function: Callable[[Distribution], Array], statistics: Distribution) -> tuple[Array, Distribution]:
    """[T, B] values of a function of each state's statistics, and its gradients there, in their
    shape.
    """
    values, pull_back = jax.vjp(function, statistics)
    return values, pull_back(jnp.ones_like(values))[0]


def gradients(
    network: ActorQLike | DuelingActorLike,
    average: ActorQLike | DuelingActorLike,
    normalizer: Normalizer,
    rollout: Rollout,
    key: Array,
    entropy_weight: Array,
    config: Config,
) -> tuple[PyTree, Metrics]:
    """The loss's gradients with respect to the network, and what was seen on the way; no matter who
    takes the step, and where.
    """
    (_, metrics), found = jax.value_and_grad(loss, has_aux=True)(
        network, average, normalizer, rollout, key, entropy_weight, config
    )
    return found, metrics


def scheduled(env_steps: Count, config: Config) -> tuple[Array, Array]:
    """Learning rate and entropy weight after so many steps."""
    progress = env_steps / config.run.total_steps
    return value_at(config.learning_rate, progress), value_at(config.entropy_weight, progress)


def sampling_key(key: Array, gradient_steps: Array) -> Array:
    """The key by which a gradient step samples actions, another for each."""
    return jax.random.fold_in(stream(key, "learning"), gradient_steps)


@partial(jax.jit, static_argnames="config")  # no donation: a user may keep update.state
def update(state: State, rollout: Rollout, config: Config) -> tuple[State, Metrics]:
    """The state after one gradient step on a rollout, fresh or replayed, and what happened."""
    learning_rate, entropy_weight = scheduled(state.env_steps, config)
    key = sampling_key(state.key, state.gradient_steps)
    found, metrics = gradients(state.network, state.average, state.normalizer, rollout, key, entropy_weight, config)
    network, optimizer, norm = gradient_step(
        optimizer_of(config), state.network, state.optimizer, found, learning_rate, config.max_grad_norm, rollout.valid
    )
    state = state._replace(
        network=network,
        average=soft_update(state.average, network, 1.0 - config.average_decay),
        optimizer=optimizer,
        gradient_steps=next_turn(state.gradient_steps),
    )
    return state, metrics | {"optimizer/grad_norm": norm, "optimizer/learning_rate": learning_rate}


@partial(jax.jit, static_argnames="config")
def count(state: State, rollout: Rollout, config: Config) -> State:
    """The state once a rollout has been learned from: steps counted, moments of what was seen, a
    new key.
    """
    return state._replace(
        normalizer=update_normalizer(state.normalizer, rollout, config.discount),
        key=stream(state.key, "next"),
        env_steps=state.env_steps + rollout.valid.sum(dtype=jnp.int32),
        updates=state.updates + 1,
    )


def replayed(replay: Replay, key: Array, env_steps: int, config: Config) -> list[Rollout]:
    """The sequences of a cycle's replayed updates; how many, and which, by this key."""
    if config.replay_size == 0 or env_steps < config.learning_starts or not replay.ready:
        return []
    rng = np.random.default_rng(np.asarray(key))
    times = int(rng.poisson(config.replay_ratio))
    sequences = replay.draw_sequences(rng, (times, config.batch_size or replay.num_envs))  # [times, T, N, ...]
    return [jax.tree.map(lambda x, i=i: x[i], sequences) for i in range(times)]


def train_in_step(
    config: Config,
    envs: Envs | gym.vector.VectorEnv | None,
    state: State | SharedState | None,
    snapshot: Snapshot | None,
    make_network: MakeActorQ | None,
) -> Iterator[Update]:
    """One learner and its environments, which step together; yields after each fresh rollout."""
    with open_envs(config.env, config.run.seed, envs) as envs:
        state = replicate_unplaced(
            init(config, envs.observation_space, envs.action_space, make_network) if state is None else state
        )
        if not isinstance(state, State):
            raise ConfigError(
                "the state is that of actor-learners; go on with the pool that it was taken from, not with pool none"
            )
        behaviour = empty_behaviour(envs.action_space, envs.num_envs)
        collect = Collector(
            envs, act, config.rollout_length, state.network.initial_memory(envs.num_envs), behaviour=behaviour
        )
        collect.start(config.run.seed, snapshot)
        size = (
            config.replay_size or config.rollout_length * envs.num_envs
        )  # with 0, one rollout is kept and not replayed
        replay = Replay(size, collect.empty_rollout(), config.discount, frame_stack=config.frame_stack)
        if snapshot is not None:
            replay.restore(snapshot, envs.fresh)
        while int(state.env_steps) < config.run.total_steps:
            rollout = learnable(collect(policy(state), state.key), config.clip_rewards)
            replay.add(rollout)
            with collect.timed("learning"):
                found = []
                for sequences in (rollout, *replayed(replay, state.key, int(state.env_steps), config)):
                    state, metrics = update(state, sequences, config)
                    found.append(finite_metrics(metrics))
                state = count(state, rollout, config)
            metrics = {name: float(np.mean([step[name] for step in found])) for name in found[0]}
            metrics |= {"replay/updates": len(found) - 1, "replay/steps": len(replay), "replay/bytes": replay.bytes}
            yield Update(state, metrics | collect.metrics(), lambda: replay.snapshot(collect.snapshot()))


# Actor-learners


@partial(jax.jit, static_argnames=("layouts", "config"))
def shared_gradients(
    weights: Weights, key: Array, rollout: Rollout, layouts: tuple[ParameterLayout, ParameterLayout], config: Config
) -> tuple[Array, Metrics]:
    """[P] dθ of a rollout, fresh or replayed, clipped by its norm; and what happened."""
    network, average, rows = (
        layouts[0].tree(weights.network),
        layouts[0].tree(weights.target_weights),
        layouts[1].tree(weights.normalizers),
    )
    normalizer = Normalizer(merge_moments(rows.observations), merge_moments(rows.returns), None)
    learning_rate, entropy_weight = scheduled(weights.env_steps, config)
    key = sampling_key(key, weights.gradient_steps)
    found, metrics = gradients(network, average, normalizer, rollout, key, entropy_weight, config)
    found, norm = clip_by_norm(found, config.max_grad_norm)
    return flatten_tree(found), metrics | {"optimizer/grad_norm": norm, "optimizer/learning_rate": learning_rate}


@partial(jax.jit, static_argnames=("layout", "config"))
def counted(own: Array, key: Array, rollout: Rollout, layout: ParameterLayout, config: Config) -> tuple[Array, Array]:
    """[M] what an actor-learner has seen once a rollout is, and a new key."""
    return flatten_tree(update_normalizer(layout.tree(own), rollout, config.discount)), stream(key, "next")


def begin_cycle(cycle: Cycle, weights: Weights, learner: ActorLearner, work: Work) -> None:
    """Act with the shared policy, and draw what is to be replayed after that rollout (algorithm
    1).
    """
    network, normalizers = work.network.tree(weights.network), work.normalizer.tree(weights.normalizers)
    rollout = learnable(
        learner.collect((network, merge_moments(normalizers.observations)), learner.key), work.config.clip_rewards
    )
    with learner.collect.timed("learning"):
        cycle.replay.add(rollout)
        sequences = replayed(cycle.replay, learner.key, int(weights.env_steps), work.config)
        seen, key = counted(weights.normalizers[learner.number], learner.key, rollout, work.normalizer, work.config)
        cycle.begin(rollout, sequences, seen, key)


def worker_step(weights: Weights, learner: ActorLearner, work: Work) -> Result:
    """One turn of an actor-learner: dθ of a fresh rollout, or of the next of the sequences replayed
    after it; θ' ← θ before each.
    """
    cycle, collect = learner.cycle, learner.collect
    assert cycle is not None  # `train_in_pool` gives it a replay
    if not cycle.left:
        begin_cycle(cycle, weights, learner, work)
    with collect.timed("learning"):
        found, metrics = shared_gradients(
            weights, learner.key, cycle.left.pop(0), (work.network, work.normalizer), work.config
        )
        metrics = finite_metrics(metrics)
    replay = {"replay/updates": cycle.updates, "replay/steps": len(cycle.replay), "replay/bytes": cycle.replay.bytes}
    # What the rollout has shown and counts is written down with the cycle's last turn, as `count`
    # does it.
    env_steps, seen, key = cycle.env_steps, cycle.normalizer, cycle.key
    if cycle.left:
        env_steps, seen, key = 0, weights.normalizers[learner.number], learner.key
    return Result(
        np.asarray(found),
        metrics["optimizer/learning_rate"],
        env_steps,
        seen,
        key,
        metrics | replay | collect.metrics(),
    )


def update_shared(shared: SharedParameters, result: Result, config: Config) -> None:
    """Asynchronous update of θ using dθ, by RMSProp with shared statistics, and θ_a ← αθ_a +
    (1-α)θ; in place, without a lock.
    """
    shared_rmsprop(shared.weights, shared.mean_squares, result.gradients, result.learning_rate, config)
    shared.target_weights[:] = soft_update(shared.target_weights, shared.weights, 1.0 - config.average_decay)


def train_in_pool(
    config: Config, state: State | SharedState | None, snapshot: Snapshot | None, make_network: MakeActorQ | None
) -> Iterator[Update]:
    """Actor-learners with environments and replays of their own; yields every `report_every`
    steps.
    """
    observation_space, action_space = spaces_of(config.env)
    state = init(config, observation_space, action_space, make_network) if state is None else state
    if not isinstance(state, SharedState):
        raise ConfigError(f"the state is that of one learner; go on with pool none, not with pool {config.pool}")
    size = (
        config.replay_size // config.actor_learners or config.rollout_length * config.env.num_envs
    )  # with 0, as in `train_in_step`
    share = ReplayShare(size, config.discount, config.frame_stack, empty_behaviour(action_space, config.env.num_envs))
    work = make_work(config, __name__, worker_step, update_shared, state, replay=share)
    with open_pool(work, shared_parameters_of(state, work), snapshot) as pool:
        while int(state.env_steps) < config.run.total_steps:
            shared = pool.run(min(int(state.env_steps) + config.report_every, config.run.total_steps))
            state = state_of(shared, work, int(state.updates) + 1)
            yield Update(state, pool.metrics(), pool.snapshot)


# Both


def train(
    config: Config,
    envs: Envs | gym.vector.VectorEnv | None = None,
    state: State | SharedState | None = None,
    snapshot: Snapshot | None = None,
    make_network: MakeActorQ | None = None,
) -> Iterator[Update]:
    """Learn until `total_steps`, by one learner or by several; from `state` and `snapshot`, go on
    where they were taken.
    """
    validate(config)
    if config.pool == "none":
        yield from train_in_step(config, envs, state, snapshot, make_network)
    else:
        require_own_envs(envs)
        yield from train_in_pool(config, state, snapshot, make_network)


def _log_ratios(policy: Distribution, rollout: Rollout) -> Array:
    """[T, B] log π(a|s) - log μ(a|s) of the actions that were taken."""
    return policy.log_prob(rollout.actions) - rollout.behaviour.log_prob(rollout.actions)
