"""Asynchronous one-step Q-learning (Mnih et al. 2016, arXiv 1602.01783, algorithm 1).

Actor-learners with environments of their own, each in a loop: act ε-greedily on Q for I_AsyncUpdate
steps or until the episode ends; sum up the gradients of (r + γ max Q(s', ·; θ⁻) - Q(s, a; θ))²;
write a step of RMSProp, whose statistics are shared as well, to the shared θ without a lock. Every
I_target steps of all together the target network is copied, θ⁻ ← θ. Each actor-learner has an ε of
its own.

Differs from the paper: an actor-learner's steps between two updates are done with one copy of θ;
gradients are means over them, not sums, and clipped by their norm; it may have several
environments, and then its turn ends early only if all their episodes end at once; where an episode
is cut by a time limit, Q goes on; ε is drawn once for each actor-learner; RMSProp's own ε is
outside the root by default.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np

from birl.accel.devices import prepare_jax
from birl.asynchronous.actor_learner import (
    ActorLearner,
    PoolName,
    Result,
    SharedParameters,
    Weights,
    Work,
    open_pool,
    require_own_envs,
    validate_pool,
)
from birl.asynchronous.exploration import exploration_at, validate_exploration
from birl.asynchronous.flat import ParameterLayout
from birl.asynchronous.parameters import State, initial_state, make_work, shared_parameters_of, state_of
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
from birl.envs.make import spaces_of, validate_fields
from birl.maths import losses
from birl.maths.keys import stream
from birl.maths.returns import n_step_returns
from birl.maths.schedules import Schedule, linear, value_at
from birl.nets.acting import without_first
from birl.nets.encoders import EncoderName
from birl.nets.layers import Activation
from birl.nets.models import largest_product, validate_network
from birl.nets.normalize import merge_moments, normalize_for_worker
from birl.nets.optimizers import RMSPropName, clip_by_norm, flatten_tree, require_not_negative, shared_rmsprop
from birl.nets.recurrent import CoreName
from birl.nets.values import MakeQNetwork, QNetworkLike, make_q_network, max_q_values, q_of_actions, rollout_values
from birl.nets.values import act as act  # how the actor-learners act
from birl.rollouts.collector import finite_metrics, learnable
from birl.types import Array, Metrics, PyTree, Rollout, Snapshot, Update


@dataclass(frozen=True)
class Config:
    """Asynchronous one-step Q-learning's settings."""

    env: EnvConfig = field(default_factory=partial(EnvConfig, num_envs=1))  # of each actor-learner
    run: RunConfig = field(default_factory=RunConfig)
    pool: PoolName = (
        "processes"  # where actor-learners run: serial (in turn, the same run for the same seed), processes, ray
    )
    actor_learners: int = 4  # how many of them; with processes, as many as there are cores
    report_every: int = 1000  # environment steps of all together between what is logged
    rollout_length: int = 5  # I_AsyncUpdate: steps of each environment between updates; an episode's end makes it fewer
    target_every: int = (
        1000  # I_target: environment steps of all together between copies of the network to the target network
    )
    discount: float = 0.99  # γ
    final_explorations: tuple[float, ...] = (0.1, 0.01, 0.5)  # of these each actor-learner draws the ε that it comes to
    exploration_chances: tuple[float, ...] = (0.4, 0.3, 0.3)  # of each to be drawn
    exploration_fraction: float = 0.5  # of total_steps, in which ε falls from 1 to that
    learning_rate: float | Schedule = field(default_factory=partial(linear, 7e-4, 0.0))  # η
    max_grad_norm: float | None = 10.0
    optimizer: RMSPropName = (
        "rmsprop"  # with ε outside the square root, as PyTorch has it; rmsprop-tf: inside, and g from 1
    )
    optimizer_epsilon: float = 1e-5  # ε
    rmsprop_decay: float = 0.99  # α: of the mean of squared gradients
    normalize_observations: bool = False
    normalize_rewards: bool = False
    clip_rewards: bool = False  # learn from the signs of rewards (Mnih et al. 2015); returns are reported as they are
    encoder: EncoderName = "mlp"
    hidden_sizes: tuple[int, ...] = (64, 64)
    activation: Activation = "relu"
    core: CoreName = "feedforward"
    core_size: int = 64

    def __post_init__(self) -> None:
        check_fields(self)


def validate(config: Config) -> None:
    """Raise ConfigError if these settings cannot work."""
    validate_settings(config, Config)
    validate_actor_learners(config)
    validate_exploration(config)
; 0.99 is usual")


def init(
    config: Config, observation_space: gym.Space, action_space: gym.Space, make_network: MakeQNetwork | None = None
) -> State:
    """A fresh State for these spaces, the same for the same seed."""
    require_config(config, Config)
    prepare_jax(largest_product(config, config.rollout_length * config.env.num_envs))
    rng = np.random.default_rng(config.run.seed)
    make = make_network or partial(make_q_network, settings=config, dueling=False)
    network = make(rng, observation_space, action_space)
    return initial_state(config, observation_space, network, network, rng)  # θ⁻ ← θ


def policy(state: State) -> PyTree:
    """The part of the state that acts, with ε = 0: what is evaluated, exported and played."""
    return state.network, merge_moments(state.normalizer.observations), np.float32(0.0)


def loss(
    network: QNetworkLike, target_weights: QNetworkLike, moments: PyTree, rollout: Rollout, config: Config
) -> tuple[Array, Metrics]:
    """E[(y - Q(s, a; θ))²] over the valid steps, with y = r + γ max Q(s', ·; θ⁻), or r if s' is
    terminal (algorithm 1).
    """
    following = max_q_values(rollout_values(target_weights, moments, rollout)[1:], without_first(rollout.action_masks))
    ends = rollout.terminated, rollout.truncated, rollout.valid
    targets = n_step_returns(rollout.rewards, *ends, following, config.discount, n=1)
    values = q_of_actions(rollout_values(network, moments, rollout)[:-1], rollout.actions)
    value_loss = losses.value_loss(values, targets, rollout.valid)
    return value_loss, {
        "loss/value": value_loss,
        "value/td_error": losses.masked_mean(jnp.abs(targets - values), rollout.valid),
    }


@partial(jax.jit, static_argnames=("layouts", "config"))
def gradients(
    weights: Weights,
    index: Array,
    key: Array,
    rollout: Rollout,
    layouts: tuple[ParameterLayout, ParameterLayout],
    config: Config,
) -> tuple[Array, Array, Array, Metrics]:
    """[P] dθ of a rollout, clipped by its norm; [M] what actor-learner `index` has seen by now; its
    next key; what happened.
    """
    network, target_weights, before = (
        layouts[0].tree(weights.network),
        layouts[0].tree(weights.target_weights),
        layouts[1].tree(weights.normalizers),
    )
    learning_rate = value_at(config.learning_rate, weights.env_steps / config.run.total_steps)
    moments, rollout, own = normalize_for_worker(before, index, rollout, config.discount, counted=rollout.valid)
    (_, metrics), found = jax.value_and_grad(loss, has_aux=True)(network, target_weights, moments, rollout, config)
    found, norm = clip_by_norm(found, config.max_grad_norm)
    metrics |= {"optimizer/grad_norm": norm, "optimizer/learning_rate": learning_rate}
    return flatten_tree(found), flatten_tree(own), stream(key, "next"), metrics


def worker_step(weights: Weights, learner: ActorLearner, work: Work) -> Result:
    """One turn of an actor-learner's loop: `weights` are its own copy of θ and θ⁻; `update` will
    add the gradient to θ.
    """
    network, normalizers = work.network.tree(weights.network), work.normalizer.tree(weights.normalizers)
    epsilon = exploration_at(work.config, learner.number, int(weights.env_steps))
    collect = learner.collect
    # Take action a with the ε-greedy policy based on Q(s, a; θ), I_AsyncUpdate times or until s' is
    # terminal.
    rollout = learnable(
        collect((network, merge_moments(normalizers.observations), epsilon), learner.key), work.config.clip_rewards
    )
    with collect.timed("learning"):
        index, layouts = np.int32(learner.number), (work.network, work.normalizer)
        turn = weights, index, learner.key, rollout
        found, seen, key, metrics = gradients(*turn, layouts, work.config)  # dθ
        metrics = finite_metrics(metrics) | {"exploration/epsilon": float(epsilon)}
    env_steps = int(np.count_nonzero(rollout.valid))  # T ← T + 1, for each step
    learning_rate = metrics["optimizer/learning_rate"]
    return Result(
        np.asarray(found), learning_rate, env_steps, np.asarray(seen), np.asarray(key), metrics | collect.metrics()
    )


def update(shared: SharedParameters, result: Result, config: Config) -> None:
    """Asynchronous update of θ using dθ: by RMSProp with shared statistics, in place, without a
    lock; every I_target steps also of θ⁻.
    """
    shared_rmsprop(shared.weights, shared.mean_squares, result.gradients, result.learning_rate, config)
    shared.copy_weights_every(config.target_every, result.env_steps)  # T mod I_target = 0: θ⁻ ← θ


def train(
    config: Config,
    envs: None = None,
    state: State | None = None,
    snapshot: Snapshot | None = None,
    make_network: MakeQNetwork | None = None,
) -> Iterator[Update]:
    """Learn until `total_steps`, yielding every `report_every` steps; from `state` and `snapshot`,
    go on where they were taken.
    """
    validate(config)
    require_own_envs(envs)
    state = init(config, *spaces_of(config.env), make_network) if state is None else state
    work = make_work(config, __name__, worker_step, update, state, until_end=True)
    with open_pool(work, shared_parameters_of(state, work), snapshot) as pool:
        while int(state.env_steps) < config.run.total_steps:
            shared = pool.run(min(int(state.env_steps) + config.report_every, config.run.total_steps))
            state = state_of(shared, work, int(state.updates) + 1)
            yield Update(state, pool.metrics(), pool.snapshot)
