"""Trust region policy optimisation, TRPO (Schulman et al. 2015, arXiv 1502.05477).

1. Collect T steps of B environments with the current policy, and estimate advantages by GAE.
2. Take the natural-gradient step on the surrogate whose KL from the old policy is at most δ.
   Shorten it until the surrogate improves and the KL is within its limit; take none otherwise.
3. Fit the critic by minibatch steps.

Differs from the paper: advantages are GAE's (Schulman et al. 2016), normalised over the batch, from
a critic that Adam fits separately; the Fisher matrix is damped, and taken from every step unless
`fisher_every` says less. There is no vine sampling.
"""

from collections.abc import Iterator
from functools import partial
from typing import Annotated, NamedTuple

import equinox as eqx
import gymnasium as gym
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from birl.checks import require_config, require_minibatches, validate_settings
from birl.config import EnvConfig, RunConfig, require
from birl.limits import Discount, NotNegative, PositiveFloat, PositiveInt, Rate, TraceDecay
from birl.maths import losses
from birl.maths.count import Count, count_of
from birl.maths.keys import stream
from birl.maths.losses import explained_variance
from birl.maths.trust_region import fisher_vector_product, line_search, natural_step
from birl.nets.dependence import require_own_critic, split_actor_critic
from birl.nets.models import (
    ActorCriticLike,
    ActorCriticPolicy,
    Distribution,
    MakeNetwork,
    act,
    make_actor_critic,
    remembers,
)
from birl.nets.normalize import Normalizer, normalize_rewards
from birl.nets.optimizers import gradient_step, initial_optimizer_state
from birl.parts import GAUSSIAN_ONLY, ActionConfig, NetworkConfig, NormalizeConfig, OptimizerConfig
from birl.registry import EVERY_ACTION, Alias, Supports
from birl.rollouts.batch import Batch, make_batch, shuffled_parts
from birl.rollouts.source import open_rollouts
from birl.rollouts.state import begin, count_rollout
from birl.search import Choices, LogRange
from birl.settings import Without
from birl.traced import Scheduled, scheduled, settings
from birl.types import Array, Envs, Metrics, PyTree, Rollout, Snapshot, Source, Update

SUPPORTS = Supports(
    EVERY_ACTION,
    masks=True,
    recurrent=True,
    ray_rollouts=True,
    compiled=True,
    values="V(s)",
    distribution=True,
    aliases={"sb3": {"loss/policy": Alias("train/policy_objective", -1.0)}},
)


@settings
class Config:
    """TRPO's settings. Policy and values share no trunk: critic steps would move the policy."""

    env: EnvConfig = EnvConfig()
    run: RunConfig = RunConfig()
    network: Annotated[NetworkConfig, Without(("share_trunk",))] = NetworkConfig(activation="tanh")
    actions: Annotated[ActionConfig, GAUSSIAN_ONLY] = ActionConfig()
    normalize: NormalizeConfig = NormalizeConfig()
    gradient: OptimizerConfig = OptimizerConfig("adam")  # of the critic
    # T: steps of each environment between updates
    rollout_length: Annotated[PositiveInt, Choices((64, 128, 256, 512, 1024))] = 256
    discount: Discount = 0.99  # γ
    gae_lambda: TraceDecay = 0.95  # λ
    max_kl: Annotated[PositiveFloat, LogRange(1e-3, 0.1)] = 0.01  # δ: how far an update may move the policy
    cg_steps: Annotated[PositiveInt, Choices((5, 10, 15, 20))] = 15  # of conjugate gradients, at most
    cg_damping: Annotated[NotNegative, LogRange(0.01, 0.3)] = 0.1  # added to the Fisher matrix's diagonal
    fisher_every: PositiveInt = 1  # use every k-th step for the Fisher matrix; if recurrent, every k-th environment
    backtrack_factor: float = 0.8  # factor by which a refused step is shortened
    backtrack_tries: PositiveInt = 10  # steps to try before the policy stays as it is
    normalize_advantages: bool = True  # scale advantages to mean 0 and deviation 1
    epochs: Annotated[PositiveInt, Choices((5, 10, 20))] = 10  # of the critic, over each rollout
    minibatches: Annotated[PositiveInt, Choices((4, 8, 16, 32))] = 8  # of the critic, per epoch
    learning_rate: Annotated[Rate, LogRange(1e-4, 1e-2)] = 1e-3  # of the critic


class State(NamedTuple):
    """Everything that changes while TRPO learns."""

    network: ActorCriticLike
    optimizer: PyTree  # of the critic's leaves
    normalizer: Normalizer
    key: Array
    env_steps: Count
    updates: Count


class Critic(NamedTuple):
    """What the gradient steps of one update change."""

    leaves: PyTree  # of the network; None where they belong to the policy
    optimizer: PyTree


def validate(config: Config) -> None:
    """Raise ConfigError if these settings cannot work."""
    validate_settings(config, Config)
    factor = config.backtrack_factor
    require(0 < factor < 1, f"backtrack_factor {factor} must lie between 0 and 1; 0.8 is usual")
    require_parts(config, config.network.recurrent)


def require_parts(config: Config, recurrent: bool) -> None:
    """Raise ConfigError unless a rollout can be divided into minibatches and thinned out.

    A recurrent network learns from whole sequences, so there the environments are divided.
    """
    require_minibatches(config.minibatches, config.rollout_length, config.env.num_envs, recurrent)
    name, most = ("num_envs", config.env.num_envs) if recurrent else ("rollout_length", config.rollout_length)
    wrong = f"fisher_every {config.fisher_every} exceeds {name} {most}"
    require(config.fisher_every <= most, f"{wrong}; use a number from 1 to {most}")


def init(
    config: Config, observation_space: gym.Space, action_space: gym.Space, make_network: MakeNetwork | None = None
) -> State:
    """A fresh State for these spaces, the same for the same seed."""
    require_config(config, Config)
    make = make_network or partial(make_actor_critic, network=config.network, actions=config.actions)
    network, normalizer, key = begin(config, Config, observation_space, action_space, make)
    optimizer = initial_optimizer_state(config.gradient, require_own_critic(network, observation_space))
    return State(network, optimizer, normalizer, key, env_steps=count_of(0), updates=count_of(0))


def policy(state: State) -> PyTree:
    """The part of the state that acts."""
    return ActorCriticPolicy(state.network, state.normalizer.observations)


def batch_of(state: State, rollout: Rollout, config: Config) -> Batch:
    """The rollout with values, targets and advantages, normalised if the settings say so."""
    rewards, _ = normalize_rewards(state.normalizer, rollout, config.discount)
    batch = make_batch(policy(state), rollout, rewards, config.discount, config.gae_lambda)
    if not config.normalize_advantages:
        return batch
    return batch._replace(advantages=losses.normalize(batch.advantages, batch.valid))


def loss(network: ActorCriticLike, batch: Batch, memory: PyTree) -> tuple[Array, Array]:
    """The surrogate -E[ρÂ] and the mean KL(old‖new) (Schulman et al. 2015, eq. 14)."""
    distribution, _, _ = network(batch.observations, memory, batch.resets, batch.action_masks)
    log_ratios = distribution.log_prob(batch.actions) - batch.log_probs
    return losses.surrogate(log_ratios, batch.advantages, batch.valid), mean_kl(batch, distribution)


def mean_kl(batch: Batch, distribution: Distribution) -> Array:
    """The mean of KL(old‖new) over the valid steps."""
    return losses.masked_mean(batch.old.kl(distribution), batch.valid)


def thin_out(batch: Batch, memory: PyTree, every: int) -> tuple[Batch, PyTree]:
    """Every k-th step of a batch; with memory, the whole sequences of every k-th environment."""
    if jax.tree.leaves(memory):
        return jax.tree.map(lambda x: x[:, ::every], batch), jax.tree.map(lambda m: m[::every], memory)
    return jax.tree.map(lambda x: x[::every], batch), memory


def improve_policy(
    actor: PyTree, critic: PyTree, batch: Batch, memory: PyTree, config: Config
) -> tuple[PyTree, Metrics]:
    """The policy's leaves after one step within the trust region; unchanged if there is none."""
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
    critic: Critic, part: tuple[Batch, PyTree], actor: PyTree, config: Scheduled
) -> tuple[Critic, Metrics]:
    """One gradient step of the critic; the policy's leaves do not change."""
    value_loss, gradients = jax.value_and_grad(critic_loss)(critic.leaves, actor, *part)
    leaves, optimizer, norm = gradient_step(
        config.gradient, critic.leaves, critic.optimizer, gradients, config.learning_rate, part[0].valid
    )
    metrics = {"loss/value": value_loss, "optimizer/value_grad_norm": norm, "ran": part[0].valid.any()}
    return Critic(leaves, optimizer), metrics


def fit_epoch(
    critic: Critic, key: Array, actor: PyTree, batch: Batch, memory: PyTree, config: Scheduled
) -> tuple[Critic, Metrics]:
    """One pass of the critic over the batch in shuffled minibatches."""
    parts = shuffled_parts(key, batch._replace(old=None), memory, config.minibatches)
    return jax.lax.scan(partial(fit_minibatch, actor=actor, config=config), critic, parts)


@jax.jit  # no donation: a user may keep update.state
def update(state: State, rollout: Rollout, config: Config) -> tuple[State, Metrics]:
    """The state after one policy step and all critic epochs, and the metrics."""
    batch = batch_of(state, rollout, config)
    actor, critic_leaves = split_actor_critic(state.network, batch.observations)
    actor, metrics = improve_policy(actor, critic_leaves, batch, rollout.memory, config)

    now = scheduled(config, state.env_steps)
    epoch_keys = jax.random.split(stream(state.key, "learning"), config.epochs)
    epoch = partial(fit_epoch, actor=actor, batch=batch, memory=rollout.memory, config=now)
    critic, critic_metrics = jax.lax.scan(epoch, Critic(critic_leaves, state.optimizer), epoch_keys)

    state = state._replace(network=eqx.combine(actor, critic.leaves), optimizer=critic.optimizer)
    state = count_rollout(state, rollout, config.discount)
    ran = critic_metrics.pop("ran")
    metrics |= {name: losses.masked_mean(values, ran) for name, values in critic_metrics.items()}
    return state, metrics | {
        "value/explained_variance": explained_variance(batch.values, batch.value_targets, batch.valid),
        "optimizer/learning_rate": now.learning_rate,
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
        require_parts(config, remembers(state.network))
        current = rollouts.start(state, snapshot)
        while int(current.env_steps) < config.run.total_steps:
            current, metrics = rollouts.advance(cycle, current)
            yield rollouts.report(current, metrics)
