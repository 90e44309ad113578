"""Trust region policy optimisation (Schulman et al. 2015, arXiv 1502.05477).

Collect T steps of B environments with the policy as it is; estimate advantages by GAE; then take
the natural-gradient step on the surrogate whose KL from the policy that acted is at most δ,
shortened until the surrogate is better and the KL within its limit; or none.

Differs from the paper: advantages are GAE's (Schulman et al. 2016), normalised over the batch, from
a critic that Adam fits apart in minibatches; the Fisher matrix is damped, and taken from every step
unless `fisher_every` says less. There is no vine sampling.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar, NamedTuple

import equinox as eqx
import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from birl.accel.devices import prepare_jax, replicate_unplaced
from birl.config import (
    EnvConfig,
    RunConfig,
    check_fields,
    require,
    require_at_least_one,
    require_config,
    require_fractions,
    require_positive,
)
from birl.envs.make import validate_fields
from birl.maths import losses
from birl.maths.count import Count, count_of
from birl.maths.keys import stream
from birl.maths.returns import gae
from birl.maths.schedules import Schedule, value_at
from birl.maths.statistics import explained_variance
from birl.maths.trust_region import fisher_vector_product, line_search, natural_step
from birl.nets.acting import act, evaluate_rollout, without_last
from birl.nets.dependence import require_own_critic, split_actor_critic
from birl.nets.encoders import EncoderName
from birl.nets.layers import Activation
from birl.nets.models import (
    ActorCriticLike,
    Distribution,
    MakeNetwork,
    largest_product,
    make_actor_critic,
    remembers,
    validate_network,
)
from birl.nets.normalize import Normalizer, initial_normalizer, normalize_rewards, update_observation_moments
from birl.nets.optimizers import gradient_step, initial_optimizer_state, make_optimizer, require_not_negative
from birl.nets.recurrent import CoreName
from birl.rollouts.collector import finite_metrics
from birl.rollouts.minibatch import require_minibatches, shuffled_parts
from birl.rollouts.open import open_stage, validate_stage
from birl.types import Array, Envs, Metrics, PyTree, Rollout, Snapshot, Update


@dataclass(frozen=True)
class Config:
    """TRPO's settings."""

    env: EnvConfig = field(default_factory=EnvConfig)
    run: RunConfig = field(default_factory=RunConfig)
    rollout_length: int = 256  # T: steps of each environment between updates
    discount: float = 0.99  # γ
    gae_lambda: float = 0.95  # λ
    max_kl: float = 0.01  # δ: how far an update may move the policy
    cg_steps: int = 15  # of conjugate gradients, at most
    cg_damping: float = 0.1  # added to the Fisher matrix's diagonal
    fisher_every: int = (
        1  # take the Fisher matrix from every k-th step, with a recurrent core from every k-th environment
    )
    backtrack_factor: float = 0.8  # what a refused step is multiplied by
    backtrack_tries: int = 10  # steps that are tried before the update is given up
    normalize_advantages: bool = True
    epochs: int = 10  # of the critic, over each rollout
    minibatches: int = 8  # of the critic, per epoch
    learning_rate: float | Schedule = 1e-3  # of the critic
    max_grad_norm: float | None = None  # of the critic
    normalize_observations: bool = False
    normalize_rewards: bool = False
    encoder: EncoderName = "mlp"
    hidden_sizes: tuple[int, ...] = (64, 64)
    activation: Activation = "tanh"
    core: CoreName = "feedforward"
    core_size: int = 64
    log_std: float = 0.0  # of a continuous policy, to begin with

    share_trunk: ClassVar[bool] = (
        False  # not a setting: the critic's steps would move the policy out of the trust region
    )

    def __post_init__(self) -> None:
        check_fields(self)


class State(NamedTuple):
    """Everything that changes while TRPO learns."""

    network: ActorCriticLike
    optimizer: PyTree  # of the critic's leaves
    normalizer: Normalizer
    key: Array
    env_steps: Count
    updates: Count


class Batch(NamedTuple):
    """A rollout with what the losses need; leaves [T, B, ...]."""

    observations: PyTree
    actions: PyTree
    log_probs: Array
    advantages: Array
    value_targets: Array
    values: Array
    valid: Array
    resets: Array
    action_masks: Array | None
    old: PyTree  # the Distribution that acted


class Critic(NamedTuple):
    """What the gradient steps of one update change."""

    leaves: PyTree  # of the network; None where they are the policy's
    optimizer: PyTree


def validate(config: Config) -> None:
    """Raise ConfigError if these settings cannot work."""
    validate_settings(config, Config)
    require(config.cg_damping >= 0, f"cg_damping {config.cg_damping} must not be negative; 0.1 is usual")
    require(
        0 < config.backtrack_factor < 1,
        f"backtrack_factor {config.backtrack_factor} must lie between 0 and 1; 0.8 is usual",
    )
    require_parts(config, config.core != "feedforward")


def require_parts(config: Config, recurrent: bool) -> None:
    """Raise ConfigError unless a rollout can be divided and thinned out: whole sequences if
    recurrent, else single steps.
    """
    require_minibatches(config.minibatches, config.rollout_length, config.env.num_envs, recurrent)
    name, most = ("num_envs", config.env.num_envs) if recurrent else ("rollout_length", config.rollout_length)
    require(
        config.fisher_every <= most,
        f"fisher_every {config.fisher_every} exceeds {name} {most}; use a number from 1 to {most}",
    )


def init(
    config: Config, observation_space: gym.Space, action_space: gym.Space, make_network: MakeNetwork | None = None
) -> State:
    """A fresh State for these spaces, the same for the same seed."""
    require_config(config, Config)
    prepare_jax(largest_product(config, config.rollout_length * config.env.num_envs))
    rng = np.random.default_rng(config.run.seed)
    make = make_network or partial(make_actor_critic, settings=config)
    network = make(rng, observation_space, action_space)
    return State(
        network=network,
        optimizer=initial_optimizer_state(make_optimizer("adam"), require_own_critic(network, observation_space)),
        normalizer=initial_normalizer(
            observation_space, config.env.num_envs, config.normalize_observations, config.normalize_rewards
        ),
        key=rng.integers(2**32, size=2, dtype=np.uint32),
        env_steps=count_of(0),
        updates=count_of(0),
    )


def policy(state: State) -> PyTree:
    """The part of the state that acts: what is evaluated, exported and played."""
    return state.network, state.normalizer.observations


def make_batch(state: State, rollout: Rollout, config: Config) -> tuple[Batch, Normalizer]:
    """Values, advantages and targets of a rollout, by one pass of the network over all of it."""
    observations, resets, distributions, values = evaluate_rollout(policy(state), rollout)
    rewards, normalizer = normalize_rewards(state.normalizer, rollout, config.discount)
    ends = rollout.terminated, rollout.truncated, rollout.valid
    advantages = gae(rewards, values[:-1], values[1:], *ends, config.discount, config.gae_lambda)
    batch = Batch(
        observations=without_last(observations),
        actions=rollout.actions,
        log_probs=without_last(distributions).log_prob(rollout.actions),
        advantages=losses.normalize(advantages, rollout.valid) if config.normalize_advantages else advantages,
        value_targets=advantages + values[:-1],
        values=values[:-1],
        valid=rollout.valid,
        resets=resets[:-1],
        action_masks=without_last(rollout.action_masks),
        old=without_last(distributions),
    )
    seen = update_observation_moments(normalizer.observations, without_last(rollout.observations))
    return batch, normalizer._replace(observations=seen)


def loss(network: ActorCriticLike, batch: Batch, memory: PyTree) -> tuple[Array, Array]:
    """The surrogate to minimise, -E[ρÂ] (eq. 14), and the mean of KL(old‖new), over the valid
    steps.
    """
    distribution, _, _ = network(batch.observations, memory, batch.resets, batch.action_masks)
    log_ratios = distribution.log_prob(batch.actions) - batch.log_probs
    return losses.surrogate(log_ratios, batch.advantages, batch.valid), mean_kl(batch, distribution)


def mean_kl(batch: Batch, distribution: Distribution) -> Array:
    """The mean of KL(old‖new) over the valid steps."""
    return losses.masked_mean(batch.old.kl(distribution), batch.valid)


def thin_out(batch: Batch, memory: PyTree, every: int) -> tuple[Batch, PyTree]:
    """Every k-th step of a batch; where there is memory, the whole sequences of every k-th
    environment.
    """
    if jax.tree.leaves(memory):
        return jax.tree.map(lambda x: x[:, ::every], batch), jax.tree.map(lambda m: m[::every], memory)
    return jax.tree.map(lambda x: x[::every], batch), memory


def improve_policy(
    actor: PyTree, critic: PyTree, batch: Batch, memory: PyTree, config: Config
) -> tuple[PyTree, Metrics]:
    """The policy's leaves after one step within the trust region, or as they were if the line
    search finds none.
    """
    parameters, unravel = ravel_pytree(actor)

    def evaluate(parameters: Array) -> tuple[Array, Array]:
        return loss(eqx.combine(unravel(parameters), critic), batch, memory)

    part, part_memory = thin_out(batch, memory, config.fisher_every)

    def distribution_of(parameters: Array) -> Distribution:
        network = eqx.combine(unravel(parameters), critic)
        return network(part.observations, part_memory, part.resets, part.action_masks)[0]

    gradient, _ = jax.grad(evaluate, has_aux=True)(parameters)
    product = fisher_vector_product(distribution_of, partial(mean_kl, part), parameters, config.cg_damping)
    direction, size = natural_step(product, gradient, config.max_kl, config.cg_steps)
    limits = config.max_kl, config.backtrack_factor, config.backtrack_tries
    found = line_search(evaluate, parameters, size * direction, *limits)
    return unravel(found.parameters), {
        "loss/policy": found.loss,
        "policy/kl": found.kl,
        "policy/entropy": losses.masked_mean(batch.old.entropy(), batch.valid),
        "trust_region/accepted": found.accepted,
        "trust_region/backtracks": found.backtracks,
        "trust_region/step_size": found.fraction * size,
        "optimizer/grad_norm": jnp.linalg.norm(gradient),
    }


def critic_loss(critic: PyTree, actor: PyTree, batch: Batch, memory: PyTree) -> Array:
    """The squared error of the values, over the valid steps of a minibatch."""
    _, values, _ = eqx.combine(critic, actor)(batch.observations, memory, batch.resets, batch.action_masks)
    return losses.value_loss(values, batch.value_targets, batch.valid)


def fit_minibatch(
    critic: Critic, part: tuple[Batch, PyTree], actor: PyTree, learning_rate: Array, config: Config
) -> tuple[Critic, Metrics]:
    """One gradient step of the critic; the policy's leaves stand still."""
    value_loss, gradients = jax.value_and_grad(critic_loss)(critic.leaves, actor, *part)
    leaves, optimizer, norm = gradient_step(
        make_optimizer("adam"),
        critic.leaves,
        critic.optimizer,
        gradients,
        learning_rate,
        config.max_grad_norm,
        part[0].valid,
    )
    return Critic(leaves, optimizer), {"loss/value": value_loss, "optimizer/value_grad_norm": norm}


def fit_epoch(
    critic: Critic, key: Array, actor: PyTree, batch: Batch, memory: PyTree, learning_rate: Array, config: Config
) -> tuple[Critic, Metrics]:
    """One pass of the critic over the batch in shuffled minibatches."""
    parts = shuffled_parts(key, batch._replace(old=None), memory, config.minibatches)
    return jax.lax.scan(partial(fit_minibatch, actor=actor, learning_rate=learning_rate, config=config), critic, parts)


@partial(jax.jit, static_argnames="config")  # no donation: a user may keep update.state
def update(state: State, rollout: Rollout, config: Config) -> tuple[State, Metrics]:
    """The state after learning from a rollout, and what happened."""
    batch, normalizer = make_batch(state, rollout, config)
    actor, critic_leaves = split_actor_critic(state.network, batch.observations)
    actor, metrics = improve_policy(actor, critic_leaves, batch, rollout.memory, config)

    learning_rate = value_at(config.learning_rate, state.env_steps / config.run.total_steps)
    epoch_keys = jax.random.split(stream(state.key, "learning"), config.epochs)
    epoch = partial(
        fit_epoch, actor=actor, batch=batch, memory=rollout.memory, learning_rate=learning_rate, config=config
    )
    critic, critic_metrics = jax.lax.scan(epoch, Critic(critic_leaves, state.optimizer), epoch_keys)

    state = State(
        network=eqx.combine(actor, critic.leaves),
        optimizer=critic.optimizer,
        normalizer=normalizer,
        key=stream(state.key, "next"),
        env_steps=state.env_steps + rollout.valid.sum(dtype=jnp.int32),
        updates=state.updates + 1,
    )
    metrics |= {name: jnp.mean(values) for name, values in critic_metrics.items()}
    return state, metrics | {
        "value/explained_variance": explained_variance(batch.values, batch.value_targets, batch.valid),
        "optimizer/learning_rate": learning_rate,
    }


def train(
    config: Config,
    envs: Envs | gym.vector.VectorEnv | None = None,
    state: State | None = None,
    snapshot: Snapshot | None = None,
    make_network: MakeNetwork | None = None,
) -> Iterator[Update]:
    """Learn until `total_steps`, yielding after each update; from `state` and `snapshot`, go on
    where they were taken.
    """
    validate(config)
    with open_stage(config.env, config.run.seed, envs) as stage:
        state = replicate_unplaced(
            init(config, stage.observation_space, stage.action_space, make_network) if state is None else state
        )
        require_parts(config, remembers(state.network))
        collect = stage.collector(act, config.rollout_length, state.network.initial_memory(stage.num_envs))
        collect.start(config.run.seed, snapshot)
        while int(state.env_steps) < config.run.total_steps:
            rollout = collect(policy(state), state.key)
            with collect.timed("learning"):
                state, metrics = update(state, rollout, config)
                metrics = finite_metrics(metrics)
            yield Update(state, metrics | collect.metrics(), collect.snapshot)
