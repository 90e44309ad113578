"""Asynchronous n-step Q-learning (Mnih et al. 2016, arXiv 1602.01783, algorithm S2).

Actor-learners with their own environments, each in a loop:
1. Copy the shared parameters: θ' ← θ.
2. Act ε-greedily on Q for t_max steps or until the episode ends; each has its own ε.
3. R ← r + γR from the last step to the first, starting from max Q(s, ·; θ⁻), or 0 if s is terminal.
4. Compute the gradient of (R - Q(s, a; θ'))².
5. Apply it to the shared θ by RMSProp with shared statistics, without a lock. Every I_target steps
   of all together, θ⁻ ← θ.
The loop is in birl/asynchronous/q_learner.py.

Differs from the paper: gradients are means over the steps, not sums, and clipped by their norm; an
actor-learner may have several environments, and then it stops early only if all their episodes end
at once; where a time limit truncates an episode, Q bootstraps; ε is drawn once for each
actor-learner; RMSProp's own ε is outside the root by default.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

import gymnasium as gym

from birl.asynchronous.actor_learner import PoolName, initial_state
from birl.asynchronous.parameters import State
from birl.asynchronous.pool import train_actor_learners
from birl.asynchronous.q_learner import QRollout, q_loss, q_worker_step
from birl.asynchronous.q_learner import apply_gradients as apply_gradients
from birl.asynchronous.q_learner import policy as policy
from birl.checks import require_own_envs, validate_actor_learners, validate_exploration, validate_settings
from birl.config import EnvConfig, RunConfig, check_fields
from birl.limits import Decay, Fraction, PositiveFloat, PositiveInt, Probability, Rate, Sizes, Units
from birl.maths.returns import discounted_returns
from birl.maths.schedules import linear
from birl.nets.acting import without_first
from birl.nets.encoders import EncoderName
from birl.nets.layers import Activation
from birl.nets.optimizers import RMSPropName
from birl.nets.recurrent import CoreName
from birl.nets.values import MakeQNetwork, make_q_network, max_q_values
from birl.nets.values import act as act
from birl.registry import Supports
from birl.search import ASYNCHRONOUS_Q, SearchSpace
from birl.traced import traced_settings
from birl.types import Array, Snapshot, Update

SUPPORTS = Supports(("Discrete",), masks=True, recurrent=True, passed_envs=False, actor_learners=True, values="Q(s, ·)")


@traced_settings
@dataclass(frozen=True)
class Config:
    """The settings of asynchronous n-step Q-learning."""

    env: EnvConfig = field(default_factory=partial(EnvConfig, num_envs=1))  # of each actor-learner
    run: RunConfig = field(default_factory=RunConfig)
    pool: PoolName = "processes"  # where actor-learners run: serial (here, in turn, reproducible), processes or ray
    actor_learners: PositiveInt = 4  # how many; with processes, as many as there are CPU cores
    report_every: PositiveInt = 1000  # environment steps of all actor-learners between two reports
    rollout_length: PositiveInt = 5  # t_max: steps of each environment between updates, and most rewards in a return
    target_every: PositiveInt = 1000  # I_target: environment steps of all actor-learners between target network updates
    discount: Fraction = 0.99  # γ
    final_explorations: tuple[float, ...] = (0.1, 0.01, 0.5)  # each actor-learner draws its final ε from these
    exploration_chances: tuple[float, ...] = (0.4, 0.3, 0.3)  # the probability of each of them
    exploration_fraction: float = 0.5  # the fraction of total_steps in which ε falls from 1 to its final value
    exploration: Probability | None = None  # ε of all actor-learners; None: each has a final ε of its own
    learning_rate: Rate = field(default_factory=partial(linear, 7e-4, 0.0))  # η
    max_grad_norm: PositiveFloat | None = 10.0
    optimizer: RMSPropName = "rmsprop"  # PyTorch's: ε outside the root; rmsprop-tf: ε inside, mean square from 1
    optimizer_epsilon: PositiveFloat = 1e-5  # ε
    rmsprop_decay: Decay = 0.99  # α: decay of the mean of squared gradients
    normalize_observations: bool = False
    normalize_rewards: bool = False
    clip_rewards: bool = False  # learn from the signs of rewards (Mnih et al. 2015); returns are reported unclipped
    encoder: EncoderName = "auto"
    hidden_sizes: Sizes = (64, 64)
    activation: Activation = "relu"
    core: CoreName = "feedforward"
    core_size: Units = 64

    def __post_init__(self) -> None:
        check_fields(self)


SEARCH: SearchSpace = ASYNCHRONOUS_Q


def validate(config: Config) -> None:
    """Raise ConfigError if these settings cannot work."""
    validate_settings(config, Config)
    validate_actor_learners(config)
    validate_exploration(config)


def init(
    config: Config, observation_space: gym.Space, action_space: gym.Space, make_network: MakeQNetwork | None = None
) -> State:
    """A fresh State for these spaces, the same for the same seed."""
    make = make_network or partial(make_q_network, settings=config, dueling=False)
    return initial_state(config, Config, observation_space, action_space, make, has_target=True)


def targets(q: QRollout, config: Config) -> Array:
    """[T, B] R ← r + γR, from max Q(s, ·; θ⁻) or 0 if terminal (Mnih et al. 2016, algorithm S2)."""
    rollout = q.rollout
    next_values = max_q_values(q.target_values[1:], without_first(rollout.action_masks))
    flags = rollout.terminated, rollout.truncated, rollout.valid
    return discounted_returns(rollout.rewards, *flags, next_values, config.discount)


loss = partial(q_loss, targets=targets)  # E[(R - Q(s, a; θ'))²] over the valid steps
worker_step = partial(q_worker_step, loss=loss)  # act, then the gradient of this loss


def train(
    config: Config,
    envs: None = None,
    state: State | None = None,
    snapshot: Snapshot | None = None,
    make_network: MakeQNetwork | None = None,
) -> Iterator[Update]:
    """Learn until `total_steps`, yielding every `report_every` steps.

    With `state` and `snapshot`, training continues from there.
    """
    validate(config)
    require_own_envs(envs)
    start = partial(init, config, make_network=make_network)
    yield from train_actor_learners(
        config, __name__, start, worker_step, apply_gradients, state, snapshot, until_end=True
    )
