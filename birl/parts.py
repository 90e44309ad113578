"""The parts of which Configs are composed, beside the environment and the run.

An algorithm's Config has those that it needs, states its own defaults for them, and leaves out
settings that it has not: `network: Annotated[NetworkConfig, Without(("core",))] = NetworkConfig()`.
"""

from dataclasses import field
from functools import partial
from typing import Annotated, Literal

from birl.config import part
from birl.limits import BELOW_100, Decay, Fraction, Natural, PositiveFloat, PositiveInt, Prefill, Rate, Sizes, Units
from birl.maths.schedules import linear
from birl.search import EITHER, Choices, Range
from birl.settings import CONSTANT, Search, Without

# One of Birl's, auto to choose by the observation, or module:function for one of the user's own
# (nets/encoders.py).
EncoderName = Literal["auto", "mlp", "cnn", "cnn_2013", "cnn_small", "cnn_tiny", "conv_only"] | str
Activation = Literal["tanh", "relu", "elu", "silu", "gelu"]
CoreName = Literal["feedforward", "lstm", "lnlstm", "gru"]
# There are two RMSProps. PyTorch's divides by √g + ε, and its mean square g starts at 0, so the
# first step of a parameter has length η/√(1-α). TensorFlow's, which OpenAI Baselines used for A2C
# and ACER, divides by √(g + ε), and g starts at 1, so the first steps are short.
RMSPropName = Literal["rmsprop", "rmsprop-tf"]
OptimizerName = Literal["adam", "rmsprop", "rmsprop-tf"]
NoiseName = Literal["ou", "gaussian", "parameter"]
ValueName = Literal["mean", "quantiles", "categorical"]
PoolName = Literal["none", "serial", "processes", "ray"]


@part
class NetworkConfig:
    """What the policy and the values are computed with."""

    encoder: EncoderName = "auto"  # reads the observation; auto: a cnn for images, else mlp; module:function: your own
    hidden_sizes: Annotated[Sizes, Choices(((64, 64), (128, 128), (256, 256)))] = (64, 64)  # units of each hidden layer
    policy_hidden_sizes: Sizes | None = None  # of the policy alone; None: hidden_sizes
    value_hidden_sizes: Sizes | None = None  # of the values alone; None: hidden_sizes
    activation: Annotated[Activation, Choices(("tanh", "relu"))] = "tanh"  # nonlinearity between the layers
    layer_norm: bool = False  # layer normalization after each hidden layer
    core: CoreName = "feedforward"  # recurrent core after the encoder; feedforward: none
    core_size: Annotated[Units, Choices((64, 128, 256))] = 64  # units of the recurrent core
    share_trunk: bool = False  # one encoder and core for policy and values

    @property
    def recurrent(self) -> bool:
        """Whether there is a recurrent core."""
        return self.core != "feedforward"


@part
class ValueConfig:
    """What is learned of the return of an action."""

    values: ValueName = "mean"  # its mean, quantiles of it (QR-DQN), or probabilities of fixed values (C51)
    num_quantiles: Annotated[PositiveInt, Choices((25, 50, 200))] = 50  # quantiles of each value
    num_atoms: Annotated[PositiveInt, Choices((21, 51, 101))] = 51  # atoms of each value
    value_min: Annotated[float, CONSTANT] = -100.0  # lowest atom; returns below it cannot be told apart
    value_max: Annotated[float, CONSTANT] = 100.0  # highest atom
    dueling: Annotated[bool, EITHER] = False  # separate heads for value and advantages (Wang et al. 2016)


@part
class ActionConfig:
    """How a policy chooses the numbers of a Box; nothing of it concerns other actions."""

    log_std: Annotated[float, Range(-2.0, 0.5)] = 0.0  # first log standard deviation; with gsde, of the matrix
    state_dependent_std: bool = False  # the log standard deviation is an output of the network
    scale_actions: bool = True  # to a Box whose bounds are not near ±1; False: the policy has the environment's numbers
    squash_actions: bool = False  # by tanh into the bounds of a Box; False: the environment gets them clipped
    gsde: bool = False  # exploration noise is a function of the state (Raffin et al. 2021); for Box actions
    gsde_every: PositiveInt | None = None  # steps between new matrices of gsde; None: one for each rollout

    def steps_per_matrix(self, rollout_length: int) -> int:
        """The steps of a rollout that share an exploration matrix; 1 without gSDE."""
        return (self.gsde_every or rollout_length) if self.gsde else 1


@part
class NormalizeConfig:
    """What is learned from in place of the environment's numbers."""

    normalize_observations: Annotated[bool, EITHER] = False  # scale them by their running mean and deviation
    normalize_rewards: Annotated[bool, EITHER] = False  # scale them by the running deviation of the return
    clip_rewards: bool = False  # learn from the signs of rewards (Mnih et al. 2015); returns are reported unclipped


@part
class OptimizerConfig:
    """The rule of the gradient step. Learning rates are the algorithm's own: some have several."""

    optimizer: OptimizerName = "adam"  # rmsprop: PyTorch's; rmsprop-tf: ε inside the root, mean square from 1
    max_grad_norm: PositiveFloat | None = None  # clip the gradient to this norm; None: no clipping
    optimizer_epsilon: PositiveFloat = 1e-5  # ε: added to the denominator of the gradient step
    rmsprop_decay: Decay = 0.99  # α: decay of the mean of squared gradients, for rmsprop and rmsprop-tf


@part
class ReplayConfig:
    """What is kept of the past, and how often it is learned from."""

    replay_size: Natural = 100_000  # transitions that the replay buffer keeps
    batch_size: Annotated[PositiveInt, Choices((32, 64, 128, 256, 512))] = 256  # transitions, or sequences, in a step
    learning_starts: Annotated[Natural, Choices((100, 1000, 5000))] = 1000  # environment steps before the first step
    update_ratio: Annotated[PositiveFloat, CONSTANT] = 1.0  # gradient steps for each environment step; 0.25: one in 4
    n_step: Annotated[PositiveInt, Choices((1, 3, 5))] = 1  # rewards summed before the bootstrap
    prefill: Prefill | None = None  # put these transitions into the replay first: an .npz file, or minari:DATASET-ID
    frame_stack: PositiveInt = 1  # frames in an observation, newest last; the replay keeps each frame once
    prioritized: bool = False  # sample in proportion to |error|^α instead of uniformly (Schaul et al. 2016)
    priority_exponent: Fraction = 0.6  # α: how much priorities count; 0: not at all
    priority_correction: Rate = field(default_factory=partial(linear, 0.4, 1.0))  # β: 1 removes the bias
    hindsight: Annotated[Natural, BELOW_100] = 0  # copies of each step, with goals that were reached later; 0: none
    burn_in: Natural = 0  # first steps of a sequence that only compute the memory


@part
class NoiseConfig:
    """How a deterministic policy explores."""

    noise: Annotated[NoiseName, Choices(("ou", "gaussian"))] = "ou"  # Ornstein-Uhlenbeck, Gaussian, or of parameters
    # σ of actions on [-1, 1]; for parameter noise δ, their distance
    exploration_noise: Annotated[Rate, Range(0.05, 0.4)] = 0.2
    noise_rate: Annotated[PositiveFloat, CONSTANT] = 0.15  # θ: how fast Ornstein-Uhlenbeck noise drifts back to 0
    noise_time_step: Annotated[PositiveFloat, CONSTANT] = 1.0  # Δt of Ornstein-Uhlenbeck noise
    noise_adaptation: float = 1.01  # α: the factor by which parameter noise changes in an update


@part
class ActorLearnerConfig:
    """Actor-learners that share parameters without locks."""

    pool: PoolName = "processes"  # where they run: serial (here, in turn, reproducible), processes or ray; none: one
    actor_learners: PositiveInt = 4  # how many; with processes, as many as there are CPU cores
    report_every: PositiveInt = 1000  # environment steps of all actor-learners between two reports


# What several algorithms leave out of a part, or search of it.
GAUSSIAN_ONLY = Without(("squash_actions", "gsde", "gsde_every"))
VALUES_ONLY = Without(("policy_hidden_sizes", "value_hidden_sizes", "share_trunk"))
NO_CORE = Without(("core", "core_size", "share_trunk"))
WIDE = Search(hidden_sizes=Choices(((64, 64), (256, 256), (400, 300))), activation=None, layer_norm=EITHER)
STEPS_ONLY = Without(("frame_stack", "prioritized", "priority_exponent", "priority_correction", "burn_in"))
