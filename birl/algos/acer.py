"""Actor-critic with experience replay (Wang et al. 2017, arXiv 1611.01224).

Collect T steps of B environments and learn from them; then, Poisson(`replay_ratio`) times, from sequences that were collected before.
Q moves towards Retrace's targets; the policy, up a gradient with importance weights truncated at c and the bias corrected by Q. In each
state that gradient is projected so that the policy leaves the average of past policies, in KL, by no more than δ to first order.

One `update` for what is fresh and what is replayed: off-policy is only that the behaviour's distributions are older. Discrete actions have
a softmax policy and Q(s, ·) (algorithm 2), a Box a Gaussian policy and a stochastic dueling network (algorithm 3).

Differs from the paper: environments step together and one learner takes the mean over sequences, where it has asynchronous workers (and
sums); the softmax's statistics are its logits, for they are finite where a probability is 0; the Gaussian's deviation is learned, one for
all states, and is among the statistics that the trust region holds; the Q loss has a weight, and gradients are clipped by their norm;
where an episode is cut by a time limit, V goes on; the average network, too, starts a sequence from the memory it was lived with.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import optax

from birl.config import EnvConfig, RunConfig, require, require_at_least_one, require_fractions, require_positive
from birl.data.collect import Collector, finite_metrics
from birl.data.replay import Replay
from birl.device import prepare_jax
from birl.envs.make import open_envs, validate_fields
from birl.maths import losses, truncated
from birl.maths.distributions import Categorical
from birl.maths.returns import retrace
from birl.maths.schedules import Schedule, value_at
from birl.maths.statistics import explained_variance
from birl.maths.trust_region import dot, project
from birl.nets.acting import Evaluation, but_last, evaluate_rollout
from birl.nets.actor_q import ActorQLike, DuelingActorLike, MakeActorQ, empty_behaviour, make_actor_q
from birl.nets.cores import CoreName
from birl.nets.encoders import EncoderName
from birl.nets.layers import Activation
from birl.nets.models import Distribution, largest_product, validate_network
from birl.nets.normalize import Normalizer, initial_normalizer, learn_rollout, normalize_observations, reward_scale
from birl.nets.optimizers import (
    OptimizerName,
    gradient_step,
    initial_optimizer_state,
    make_optimizer,
    moved_towards,
    require_not_negative,
)
from birl.types import Action, Array, Envs, Metrics, PyTree, Rollout, Update, World


@dataclass(frozen=True)
class Config:
    """ACER's settings; the defaults are OpenAI Baselines', but for when the replay starts."""

    env: EnvConfig = field(default_factory=EnvConfig)
    run: RunConfig = field(default_factory=RunConfig)
    rollout_length: int = 20  # T: steps of each environment between updates, and of the sequences replayed
    discount: float = 0.99  # γ
    entropy_weight: float | Schedule = 0.01
    value_weight: float = 0.5
    importance_truncation: float = 10.0  # c: the largest importance weight; what is cut off comes back by Q
    trust_region: float | None = 1.0  # δ: how far an update may lead from the average policy; None: as far as it likes
    average_decay: float = 0.99  # α of the average policy network, for each gradient step
    advantage_samples: int = 5  # actions whose mean advantage is 0 in a Box's stochastic dueling network
    replay_size: int = 50_000  # transitions kept; 0: nothing is replayed
    replay_ratio: float = 4.0  # replayed updates for each fresh one, in the mean: their number is Poisson's
    learning_starts: int = 1000  # environment steps before the first replayed update
    batch_size: int | None = None  # sequences in a replayed update; None: as many as environments
    frame_stack: int = 1  # observations are stacks of so many frames, newest last: each frame is kept once
    learning_rate: float | Schedule = 7e-4
    max_grad_norm: float | None = 10.0
    optimizer: OptimizerName = "rmsprop"
    optimizer_epsilon: float = 1e-5  # ε: inside the square root in rmsprop, outside in adam
    rmsprop_decay: float = 0.99  # of the mean of squared gradients, with optimizer "rmsprop"
    normalize_observations: bool = False
    normalize_rewards: bool = False
    encoder: EncoderName = "mlp"
    hidden_sizes: tuple[int, ...] = (64, 64)
    activation: Activation = "tanh"
    core: CoreName = "feedforward"
    core_size: int = 64
    share_trunk: bool = False  # one encoder and core for policy and values
    log_std: float = 0.0  # of a continuous policy, to begin with


class State(NamedTuple):
    """Everything that changes while ACER learns, but for the replay."""

    network: ActorQLike | DuelingActorLike
    average: ActorQLike | DuelingActorLike  # of past networks; its policy is the centre of the trust region
    optimizer: PyTree
    normalizer: Normalizer
    key: Array
    env_steps: Array
    updates: Array
    gradient_steps: Array


class Judgement(NamedTuple):
    """What the critic says of a rollout."""

    objective: Callable[[Distribution], Array]  # [T, B] of a policy; its gradient is the policy gradient
    action_values: Array  # [T, B] Q(s, a) of the actions taken
    targets: Array  # [T, B] for them
    value_loss: Array


def validate(config: Config) -> None:
    """Raise ConfigError if these settings cannot work."""
    validate_fields(config.env)
    validate_network(config)
    require_at_least_one(config, "rollout_length", "advantage_samples", "frame_stack")
    require_fractions(config, "discount", "average_decay")
    require_positive(config, "max_grad_norm", "optimizer_epsilon", "importance_truncation", "trust_region", "batch_size")
    require(0 <= config.rmsprop_decay < 1, f"rmsprop_decay {config.rmsprop_decay} must lie in [0, 1); 0.99 is usual")
    require_not_negative(config, "learning_rate", "replay_ratio", "learning_starts", "replay_size")


def init(config: Config, observation_space: gym.Space, action_space: gym.Space, make_network: MakeActorQ | None = None) -> State:
    """A fresh State for these spaces, the same for the same seed."""
    rng = np.random.default_rng(config.run.seed)
    make = make_network or partial(make_actor_q, settings=config)
    network = make(rng, observation_space, action_space)
    return State(
        network=network,
        average=network,
        optimizer=initial_optimizer_state(optimizer_of(config), network),
        normalizer=initial_normalizer(observation_space, config.env.num_envs, config.normalize_observations, config.normalize_rewards),
        key=rng.integers(2**32, size=2, dtype=np.uint32),
        env_steps=np.int32(0),
        updates=np.int32(0),
        gradient_steps=np.int32(0),
    )


def policy(state: State) -> PyTree:
    """The part of the state that acts: what is evaluated, exported and played."""
    return state.network, state.normalizer.observations


def optimizer_of(config: Config) -> optax.GradientTransformation:
    """RMSProp or Adam with these settings."""
    return make_optimizer(config.optimizer, config.optimizer_epsilon, config.rmsprop_decay)


@jax.jit
def act(policy: PyTree, observations: PyTree, memory: PyTree, resets: Array, action_masks: Array | None, key: Array | None) -> Action:
    """Actions for B observations, sampled, or the most likely ones if there is no key; and the distributions, for the replay."""
    network, moments = policy
    one_step = partial(jax.tree.map, lambda x: x[None])
    observations = normalize_observations(moments, observations)
    distribution, _, memory = network(one_step(observations), memory, resets[None], one_step(action_masks))
    distribution = jax.tree.map(lambda x: x[0], distribution)
    actions = distribution.mode() if key is None else distribution.sample(key)
    return Action(actions, distribution.log_prob(actions), memory, distribution)


def judge_discrete(policy: Categorical, evaluation: Evaluation, rollout: Rollout, config: Config) -> Judgement:
    """Q(s, ·), V = Σ π Q and Retrace's targets (algorithm 2)."""
    values = jnp.sum(jax.nn.softmax(policy.logits) * evaluation.values, axis=-1)  # [T+1, B]
    all_action_values, log_ratios = evaluation.values[:-1], but_last(policy).log_prob(rollout.actions) - rollout.log_probs
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
    return Judgement(objective, action_values, targets, losses.value_loss(action_values, targets, rollout.valid))


def judge_continuous(network: DuelingActorLike, evaluation: Evaluation, rollout: Rollout, key: Array, config: Config) -> Judgement:
    """Q of the stochastic dueling network, Retrace's targets with traces min(1, ρ^(1/d)), and for the policy uncut ones (algorithm 3)."""
    features, distribution = evaluation.values, jax.lax.stop_gradient(but_last(evaluation.distributions))
    sampled_actions = jax.vmap(distribution.sample)(jax.random.split(key, config.advantage_samples + 1))
    new_actions, sampled_actions = sampled_actions[0], sampled_actions[1:]
    values = network.values(features)  # [T+1, B]
    advantages_of = partial(network.advantages, features[:-1])
    dueling_values = partial(truncated.dueling_values, values[:-1], sampled_advantages=jax.vmap(advantages_of)(sampled_actions))
    action_values, new_action_values = dueling_values(advantages_of(rollout.actions)), dueling_values(advantages_of(new_actions))

    log_ratios = distribution.log_prob(rollout.actions) - rollout.log_probs
    ends = rollout.terminated, rollout.truncated, rollout.valid
    constant_values, constant_action_values = jax.lax.stop_gradient((values, action_values))
    targets_with = partial(retrace, rollout.rewards, constant_action_values, constant_values[1:], *ends, discount=config.discount)
    targets = targets_with(log_ratios / rollout.actions.shape[-1])
    value_targets = constant_values[:-1] + truncated.truncated_weights(log_ratios, 1.0) * (targets - constant_action_values)  # eq. 14
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
    value_loss = losses.value_loss(action_values, targets, rollout.valid) + losses.value_loss(values[:-1], value_targets, rollout.valid)
    return Judgement(objective, action_values, targets, value_loss)


def loss(
    network: ActorQLike | DuelingActorLike,
    average: ActorQLike | DuelingActorLike,
    normalizer: Normalizer,
    rollout: Rollout,
    key: Array,
    entropy_weight: Array,
    config: Config,
) -> tuple[Array, Metrics]:
    """A scalar whose gradient is the projected policy gradient's, the Q loss's and the entropy bonus's, over the valid steps."""
    moments, valid = normalizer.observations, rollout.valid
    rollout = rollout._replace(rewards=rollout.rewards * reward_scale(normalizer))
    evaluation = evaluate_rollout((network, moments), rollout)
    distribution = but_last(evaluation.distributions)
    average_distribution = jax.lax.stop_gradient(but_last(evaluate_rollout((average, moments), rollout).distributions))
    if isinstance(evaluation.distributions, Categorical):
        judgement = judge_discrete(evaluation.distributions, evaluation, rollout, config)
    else:
        judgement = judge_continuous(network, evaluation, rollout, key, config)  # type: ignore[arg-type]

    statistics = jax.lax.stop_gradient(distribution)
    objectives, policy_gradients = _with_gradients(judgement.objective, statistics)
    kls, kl_gradients = _with_gradients(average_distribution.kl, statistics)
    limit = jnp.inf if config.trust_region is None else config.trust_region
    steps = jax.lax.stop_gradient(project(policy_gradients, kl_gradients, limit))
    # The gradient of statistics · constant is the constant, which the chain rule then takes through the network.
    ascent = losses.masked_mean(dot(distribution, steps), valid)
    entropy = losses.masked_mean(distribution.entropy(), valid)
    projected = dot(kl_gradients, policy_gradients) > limit
    ratios = jnp.exp(statistics.log_prob(rollout.actions) - rollout.log_probs)
    return config.value_weight * judgement.value_loss - ascent - entropy_weight * entropy, {
        "loss/policy": -losses.masked_mean(objectives, valid),
        "loss/value": judgement.value_loss,
        "policy/entropy": entropy,
        "policy/average_kl": losses.masked_mean(kls, valid),
        "policy/truncated_share": losses.masked_mean((ratios > config.importance_truncation).astype(jnp.float32), valid),
        "trust_region/projected_share": losses.masked_mean(projected.astype(jnp.float32), valid),
        "value/explained_variance": explained_variance(judgement.action_values, judgement.targets, valid),
    }


def _with_gradients(function: Callable[[Distribution], Array], statistics: Distribution) -> tuple[Array, Distribution]:
    """[T, B] values of a function of each state's statistics, and its gradients there, in their shape."""
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
    """The loss's gradients with respect to the network, and what was seen on the way; no matter who takes the step, and where."""
    (_, metrics), found = jax.value_and_grad(loss, has_aux=True)(network, average, normalizer, rollout, key, entropy_weight, config)
    return found, metrics


@partial(jax.jit, static_argnames="config")  # no donation: a user may keep update.state
def update(state: State, rollout: Rollout, config: Config) -> tuple[State, Metrics]:
    """The state after one gradient step on a rollout, fresh or replayed, and what happened."""
    progress = state.env_steps / config.run.total_steps
    learning_rate, entropy_weight = value_at(config.learning_rate, progress), value_at(config.entropy_weight, progress)
    key = jax.random.fold_in(jax.random.split(state.key)[1], state.gradient_steps)
    found, metrics = gradients(state.network, state.average, state.normalizer, rollout, key, entropy_weight, config)
    network, optimizer, norm = gradient_step(
        optimizer_of(config), state.network, state.optimizer, found, learning_rate, config.max_grad_norm
    )
    state = state._replace(
        network=network,
        average=moved_towards(state.average, network, 1.0 - config.average_decay),
        optimizer=optimizer,
        gradient_steps=state.gradient_steps + 1,
    )
    return state, metrics | {"optimizer/grad_norm": norm, "optimizer/learning_rate": learning_rate}


@partial(jax.jit, static_argnames="config")
def count(state: State, rollout: Rollout, config: Config) -> State:
    """The state once a rollout has been learned from: steps counted, moments of what was seen, a new key."""
    return state._replace(
        normalizer=learn_rollout(state.normalizer, rollout, config.discount),
        key=jax.random.split(state.key)[0],
        env_steps=state.env_steps + rollout.valid.sum(dtype=jnp.int32),
        updates=state.updates + 1,
    )


def replayed(replay: Replay, state: State, config: Config) -> list[Rollout]:
    """The sequences of a cycle's replayed updates; how many, and which, by the state's key."""
    if config.replay_size == 0 or int(state.env_steps) < config.learning_starts or not replay.ready:
        return []
    rng = np.random.default_rng(np.asarray(state.key))
    times = int(rng.poisson(config.replay_ratio))
    sequences = replay.draw_sequences(rng, (times, config.batch_size or replay.num_envs))  # [times, T, N, ...]
    return [jax.tree.map(lambda x, i=i: x[i], sequences) for i in range(times)]


def train(
    config: Config,
    envs: Envs | gym.vector.VectorEnv | None = None,
    state: State | None = None,
    world: World | None = None,
    make_network: MakeActorQ | None = None,
) -> Iterator[Update]:
    """Learn until `total_steps`, yielding after each fresh rollout; from `state` and `world`, go on where they were taken."""
    validate(config)
    prepare_jax(largest_product(config, config.rollout_length * max(config.env.num_envs, config.batch_size or 1)))
    with open_envs(config.env, config.run.seed, envs) as envs:
        state = init(config, envs.observation_space, envs.action_space, make_network) if state is None else state
        behaviour = empty_behaviour(envs.action_space, envs.num_envs)
        collect = Collector(envs, act, config.rollout_length, state.network.initial_memory(envs.num_envs), behaviour=behaviour)
        collect.start(config.run.seed, world)
        size = config.replay_size or config.rollout_length * envs.num_envs  # with 0, one rollout is kept and not replayed
        replay = Replay(size, collect.empty_rollout(), config.discount, frame_stack=config.frame_stack)
        if world is not None:
            replay.restore(world, envs.fresh)
        while int(state.env_steps) < config.run.total_steps:
            rollout = collect(policy(state), state.key)
            replay.add(rollout)
            with collect.timed("learning"):
                found = []
                for sequences in (rollout, *replayed(replay, state, config)):
                    state, metrics = update(state, sequences, config)
                    found.append(finite_metrics(metrics))
                state = count(state, rollout, config)
            metrics = {name: float(np.mean([step[name] for step in found])) for name in found[0]}
            metrics |= {"replay/updates": len(found) - 1, "replay/steps": len(replay), "replay/bytes": replay.bytes}
            yield Update(state, metrics | collect.metrics(), lambda: replay.snapshot(collect.world()))
