# Written by scripts/stub.py from the signatures and the Configs.
# ruff: noqa
# fmt: off
"""The types of Birl's public names, with the settings of each algorithm."""

from birl.algos import a2c as a2c
from birl.algos import a3c as a3c
from birl.algos import acer as acer
from birl.algos import async_q as async_nstep_q
from birl.algos import async_q as async_q
from birl.algos import async_q as async_sarsa
from birl.algos import ddpg as ddpg
from birl.algos import dpg as dpg
from birl.algos import dqn as c51
from birl.algos import dqn as dqn
from birl.algos import dqn as qr_dqn
from birl.algos import ppo as ppo
from birl.algos import qac as qac
from birl.algos import reinforce as reinforce
from birl.algos import sac as sac
from birl.algos import td3 as td3
from birl.algos import trpo as trpo
from birl.config import AtariConfig as AtariConfig
from birl.config import ConfigError as ConfigError
from birl.config import EnvConfig as EnvConfig
from birl.config import RunConfig as RunConfig
from birl.config import Wrapper as Wrapper
from birl.envs.check.checking import check_env as check_env
from birl.envs.compiled.interface import CompiledEnv as CompiledEnv
from birl.lab.comparison import compare as compare
from birl.lab.diagnosis.diagnosing import diagnose as diagnose
from birl.lab.diagnosis.proof import prove as prove
from birl.lab.exporting.exporting import export as export
from birl.lab.report.sections import report as report
from birl.lab.sharing.card import card as card
from birl.lab.sharing.pull import pull as pull
from birl.lab.sharing.push import push as push
from birl.lab.solving import solve as solve
from birl.maths.schedules import Schedule
from birl.maths.schedules import constant as constant
from birl.maths.schedules import exponential as exponential
from birl.maths.schedules import linear as linear
from birl.maths.schedules import piecewise as piecewise
from birl.maths.schedules import schedule as schedule
from birl.registry import register as register
from birl.run.evaluating import evaluate as evaluate
from birl.run.loading import load as load
from birl.run.policy import Policy as Policy
from birl.run.record import play as play
from birl.run.record import record as record
from birl.run.run import Run
from birl.run.start import reopen as reopen
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from gymnasium.core import Env
from os import PathLike
from pathlib import Path
from typing import Any
from typing import Literal
from typing import Protocol
from typing import TypedDict
from typing import Unpack
from typing import overload

__version__: str
ALGORITHMS: dict[str, str]

class AnyConfig(Protocol):
    """The Config of an algorithm, which may be your own."""

    @property
    def env(self) -> EnvConfig: ...
    @property
    def run(self) -> RunConfig: ...

class Settings(TypedDict, total=False):
    num_envs: int
    backend: Literal['gymnasium', 'envpool', 'compiled']
    workers: int
    ray_actors: int
    ray_address: str | PathLike[str] | None
    step_timeout: float
    hide_velocities: bool
    max_episode_steps: int | None
    kwargs: Mapping[str, bool | int | float | str]
    ignore_observations: list[str | PathLike[str]] | tuple[str | PathLike[str], ...]
    wrappers: list[Wrapper | str | Callable[..., Any]] | tuple[Wrapper | str | Callable[..., Any], ...]
    noop_max: int
    frame_skip: int
    screen_size: int
    stacked_frames: int
    episodic_life: bool
    fire_reset: bool
    sticky_actions: float
    total_steps: int
    seed: int
    run_dir: str | PathLike[str] | None
    eval_every: int
    eval_episodes: int
    eval_max_steps: int | None
    eval_deterministic: bool
    stop_at_return: float | None
    checkpoint_every: int
    keep_checkpoints: int
    keep_every: int
    log_every: int
    video_every: int
    tensorboard: bool
    wandb: str | PathLike[str] | None
    trackio: str | PathLike[str] | None
    metric_names: Literal['birl', 'sb3', 'cleanrl']
    clip_rewards: bool
    discount: float
    normalize_observations: bool
    normalize_rewards: bool
    rollout_length: int

class ReinforceSettings(Settings, total=False):
    baseline: bool
    normalize_advantages: bool
    entropy_weight: float | Schedule | str | Callable[..., Any]
    value_weight: float
    learning_rate: float | Schedule | str | Callable[..., Any]
    encoder: Literal['auto', 'mlp', 'cnn', 'cnn_2013', 'cnn_small', 'cnn_tiny', 'conv_only'] | str | Callable[..., Any]
    hidden_sizes: list[int] | tuple[int, ...]
    policy_hidden_sizes: list[int] | tuple[int, ...] | None
    value_hidden_sizes: list[int] | tuple[int, ...] | None
    activation: Literal['tanh', 'relu', 'elu', 'silu', 'gelu']
    layer_norm: bool
    core: Literal['feedforward', 'lstm', 'lnlstm', 'gru']
    core_size: int
    share_trunk: bool
    log_std: float
    state_dependent_std: bool
    scale_actions: bool
    optimizer: Literal['adam', 'rmsprop', 'rmsprop-tf']
    max_grad_norm: float | None
    optimizer_epsilon: float
    rmsprop_decay: float

class QacSettings(Settings, total=False):
    critic: Literal['q', 'v']
    baseline: bool
    normalize_advantages: bool
    entropy_weight: float | Schedule | str | Callable[..., Any]
    learning_rate: float | Schedule | str | Callable[..., Any]
    critic_learning_rate: float | Schedule | str | Callable[..., Any]
    encoder: Literal['auto', 'mlp', 'cnn', 'cnn_2013', 'cnn_small', 'cnn_tiny', 'conv_only'] | str | Callable[..., Any]
    hidden_sizes: list[int] | tuple[int, ...]
    policy_hidden_sizes: list[int] | tuple[int, ...] | None
    value_hidden_sizes: list[int] | tuple[int, ...] | None
    activation: Literal['tanh', 'relu', 'elu', 'silu', 'gelu']
    layer_norm: bool
    core: Literal['feedforward', 'lstm', 'lnlstm', 'gru']
    core_size: int
    share_trunk: bool
    log_std: float
    state_dependent_std: bool
    scale_actions: bool
    optimizer: Literal['adam', 'rmsprop', 'rmsprop-tf']
    max_grad_norm: float | None
    optimizer_epsilon: float
    rmsprop_decay: float

class A2CSettings(Settings, total=False):
    gae_lambda: float
    entropy_weight: float | Schedule | str | Callable[..., Any]
    value_weight: float
    learning_rate: float | Schedule | str | Callable[..., Any]
    value_learning_rate: float | Schedule | str | Callable[..., Any] | None
    encoder: Literal['auto', 'mlp', 'cnn', 'cnn_2013', 'cnn_small', 'cnn_tiny', 'conv_only'] | str | Callable[..., Any]
    hidden_sizes: list[int] | tuple[int, ...]
    policy_hidden_sizes: list[int] | tuple[int, ...] | None
    value_hidden_sizes: list[int] | tuple[int, ...] | None
    activation: Literal['tanh', 'relu', 'elu', 'silu', 'gelu']
    layer_norm: bool
    core: Literal['feedforward', 'lstm', 'lnlstm', 'gru']
    core_size: int
    share_trunk: bool
    log_std: float
    state_dependent_std: bool
    scale_actions: bool
    squash_actions: bool
    gsde: bool
    gsde_every: int | None
    optimizer: Literal['adam', 'rmsprop', 'rmsprop-tf']
    max_grad_norm: float | None
    optimizer_epsilon: float
    rmsprop_decay: float

class PpoSettings(Settings, total=False):
    epochs: int
    minibatches: int
    gae_lambda: float
    objective: Literal['clip', 'kl']
    clip_range: float | Schedule | str | Callable[..., Any]
    penalty_target_kl: float
    penalty_weight: float
    target_kl: float | None
    value_clip: float | Schedule | str | Callable[..., Any] | None
    normalize_advantages: bool
    entropy_weight: float | Schedule | str | Callable[..., Any]
    value_weight: float
    learning_rate: float | Schedule | str | Callable[..., Any]
    value_learning_rate: float | Schedule | str | Callable[..., Any] | None
    encoder: Literal['auto', 'mlp', 'cnn', 'cnn_2013', 'cnn_small', 'cnn_tiny', 'conv_only'] | str | Callable[..., Any]
    hidden_sizes: list[int] | tuple[int, ...]
    policy_hidden_sizes: list[int] | tuple[int, ...] | None
    value_hidden_sizes: list[int] | tuple[int, ...] | None
    activation: Literal['tanh', 'relu', 'elu', 'silu', 'gelu']
    layer_norm: bool
    core: Literal['feedforward', 'lstm', 'lnlstm', 'gru']
    core_size: int
    share_trunk: bool
    log_std: float
    state_dependent_std: bool
    scale_actions: bool
    squash_actions: bool
    gsde: bool
    gsde_every: int | None
    optimizer: Literal['adam', 'rmsprop', 'rmsprop-tf']
    max_grad_norm: float | None
    optimizer_epsilon: float
    rmsprop_decay: float

class TrpoSettings(Settings, total=False):
    gae_lambda: float
    max_kl: float
    cg_steps: int
    cg_damping: float
    fisher_every: int
    backtrack_factor: float
    backtrack_tries: int
    normalize_advantages: bool
    epochs: int
    minibatches: int
    learning_rate: float | Schedule | str | Callable[..., Any]
    encoder: Literal['auto', 'mlp', 'cnn', 'cnn_2013', 'cnn_small', 'cnn_tiny', 'conv_only'] | str | Callable[..., Any]
    hidden_sizes: list[int] | tuple[int, ...]
    policy_hidden_sizes: list[int] | tuple[int, ...] | None
    value_hidden_sizes: list[int] | tuple[int, ...] | None
    activation: Literal['tanh', 'relu', 'elu', 'silu', 'gelu']
    layer_norm: bool
    core: Literal['feedforward', 'lstm', 'lnlstm', 'gru']
    core_size: int
    log_std: float
    state_dependent_std: bool
    scale_actions: bool
    optimizer: Literal['adam', 'rmsprop', 'rmsprop-tf']
    max_grad_norm: float | None
    optimizer_epsilon: float
    rmsprop_decay: float

class DqnSettings(Settings, total=False):
    double: bool
    exploration: float | Schedule | str | Callable[..., Any]
    target_every: int
    target_rate: float
    learning_rate: float | Schedule | str | Callable[..., Any]
    encoder: Literal['auto', 'mlp', 'cnn', 'cnn_2013', 'cnn_small', 'cnn_tiny', 'conv_only'] | str | Callable[..., Any]
    hidden_sizes: list[int] | tuple[int, ...]
    activation: Literal['tanh', 'relu', 'elu', 'silu', 'gelu']
    layer_norm: bool
    core: Literal['feedforward', 'lstm', 'lnlstm', 'gru']
    core_size: int
    values: Literal['mean', 'quantiles', 'categorical']
    num_quantiles: int
    num_atoms: int
    value_min: float
    value_max: float
    dueling: bool
    optimizer: Literal['adam', 'rmsprop', 'rmsprop-tf']
    max_grad_norm: float | None
    optimizer_epsilon: float
    rmsprop_decay: float
    replay_size: int
    batch_size: int
    learning_starts: int
    update_ratio: float
    n_step: int
    prefill: str | PathLike[str] | None
    frame_stack: int
    prioritized: bool
    priority_exponent: float
    priority_correction: float | Schedule | str | Callable[..., Any]
    hindsight: int
    burn_in: int

class DpgSettings(Settings, total=False):
    exploration_noise: float | Schedule | str | Callable[..., Any]
    actor_learning_rate: float | Schedule | str | Callable[..., Any]
    critic_learning_rate: float | Schedule | str | Callable[..., Any]
    value_learning_rate: float | Schedule | str | Callable[..., Any]
    actor_features: Literal['linear', 'quadratic', 'fourier']
    critic_features: Literal['linear', 'quadratic', 'fourier']
    num_features: int
    feature_scale: float

class DdpgSettings(Settings, total=False):
    target_rate: float
    actor_learning_rate: float | Schedule | str | Callable[..., Any]
    critic_learning_rate: float | Schedule | str | Callable[..., Any]
    encoder: Literal['auto', 'mlp', 'cnn', 'cnn_2013', 'cnn_small', 'cnn_tiny', 'conv_only'] | str | Callable[..., Any]
    hidden_sizes: list[int] | tuple[int, ...]
    policy_hidden_sizes: list[int] | tuple[int, ...] | None
    value_hidden_sizes: list[int] | tuple[int, ...] | None
    activation: Literal['tanh', 'relu', 'elu', 'silu', 'gelu']
    layer_norm: bool
    optimizer: Literal['adam', 'rmsprop', 'rmsprop-tf']
    max_grad_norm: float | None
    optimizer_epsilon: float
    rmsprop_decay: float
    replay_size: int
    batch_size: int
    learning_starts: int
    update_ratio: float
    n_step: int
    prefill: str | PathLike[str] | None
    hindsight: int
    noise: Literal['ou', 'gaussian', 'parameter']
    exploration_noise: float | Schedule | str | Callable[..., Any]
    noise_rate: float
    noise_time_step: float
    noise_adaptation: float

class Td3Settings(Settings, total=False):
    exploration_noise: float | Schedule | str | Callable[..., Any]
    target_noise: float | Schedule | str | Callable[..., Any]
    target_noise_clip: float
    policy_delay: int
    target_rate: float
    actor_learning_rate: float | Schedule | str | Callable[..., Any]
    critic_learning_rate: float | Schedule | str | Callable[..., Any]
    encoder: Literal['auto', 'mlp', 'cnn', 'cnn_2013', 'cnn_small', 'cnn_tiny', 'conv_only'] | str | Callable[..., Any]
    hidden_sizes: list[int] | tuple[int, ...]
    policy_hidden_sizes: list[int] | tuple[int, ...] | None
    value_hidden_sizes: list[int] | tuple[int, ...] | None
    activation: Literal['tanh', 'relu', 'elu', 'silu', 'gelu']
    layer_norm: bool
    optimizer: Literal['adam', 'rmsprop', 'rmsprop-tf']
    max_grad_norm: float | None
    optimizer_epsilon: float
    rmsprop_decay: float
    replay_size: int
    batch_size: int
    learning_starts: int
    update_ratio: float
    n_step: int
    prefill: str | PathLike[str] | None
    hindsight: int

class SacSettings(Settings, total=False):
    temperature: float
    temperature_learning_rate: float | Schedule | str | Callable[..., Any]
    target_entropy: float | None
    target_rate: float
    actor_learning_rate: float | Schedule | str | Callable[..., Any]
    critic_learning_rate: float | Schedule | str | Callable[..., Any]
    encoder: Literal['auto', 'mlp', 'cnn', 'cnn_2013', 'cnn_small', 'cnn_tiny', 'conv_only'] | str | Callable[..., Any]
    hidden_sizes: list[int] | tuple[int, ...]
    policy_hidden_sizes: list[int] | tuple[int, ...] | None
    value_hidden_sizes: list[int] | tuple[int, ...] | None
    activation: Literal['tanh', 'relu', 'elu', 'silu', 'gelu']
    layer_norm: bool
    log_std: float
    gsde: bool
    gsde_every: int | None
    optimizer: Literal['adam', 'rmsprop', 'rmsprop-tf']
    max_grad_norm: float | None
    optimizer_epsilon: float
    rmsprop_decay: float
    replay_size: int
    batch_size: int
    learning_starts: int
    update_ratio: float
    n_step: int
    prefill: str | PathLike[str] | None
    hindsight: int

class A3CSettings(Settings, total=False):
    entropy_weight: float | Schedule | str | Callable[..., Any]
    value_weight: float
    learning_rate: float | Schedule | str | Callable[..., Any]
    pool: Literal['none', 'serial', 'processes', 'ray']
    actor_learners: int
    report_every: int
    encoder: Literal['auto', 'mlp', 'cnn', 'cnn_2013', 'cnn_small', 'cnn_tiny', 'conv_only'] | str | Callable[..., Any]
    hidden_sizes: list[int] | tuple[int, ...]
    policy_hidden_sizes: list[int] | tuple[int, ...] | None
    value_hidden_sizes: list[int] | tuple[int, ...] | None
    activation: Literal['tanh', 'relu', 'elu', 'silu', 'gelu']
    layer_norm: bool
    core: Literal['feedforward', 'lstm', 'lnlstm', 'gru']
    core_size: int
    share_trunk: bool
    log_std: float
    state_dependent_std: bool
    scale_actions: bool
    optimizer: Literal['adam', 'rmsprop', 'rmsprop-tf']
    max_grad_norm: float | None
    optimizer_epsilon: float
    rmsprop_decay: float

class AsyncQSettings(Settings, total=False):
    target_every: int
    final_explorations: list[float] | tuple[float, ...]
    exploration_chances: list[float] | tuple[float, ...]
    exploration_fraction: float
    exploration: float | Schedule | str | Callable[..., Any] | None
    learning_rate: float | Schedule | str | Callable[..., Any]
    pool: Literal['none', 'serial', 'processes', 'ray']
    actor_learners: int
    report_every: int
    encoder: Literal['auto', 'mlp', 'cnn', 'cnn_2013', 'cnn_small', 'cnn_tiny', 'conv_only'] | str | Callable[..., Any]
    hidden_sizes: list[int] | tuple[int, ...]
    activation: Literal['tanh', 'relu', 'elu', 'silu', 'gelu']
    layer_norm: bool
    core: Literal['feedforward', 'lstm', 'lnlstm', 'gru']
    core_size: int
    optimizer: Literal['adam', 'rmsprop', 'rmsprop-tf']
    max_grad_norm: float | None
    optimizer_epsilon: float
    rmsprop_decay: float

class AsyncSarsaSettings(Settings, total=False):
    target_every: int
    final_explorations: list[float] | tuple[float, ...]
    exploration_chances: list[float] | tuple[float, ...]
    exploration_fraction: float
    exploration: float | Schedule | str | Callable[..., Any] | None
    learning_rate: float | Schedule | str | Callable[..., Any]
    pool: Literal['none', 'serial', 'processes', 'ray']
    actor_learners: int
    report_every: int
    encoder: Literal['auto', 'mlp', 'cnn', 'cnn_2013', 'cnn_small', 'cnn_tiny', 'conv_only'] | str | Callable[..., Any]
    hidden_sizes: list[int] | tuple[int, ...]
    activation: Literal['tanh', 'relu', 'elu', 'silu', 'gelu']
    layer_norm: bool
    core: Literal['feedforward', 'lstm', 'lnlstm', 'gru']
    core_size: int
    optimizer: Literal['adam', 'rmsprop', 'rmsprop-tf']
    max_grad_norm: float | None
    optimizer_epsilon: float
    rmsprop_decay: float

class AsyncNstepQSettings(Settings, total=False):
    target_every: int
    final_explorations: list[float] | tuple[float, ...]
    exploration_chances: list[float] | tuple[float, ...]
    exploration_fraction: float
    exploration: float | Schedule | str | Callable[..., Any] | None
    learning_rate: float | Schedule | str | Callable[..., Any]
    pool: Literal['none', 'serial', 'processes', 'ray']
    actor_learners: int
    report_every: int
    encoder: Literal['auto', 'mlp', 'cnn', 'cnn_2013', 'cnn_small', 'cnn_tiny', 'conv_only'] | str | Callable[..., Any]
    hidden_sizes: list[int] | tuple[int, ...]
    activation: Literal['tanh', 'relu', 'elu', 'silu', 'gelu']
    layer_norm: bool
    core: Literal['feedforward', 'lstm', 'lnlstm', 'gru']
    core_size: int
    optimizer: Literal['adam', 'rmsprop', 'rmsprop-tf']
    max_grad_norm: float | None
    optimizer_epsilon: float
    rmsprop_decay: float

class AcerSettings(Settings, total=False):
    entropy_weight: float | Schedule | str | Callable[..., Any]
    value_weight: float
    importance_truncation: float
    trust_region: float | None
    average_decay: float
    advantage_samples: int
    replay_size: int
    replay_ratio: float
    learning_starts: int
    batch_size: int | None
    frame_stack: int
    learning_rate: float | Schedule | str | Callable[..., Any]
    pool: Literal['none', 'serial', 'processes', 'ray']
    actor_learners: int
    report_every: int
    encoder: Literal['auto', 'mlp', 'cnn', 'cnn_2013', 'cnn_small', 'cnn_tiny', 'conv_only'] | str | Callable[..., Any]
    hidden_sizes: list[int] | tuple[int, ...]
    policy_hidden_sizes: list[int] | tuple[int, ...] | None
    value_hidden_sizes: list[int] | tuple[int, ...] | None
    activation: Literal['tanh', 'relu', 'elu', 'silu', 'gelu']
    layer_norm: bool
    core: Literal['feedforward', 'lstm', 'lnlstm', 'gru']
    core_size: int
    share_trunk: bool
    log_std: float
    state_dependent_std: bool
    scale_actions: bool
    optimizer: Literal['adam', 'rmsprop', 'rmsprop-tf']
    max_grad_norm: float | None
    optimizer_epsilon: float
    rmsprop_decay: float

class QrDqnSettings(Settings, total=False):
    double: bool
    exploration: float | Schedule | str | Callable[..., Any]
    target_every: int
    target_rate: float
    learning_rate: float | Schedule | str | Callable[..., Any]
    encoder: Literal['auto', 'mlp', 'cnn', 'cnn_2013', 'cnn_small', 'cnn_tiny', 'conv_only'] | str | Callable[..., Any]
    hidden_sizes: list[int] | tuple[int, ...]
    activation: Literal['tanh', 'relu', 'elu', 'silu', 'gelu']
    layer_norm: bool
    core: Literal['feedforward', 'lstm', 'lnlstm', 'gru']
    core_size: int
    values: Literal['mean', 'quantiles', 'categorical']
    num_quantiles: int
    num_atoms: int
    value_min: float
    value_max: float
    dueling: bool
    optimizer: Literal['adam', 'rmsprop', 'rmsprop-tf']
    max_grad_norm: float | None
    optimizer_epsilon: float
    rmsprop_decay: float
    replay_size: int
    batch_size: int
    learning_starts: int
    update_ratio: float
    n_step: int
    prefill: str | PathLike[str] | None
    frame_stack: int
    prioritized: bool
    priority_exponent: float
    priority_correction: float | Schedule | str | Callable[..., Any]
    hindsight: int
    burn_in: int

class C51Settings(Settings, total=False):
    double: bool
    exploration: float | Schedule | str | Callable[..., Any]
    target_every: int
    target_rate: float
    learning_rate: float | Schedule | str | Callable[..., Any]
    encoder: Literal['auto', 'mlp', 'cnn', 'cnn_2013', 'cnn_small', 'cnn_tiny', 'conv_only'] | str | Callable[..., Any]
    hidden_sizes: list[int] | tuple[int, ...]
    activation: Literal['tanh', 'relu', 'elu', 'silu', 'gelu']
    layer_norm: bool
    core: Literal['feedforward', 'lstm', 'lnlstm', 'gru']
    core_size: int
    values: Literal['mean', 'quantiles', 'categorical']
    num_quantiles: int
    num_atoms: int
    value_min: float
    value_max: float
    dueling: bool
    optimizer: Literal['adam', 'rmsprop', 'rmsprop-tf']
    max_grad_norm: float | None
    optimizer_epsilon: float
    rmsprop_decay: float
    replay_size: int
    batch_size: int
    learning_starts: int
    update_ratio: float
    n_step: int
    prefill: str | PathLike[str] | None
    frame_stack: int
    prioritized: bool
    priority_exponent: float
    priority_correction: float | Schedule | str | Callable[..., Any]
    hindsight: int
    burn_in: int

class AnySettings(Settings, total=False):
    activation: Literal['tanh', 'relu', 'elu', 'silu', 'gelu']
    actor_features: Literal['linear', 'quadratic', 'fourier']
    actor_learners: int
    actor_learning_rate: float | Schedule | str | Callable[..., Any]
    advantage_samples: int
    average_decay: float
    backtrack_factor: float
    backtrack_tries: int
    baseline: bool
    batch_size: int | None
    burn_in: int
    cg_damping: float
    cg_steps: int
    clip_range: float | Schedule | str | Callable[..., Any]
    core: Literal['feedforward', 'lstm', 'lnlstm', 'gru']
    core_size: int
    critic: Literal['q', 'v']
    critic_features: Literal['linear', 'quadratic', 'fourier']
    critic_learning_rate: float | Schedule | str | Callable[..., Any]
    double: bool
    dueling: bool
    encoder: Literal['auto', 'mlp', 'cnn', 'cnn_2013', 'cnn_small', 'cnn_tiny', 'conv_only'] | str | Callable[..., Any]
    entropy_weight: float | Schedule | str | Callable[..., Any]
    epochs: int
    exploration: float | Schedule | str | Callable[..., Any] | None
    exploration_chances: list[float] | tuple[float, ...]
    exploration_fraction: float
    exploration_noise: float | Schedule | str | Callable[..., Any]
    feature_scale: float
    final_explorations: list[float] | tuple[float, ...]
    fisher_every: int
    frame_stack: int
    gae_lambda: float
    gsde: bool
    gsde_every: int | None
    hidden_sizes: list[int] | tuple[int, ...]
    hindsight: int
    importance_truncation: float
    layer_norm: bool
    learning_rate: float | Schedule | str | Callable[..., Any]
    learning_starts: int
    log_std: float
    max_grad_norm: float | None
    max_kl: float
    minibatches: int
    n_step: int
    noise: Literal['ou', 'gaussian', 'parameter']
    noise_adaptation: float
    noise_rate: float
    noise_time_step: float
    normalize_advantages: bool
    num_atoms: int
    num_features: int
    num_quantiles: int
    objective: Literal['clip', 'kl']
    optimizer: Literal['adam', 'rmsprop', 'rmsprop-tf']
    optimizer_epsilon: float
    penalty_target_kl: float
    penalty_weight: float
    policy_delay: int
    policy_hidden_sizes: list[int] | tuple[int, ...] | None
    pool: Literal['none', 'serial', 'processes', 'ray']
    prefill: str | PathLike[str] | None
    prioritized: bool
    priority_correction: float | Schedule | str | Callable[..., Any]
    priority_exponent: float
    replay_ratio: float
    replay_size: int
    report_every: int
    rmsprop_decay: float
    scale_actions: bool
    share_trunk: bool
    squash_actions: bool
    state_dependent_std: bool
    target_entropy: float | None
    target_every: int
    target_kl: float | None
    target_noise: float | Schedule | str | Callable[..., Any]
    target_noise_clip: float
    target_rate: float
    temperature: float
    temperature_learning_rate: float | Schedule | str | Callable[..., Any]
    trust_region: float | None
    update_ratio: float
    value_clip: float | Schedule | str | Callable[..., Any] | None
    value_hidden_sizes: list[int] | tuple[int, ...] | None
    value_learning_rate: float | Schedule | str | Callable[..., Any] | None
    value_max: float
    value_min: float
    value_weight: float
    values: Literal['mean', 'quantiles', 'categorical']

@overload
def configure(algorithm: Literal['reinforce'], env: str | EnvConfig | None = None, *, like: str | Path | None = None, trust: bool = False, preset: bool = True, **settings: Unpack[ReinforceSettings]) -> reinforce.Config:
    """The Config for a task: its preset if there is one, changed by these settings.

    Without `preset`, it begins with the algorithm's defaults.
    Settings have the names of the command line's options, without dashes: `total_steps`, `num_envs`
    and `learning_rate` alike. An EnvConfig replaces the preset's environment settings. With `like`,
    the settings of that run take the place of the preset's; its run_dir is not taken over. A run
    that was made elsewhere or by someone else may name modules only with `trust`."""
@overload
def configure(algorithm: Literal['qac'], env: str | EnvConfig | None = None, *, like: str | Path | None = None, trust: bool = False, preset: bool = True, **settings: Unpack[QacSettings]) -> qac.Config: ...
@overload
def configure(algorithm: Literal['a2c'], env: str | EnvConfig | None = None, *, like: str | Path | None = None, trust: bool = False, preset: bool = True, **settings: Unpack[A2CSettings]) -> a2c.Config: ...
@overload
def configure(algorithm: Literal['ppo'], env: str | EnvConfig | None = None, *, like: str | Path | None = None, trust: bool = False, preset: bool = True, **settings: Unpack[PpoSettings]) -> ppo.Config: ...
@overload
def configure(algorithm: Literal['trpo'], env: str | EnvConfig | None = None, *, like: str | Path | None = None, trust: bool = False, preset: bool = True, **settings: Unpack[TrpoSettings]) -> trpo.Config: ...
@overload
def configure(algorithm: Literal['dqn'], env: str | EnvConfig | None = None, *, like: str | Path | None = None, trust: bool = False, preset: bool = True, **settings: Unpack[DqnSettings]) -> dqn.Config: ...
@overload
def configure(algorithm: Literal['dpg'], env: str | EnvConfig | None = None, *, like: str | Path | None = None, trust: bool = False, preset: bool = True, **settings: Unpack[DpgSettings]) -> dpg.Config: ...
@overload
def configure(algorithm: Literal['ddpg'], env: str | EnvConfig | None = None, *, like: str | Path | None = None, trust: bool = False, preset: bool = True, **settings: Unpack[DdpgSettings]) -> ddpg.Config: ...
@overload
def configure(algorithm: Literal['td3'], env: str | EnvConfig | None = None, *, like: str | Path | None = None, trust: bool = False, preset: bool = True, **settings: Unpack[Td3Settings]) -> td3.Config: ...
@overload
def configure(algorithm: Literal['sac'], env: str | EnvConfig | None = None, *, like: str | Path | None = None, trust: bool = False, preset: bool = True, **settings: Unpack[SacSettings]) -> sac.Config: ...
@overload
def configure(algorithm: Literal['a3c'], env: str | EnvConfig | None = None, *, like: str | Path | None = None, trust: bool = False, preset: bool = True, **settings: Unpack[A3CSettings]) -> a3c.Config: ...
@overload
def configure(algorithm: Literal['async-q'], env: str | EnvConfig | None = None, *, like: str | Path | None = None, trust: bool = False, preset: bool = True, **settings: Unpack[AsyncQSettings]) -> async_q.Config: ...
@overload
def configure(algorithm: Literal['async-sarsa'], env: str | EnvConfig | None = None, *, like: str | Path | None = None, trust: bool = False, preset: bool = True, **settings: Unpack[AsyncSarsaSettings]) -> async_sarsa.Config: ...
@overload
def configure(algorithm: Literal['async-nstep-q'], env: str | EnvConfig | None = None, *, like: str | Path | None = None, trust: bool = False, preset: bool = True, **settings: Unpack[AsyncNstepQSettings]) -> async_nstep_q.Config: ...
@overload
def configure(algorithm: Literal['acer'], env: str | EnvConfig | None = None, *, like: str | Path | None = None, trust: bool = False, preset: bool = True, **settings: Unpack[AcerSettings]) -> acer.Config: ...
@overload
def configure(algorithm: Literal['qr-dqn'], env: str | EnvConfig | None = None, *, like: str | Path | None = None, trust: bool = False, preset: bool = True, **settings: Unpack[QrDqnSettings]) -> qr_dqn.Config: ...
@overload
def configure(algorithm: Literal['c51'], env: str | EnvConfig | None = None, *, like: str | Path | None = None, trust: bool = False, preset: bool = True, **settings: Unpack[C51Settings]) -> c51.Config: ...
@overload
def configure(algorithm: str, env: str | EnvConfig | None = None, *, like: str | Path | None = None, trust: bool = False, preset: bool = True, **settings: Unpack[Settings]) -> Any: ...
@overload
def configure(algorithm: str | None = None, env: str | EnvConfig | None = None, *, like: str | Path, trust: bool = False, preset: bool = True, **settings: Unpack[AnySettings]) -> Any: ...

@overload
def preset(algorithm: Literal['reinforce'], env_id: str, hide_velocities: bool = False, core: str = 'feedforward') -> reinforce.Config:
    """The Config of the preset for this task; change it with dataclasses.replace."""
@overload
def preset(algorithm: Literal['qac'], env_id: str, hide_velocities: bool = False, core: str = 'feedforward') -> qac.Config: ...
@overload
def preset(algorithm: Literal['a2c'], env_id: str, hide_velocities: bool = False, core: str = 'feedforward') -> a2c.Config: ...
@overload
def preset(algorithm: Literal['ppo'], env_id: str, hide_velocities: bool = False, core: str = 'feedforward') -> ppo.Config: ...
@overload
def preset(algorithm: Literal['trpo'], env_id: str, hide_velocities: bool = False, core: str = 'feedforward') -> trpo.Config: ...
@overload
def preset(algorithm: Literal['dqn'], env_id: str, hide_velocities: bool = False, core: str = 'feedforward') -> dqn.Config: ...
@overload
def preset(algorithm: Literal['dpg'], env_id: str, hide_velocities: bool = False, core: str = 'feedforward') -> dpg.Config: ...
@overload
def preset(algorithm: Literal['ddpg'], env_id: str, hide_velocities: bool = False, core: str = 'feedforward') -> ddpg.Config: ...
@overload
def preset(algorithm: Literal['td3'], env_id: str, hide_velocities: bool = False, core: str = 'feedforward') -> td3.Config: ...
@overload
def preset(algorithm: Literal['sac'], env_id: str, hide_velocities: bool = False, core: str = 'feedforward') -> sac.Config: ...
@overload
def preset(algorithm: Literal['a3c'], env_id: str, hide_velocities: bool = False, core: str = 'feedforward') -> a3c.Config: ...
@overload
def preset(algorithm: Literal['async-q'], env_id: str, hide_velocities: bool = False, core: str = 'feedforward') -> async_q.Config: ...
@overload
def preset(algorithm: Literal['async-sarsa'], env_id: str, hide_velocities: bool = False, core: str = 'feedforward') -> async_sarsa.Config: ...
@overload
def preset(algorithm: Literal['async-nstep-q'], env_id: str, hide_velocities: bool = False, core: str = 'feedforward') -> async_nstep_q.Config: ...
@overload
def preset(algorithm: Literal['acer'], env_id: str, hide_velocities: bool = False, core: str = 'feedforward') -> acer.Config: ...
@overload
def preset(algorithm: Literal['qr-dqn'], env_id: str, hide_velocities: bool = False, core: str = 'feedforward') -> qr_dqn.Config: ...
@overload
def preset(algorithm: Literal['c51'], env_id: str, hide_velocities: bool = False, core: str = 'feedforward') -> c51.Config: ...
@overload
def preset(algorithm: str, env_id: str, hide_velocities: bool = False, core: str = 'feedforward') -> Any: ...

@overload
def start(algorithm: Literal['reinforce'] | reinforce.Config, env: str | EnvConfig | None = None, *, envs: Any = None, eval_envs: Any = None, make_env: Callable[..., Env | CompiledEnv] | None = None, make_network: Any = None, make_encoder: Any = None, preset: bool = True, quiet: bool = False, overwrite: bool = False, notices: Sequence[str] = (), **settings: Unpack[ReinforceSettings]) -> Run:
    """A new run, to be trained in a loop of your own (see Run).

    `algorithm` is a name or a Config, and `env` an id or an EnvConfig. Instead of `env`, `make_env`
    is a function that makes one environment, or `envs` is a vector environment, with `eval_envs`
    another one to evaluate on. `make_encoder` and `make_network` make networks of your own. With
    `overwrite`, a run that is in run_dir is moved aside, to run_dir.1; it is never deleted. All
    other settings have the names of the command line's options: `total_steps`, `learning_rate`.
    They change the preset of the task, or without `preset` the algorithm's defaults."""
@overload
def start(algorithm: Literal['qac'] | qac.Config, env: str | EnvConfig | None = None, *, envs: Any = None, eval_envs: Any = None, make_env: Callable[..., Env | CompiledEnv] | None = None, make_network: Any = None, make_encoder: Any = None, preset: bool = True, quiet: bool = False, overwrite: bool = False, notices: Sequence[str] = (), **settings: Unpack[QacSettings]) -> Run: ...
@overload
def start(algorithm: Literal['a2c'] | a2c.Config, env: str | EnvConfig | None = None, *, envs: Any = None, eval_envs: Any = None, make_env: Callable[..., Env | CompiledEnv] | None = None, make_network: Any = None, make_encoder: Any = None, preset: bool = True, quiet: bool = False, overwrite: bool = False, notices: Sequence[str] = (), **settings: Unpack[A2CSettings]) -> Run: ...
@overload
def start(algorithm: Literal['ppo'] | ppo.Config, env: str | EnvConfig | None = None, *, envs: Any = None, eval_envs: Any = None, make_env: Callable[..., Env | CompiledEnv] | None = None, make_network: Any = None, make_encoder: Any = None, preset: bool = True, quiet: bool = False, overwrite: bool = False, notices: Sequence[str] = (), **settings: Unpack[PpoSettings]) -> Run: ...
@overload
def start(algorithm: Literal['trpo'] | trpo.Config, env: str | EnvConfig | None = None, *, envs: Any = None, eval_envs: Any = None, make_env: Callable[..., Env | CompiledEnv] | None = None, make_network: Any = None, make_encoder: Any = None, preset: bool = True, quiet: bool = False, overwrite: bool = False, notices: Sequence[str] = (), **settings: Unpack[TrpoSettings]) -> Run: ...
@overload
def start(algorithm: Literal['dqn'] | dqn.Config, env: str | EnvConfig | None = None, *, envs: Any = None, eval_envs: Any = None, make_env: Callable[..., Env | CompiledEnv] | None = None, make_network: Any = None, make_encoder: Any = None, preset: bool = True, quiet: bool = False, overwrite: bool = False, notices: Sequence[str] = (), **settings: Unpack[DqnSettings]) -> Run: ...
@overload
def start(algorithm: Literal['dpg'] | dpg.Config, env: str | EnvConfig | None = None, *, envs: Any = None, eval_envs: Any = None, make_env: Callable[..., Env | CompiledEnv] | None = None, make_network: Any = None, make_encoder: Any = None, preset: bool = True, quiet: bool = False, overwrite: bool = False, notices: Sequence[str] = (), **settings: Unpack[DpgSettings]) -> Run: ...
@overload
def start(algorithm: Literal['ddpg'] | ddpg.Config, env: str | EnvConfig | None = None, *, envs: Any = None, eval_envs: Any = None, make_env: Callable[..., Env | CompiledEnv] | None = None, make_network: Any = None, make_encoder: Any = None, preset: bool = True, quiet: bool = False, overwrite: bool = False, notices: Sequence[str] = (), **settings: Unpack[DdpgSettings]) -> Run: ...
@overload
def start(algorithm: Literal['td3'] | td3.Config, env: str | EnvConfig | None = None, *, envs: Any = None, eval_envs: Any = None, make_env: Callable[..., Env | CompiledEnv] | None = None, make_network: Any = None, make_encoder: Any = None, preset: bool = True, quiet: bool = False, overwrite: bool = False, notices: Sequence[str] = (), **settings: Unpack[Td3Settings]) -> Run: ...
@overload
def start(algorithm: Literal['sac'] | sac.Config, env: str | EnvConfig | None = None, *, envs: Any = None, eval_envs: Any = None, make_env: Callable[..., Env | CompiledEnv] | None = None, make_network: Any = None, make_encoder: Any = None, preset: bool = True, quiet: bool = False, overwrite: bool = False, notices: Sequence[str] = (), **settings: Unpack[SacSettings]) -> Run: ...
@overload
def start(algorithm: Literal['a3c'] | a3c.Config, env: str | EnvConfig | None = None, *, envs: Any = None, eval_envs: Any = None, make_env: Callable[..., Env | CompiledEnv] | None = None, make_network: Any = None, make_encoder: Any = None, preset: bool = True, quiet: bool = False, overwrite: bool = False, notices: Sequence[str] = (), **settings: Unpack[A3CSettings]) -> Run: ...
@overload
def start(algorithm: Literal['async-q'] | async_q.Config, env: str | EnvConfig | None = None, *, envs: Any = None, eval_envs: Any = None, make_env: Callable[..., Env | CompiledEnv] | None = None, make_network: Any = None, make_encoder: Any = None, preset: bool = True, quiet: bool = False, overwrite: bool = False, notices: Sequence[str] = (), **settings: Unpack[AsyncQSettings]) -> Run: ...
@overload
def start(algorithm: Literal['async-sarsa'] | async_sarsa.Config, env: str | EnvConfig | None = None, *, envs: Any = None, eval_envs: Any = None, make_env: Callable[..., Env | CompiledEnv] | None = None, make_network: Any = None, make_encoder: Any = None, preset: bool = True, quiet: bool = False, overwrite: bool = False, notices: Sequence[str] = (), **settings: Unpack[AsyncSarsaSettings]) -> Run: ...
@overload
def start(algorithm: Literal['async-nstep-q'] | async_nstep_q.Config, env: str | EnvConfig | None = None, *, envs: Any = None, eval_envs: Any = None, make_env: Callable[..., Env | CompiledEnv] | None = None, make_network: Any = None, make_encoder: Any = None, preset: bool = True, quiet: bool = False, overwrite: bool = False, notices: Sequence[str] = (), **settings: Unpack[AsyncNstepQSettings]) -> Run: ...
@overload
def start(algorithm: Literal['acer'] | acer.Config, env: str | EnvConfig | None = None, *, envs: Any = None, eval_envs: Any = None, make_env: Callable[..., Env | CompiledEnv] | None = None, make_network: Any = None, make_encoder: Any = None, preset: bool = True, quiet: bool = False, overwrite: bool = False, notices: Sequence[str] = (), **settings: Unpack[AcerSettings]) -> Run: ...
@overload
def start(algorithm: Literal['qr-dqn'] | qr_dqn.Config, env: str | EnvConfig | None = None, *, envs: Any = None, eval_envs: Any = None, make_env: Callable[..., Env | CompiledEnv] | None = None, make_network: Any = None, make_encoder: Any = None, preset: bool = True, quiet: bool = False, overwrite: bool = False, notices: Sequence[str] = (), **settings: Unpack[QrDqnSettings]) -> Run: ...
@overload
def start(algorithm: Literal['c51'] | c51.Config, env: str | EnvConfig | None = None, *, envs: Any = None, eval_envs: Any = None, make_env: Callable[..., Env | CompiledEnv] | None = None, make_network: Any = None, make_encoder: Any = None, preset: bool = True, quiet: bool = False, overwrite: bool = False, notices: Sequence[str] = (), **settings: Unpack[C51Settings]) -> Run: ...
@overload
def start(algorithm: str | AnyConfig, env: str | EnvConfig | None = None, *, envs: Any = None, eval_envs: Any = None, make_env: Callable[..., Env | CompiledEnv] | None = None, make_network: Any = None, make_encoder: Any = None, preset: bool = True, quiet: bool = False, overwrite: bool = False, notices: Sequence[str] = (), **settings: Unpack[Settings]) -> Run: ...

@overload
def train(algorithm: Literal['reinforce'] | reinforce.Config, env: str | EnvConfig | None = None, *, seeds: int | None = None, sweep: Mapping[str, Iterable[Any]] | None = None, jobs: int | None = None, envs: Any = None, eval_envs: Any = None, make_env: Callable[..., Env | CompiledEnv] | None = None, make_network: Any = None, make_encoder: Any = None, preset: bool = True, quiet: bool = False, overwrite: bool = False, notices: Sequence[str] = (), **settings: Unpack[ReinforceSettings]) -> dict[str, Any]:
    """Train in a new run directory; the content of its summary.json.

    `birl.train("ppo", "CartPole-v1", total_steps=100_000)` begins with the preset of the task;
    `birl.train(config)` takes a Config as it is. The options are those of `birl.start`, of which
    this is the loop with an empty body.

    With `seeds` or `sweep` it is a group of runs: this many seeds of every combination of the
    values in `sweep`, which are lists by the names of settings. `jobs` of them train at once."""
@overload
def train(algorithm: Literal['qac'] | qac.Config, env: str | EnvConfig | None = None, *, seeds: int | None = None, sweep: Mapping[str, Iterable[Any]] | None = None, jobs: int | None = None, envs: Any = None, eval_envs: Any = None, make_env: Callable[..., Env | CompiledEnv] | None = None, make_network: Any = None, make_encoder: Any = None, preset: bool = True, quiet: bool = False, overwrite: bool = False, notices: Sequence[str] = (), **settings: Unpack[QacSettings]) -> dict[str, Any]: ...
@overload
def train(algorithm: Literal['a2c'] | a2c.Config, env: str | EnvConfig | None = None, *, seeds: int | None = None, sweep: Mapping[str, Iterable[Any]] | None = None, jobs: int | None = None, envs: Any = None, eval_envs: Any = None, make_env: Callable[..., Env | CompiledEnv] | None = None, make_network: Any = None, make_encoder: Any = None, preset: bool = True, quiet: bool = False, overwrite: bool = False, notices: Sequence[str] = (), **settings: Unpack[A2CSettings]) -> dict[str, Any]: ...
@overload
def train(algorithm: Literal['ppo'] | ppo.Config, env: str | EnvConfig | None = None, *, seeds: int | None = None, sweep: Mapping[str, Iterable[Any]] | None = None, jobs: int | None = None, envs: Any = None, eval_envs: Any = None, make_env: Callable[..., Env | CompiledEnv] | None = None, make_network: Any = None, make_encoder: Any = None, preset: bool = True, quiet: bool = False, overwrite: bool = False, notices: Sequence[str] = (), **settings: Unpack[PpoSettings]) -> dict[str, Any]: ...
@overload
def train(algorithm: Literal['trpo'] | trpo.Config, env: str | EnvConfig | None = None, *, seeds: int | None = None, sweep: Mapping[str, Iterable[Any]] | None = None, jobs: int | None = None, envs: Any = None, eval_envs: Any = None, make_env: Callable[..., Env | CompiledEnv] | None = None, make_network: Any = None, make_encoder: Any = None, preset: bool = True, quiet: bool = False, overwrite: bool = False, notices: Sequence[str] = (), **settings: Unpack[TrpoSettings]) -> dict[str, Any]: ...
@overload
def train(algorithm: Literal['dqn'] | dqn.Config, env: str | EnvConfig | None = None, *, seeds: int | None = None, sweep: Mapping[str, Iterable[Any]] | None = None, jobs: int | None = None, envs: Any = None, eval_envs: Any = None, make_env: Callable[..., Env | CompiledEnv] | None = None, make_network: Any = None, make_encoder: Any = None, preset: bool = True, quiet: bool = False, overwrite: bool = False, notices: Sequence[str] = (), **settings: Unpack[DqnSettings]) -> dict[str, Any]: ...
@overload
def train(algorithm: Literal['dpg'] | dpg.Config, env: str | EnvConfig | None = None, *, seeds: int | None = None, sweep: Mapping[str, Iterable[Any]] | None = None, jobs: int | None = None, envs: Any = None, eval_envs: Any = None, make_env: Callable[..., Env | CompiledEnv] | None = None, make_network: Any = None, make_encoder: Any = None, preset: bool = True, quiet: bool = False, overwrite: bool = False, notices: Sequence[str] = (), **settings: Unpack[DpgSettings]) -> dict[str, Any]: ...
@overload
def train(algorithm: Literal['ddpg'] | ddpg.Config, env: str | EnvConfig | None = None, *, seeds: int | None = None, sweep: Mapping[str, Iterable[Any]] | None = None, jobs: int | None = None, envs: Any = None, eval_envs: Any = None, make_env: Callable[..., Env | CompiledEnv] | None = None, make_network: Any = None, make_encoder: Any = None, preset: bool = True, quiet: bool = False, overwrite: bool = False, notices: Sequence[str] = (), **settings: Unpack[DdpgSettings]) -> dict[str, Any]: ...
@overload
def train(algorithm: Literal['td3'] | td3.Config, env: str | EnvConfig | None = None, *, seeds: int | None = None, sweep: Mapping[str, Iterable[Any]] | None = None, jobs: int | None = None, envs: Any = None, eval_envs: Any = None, make_env: Callable[..., Env | CompiledEnv] | None = None, make_network: Any = None, make_encoder: Any = None, preset: bool = True, quiet: bool = False, overwrite: bool = False, notices: Sequence[str] = (), **settings: Unpack[Td3Settings]) -> dict[str, Any]: ...
@overload
def train(algorithm: Literal['sac'] | sac.Config, env: str | EnvConfig | None = None, *, seeds: int | None = None, sweep: Mapping[str, Iterable[Any]] | None = None, jobs: int | None = None, envs: Any = None, eval_envs: Any = None, make_env: Callable[..., Env | CompiledEnv] | None = None, make_network: Any = None, make_encoder: Any = None, preset: bool = True, quiet: bool = False, overwrite: bool = False, notices: Sequence[str] = (), **settings: Unpack[SacSettings]) -> dict[str, Any]: ...
@overload
def train(algorithm: Literal['a3c'] | a3c.Config, env: str | EnvConfig | None = None, *, seeds: int | None = None, sweep: Mapping[str, Iterable[Any]] | None = None, jobs: int | None = None, envs: Any = None, eval_envs: Any = None, make_env: Callable[..., Env | CompiledEnv] | None = None, make_network: Any = None, make_encoder: Any = None, preset: bool = True, quiet: bool = False, overwrite: bool = False, notices: Sequence[str] = (), **settings: Unpack[A3CSettings]) -> dict[str, Any]: ...
@overload
def train(algorithm: Literal['async-q'] | async_q.Config, env: str | EnvConfig | None = None, *, seeds: int | None = None, sweep: Mapping[str, Iterable[Any]] | None = None, jobs: int | None = None, envs: Any = None, eval_envs: Any = None, make_env: Callable[..., Env | CompiledEnv] | None = None, make_network: Any = None, make_encoder: Any = None, preset: bool = True, quiet: bool = False, overwrite: bool = False, notices: Sequence[str] = (), **settings: Unpack[AsyncQSettings]) -> dict[str, Any]: ...
@overload
def train(algorithm: Literal['async-sarsa'] | async_sarsa.Config, env: str | EnvConfig | None = None, *, seeds: int | None = None, sweep: Mapping[str, Iterable[Any]] | None = None, jobs: int | None = None, envs: Any = None, eval_envs: Any = None, make_env: Callable[..., Env | CompiledEnv] | None = None, make_network: Any = None, make_encoder: Any = None, preset: bool = True, quiet: bool = False, overwrite: bool = False, notices: Sequence[str] = (), **settings: Unpack[AsyncSarsaSettings]) -> dict[str, Any]: ...
@overload
def train(algorithm: Literal['async-nstep-q'] | async_nstep_q.Config, env: str | EnvConfig | None = None, *, seeds: int | None = None, sweep: Mapping[str, Iterable[Any]] | None = None, jobs: int | None = None, envs: Any = None, eval_envs: Any = None, make_env: Callable[..., Env | CompiledEnv] | None = None, make_network: Any = None, make_encoder: Any = None, preset: bool = True, quiet: bool = False, overwrite: bool = False, notices: Sequence[str] = (), **settings: Unpack[AsyncNstepQSettings]) -> dict[str, Any]: ...
@overload
def train(algorithm: Literal['acer'] | acer.Config, env: str | EnvConfig | None = None, *, seeds: int | None = None, sweep: Mapping[str, Iterable[Any]] | None = None, jobs: int | None = None, envs: Any = None, eval_envs: Any = None, make_env: Callable[..., Env | CompiledEnv] | None = None, make_network: Any = None, make_encoder: Any = None, preset: bool = True, quiet: bool = False, overwrite: bool = False, notices: Sequence[str] = (), **settings: Unpack[AcerSettings]) -> dict[str, Any]: ...
@overload
def train(algorithm: Literal['qr-dqn'] | qr_dqn.Config, env: str | EnvConfig | None = None, *, seeds: int | None = None, sweep: Mapping[str, Iterable[Any]] | None = None, jobs: int | None = None, envs: Any = None, eval_envs: Any = None, make_env: Callable[..., Env | CompiledEnv] | None = None, make_network: Any = None, make_encoder: Any = None, preset: bool = True, quiet: bool = False, overwrite: bool = False, notices: Sequence[str] = (), **settings: Unpack[QrDqnSettings]) -> dict[str, Any]: ...
@overload
def train(algorithm: Literal['c51'] | c51.Config, env: str | EnvConfig | None = None, *, seeds: int | None = None, sweep: Mapping[str, Iterable[Any]] | None = None, jobs: int | None = None, envs: Any = None, eval_envs: Any = None, make_env: Callable[..., Env | CompiledEnv] | None = None, make_network: Any = None, make_encoder: Any = None, preset: bool = True, quiet: bool = False, overwrite: bool = False, notices: Sequence[str] = (), **settings: Unpack[C51Settings]) -> dict[str, Any]: ...
@overload
def train(algorithm: str | AnyConfig, env: str | EnvConfig | None = None, *, seeds: int | None = None, sweep: Mapping[str, Iterable[Any]] | None = None, jobs: int | None = None, envs: Any = None, eval_envs: Any = None, make_env: Callable[..., Env | CompiledEnv] | None = None, make_network: Any = None, make_encoder: Any = None, preset: bool = True, quiet: bool = False, overwrite: bool = False, notices: Sequence[str] = (), **settings: Unpack[Settings]) -> dict[str, Any]: ...

@overload
def tune(algorithm: Literal['reinforce'] | reinforce.Config, env: str | EnvConfig | None = None, *, minutes: float | None = None, trials: int | None = None, seeds: int = 2, final_seeds: int = 5, rungs: int = 3, sampler: Literal['tpe', 'random'] = 'tpe', search: Iterable[str] = (), fix: Iterable[str] = (), preset: bool = True, search_seed: int = 0, jobs: int | None = None, make_env: Callable[..., Env | CompiledEnv] | None = None, quiet: bool = False, **settings: Unpack[ReinforceSettings]) -> dict[str, Any]:
    """Search for the settings with the highest return; the content of result.json.

    `minutes` of wall clock or a number of `trials` end the search. Trials are trained on `seeds`
    seeds each and compared at `rungs` numbers of steps; 1: every trial is trained to the end. The
    winner is trained again on `final_seeds` other seeds (0: not at all), beside the settings to
    begin with, which are the preset's, or the defaults without `preset`. `search` and `fix` change
    what is searched, as on the command line: `search=["learning_rate=1e-4:1e-2"]`. The others are
    the settings of `birl.train`. A search in the same directory that was stopped is continued."""
@overload
def tune(algorithm: Literal['qac'] | qac.Config, env: str | EnvConfig | None = None, *, minutes: float | None = None, trials: int | None = None, seeds: int = 2, final_seeds: int = 5, rungs: int = 3, sampler: Literal['tpe', 'random'] = 'tpe', search: Iterable[str] = (), fix: Iterable[str] = (), preset: bool = True, search_seed: int = 0, jobs: int | None = None, make_env: Callable[..., Env | CompiledEnv] | None = None, quiet: bool = False, **settings: Unpack[QacSettings]) -> dict[str, Any]: ...
@overload
def tune(algorithm: Literal['a2c'] | a2c.Config, env: str | EnvConfig | None = None, *, minutes: float | None = None, trials: int | None = None, seeds: int = 2, final_seeds: int = 5, rungs: int = 3, sampler: Literal['tpe', 'random'] = 'tpe', search: Iterable[str] = (), fix: Iterable[str] = (), preset: bool = True, search_seed: int = 0, jobs: int | None = None, make_env: Callable[..., Env | CompiledEnv] | None = None, quiet: bool = False, **settings: Unpack[A2CSettings]) -> dict[str, Any]: ...
@overload
def tune(algorithm: Literal['ppo'] | ppo.Config, env: str | EnvConfig | None = None, *, minutes: float | None = None, trials: int | None = None, seeds: int = 2, final_seeds: int = 5, rungs: int = 3, sampler: Literal['tpe', 'random'] = 'tpe', search: Iterable[str] = (), fix: Iterable[str] = (), preset: bool = True, search_seed: int = 0, jobs: int | None = None, make_env: Callable[..., Env | CompiledEnv] | None = None, quiet: bool = False, **settings: Unpack[PpoSettings]) -> dict[str, Any]: ...
@overload
def tune(algorithm: Literal['trpo'] | trpo.Config, env: str | EnvConfig | None = None, *, minutes: float | None = None, trials: int | None = None, seeds: int = 2, final_seeds: int = 5, rungs: int = 3, sampler: Literal['tpe', 'random'] = 'tpe', search: Iterable[str] = (), fix: Iterable[str] = (), preset: bool = True, search_seed: int = 0, jobs: int | None = None, make_env: Callable[..., Env | CompiledEnv] | None = None, quiet: bool = False, **settings: Unpack[TrpoSettings]) -> dict[str, Any]: ...
@overload
def tune(algorithm: Literal['dqn'] | dqn.Config, env: str | EnvConfig | None = None, *, minutes: float | None = None, trials: int | None = None, seeds: int = 2, final_seeds: int = 5, rungs: int = 3, sampler: Literal['tpe', 'random'] = 'tpe', search: Iterable[str] = (), fix: Iterable[str] = (), preset: bool = True, search_seed: int = 0, jobs: int | None = None, make_env: Callable[..., Env | CompiledEnv] | None = None, quiet: bool = False, **settings: Unpack[DqnSettings]) -> dict[str, Any]: ...
@overload
def tune(algorithm: Literal['dpg'] | dpg.Config, env: str | EnvConfig | None = None, *, minutes: float | None = None, trials: int | None = None, seeds: int = 2, final_seeds: int = 5, rungs: int = 3, sampler: Literal['tpe', 'random'] = 'tpe', search: Iterable[str] = (), fix: Iterable[str] = (), preset: bool = True, search_seed: int = 0, jobs: int | None = None, make_env: Callable[..., Env | CompiledEnv] | None = None, quiet: bool = False, **settings: Unpack[DpgSettings]) -> dict[str, Any]: ...
@overload
def tune(algorithm: Literal['ddpg'] | ddpg.Config, env: str | EnvConfig | None = None, *, minutes: float | None = None, trials: int | None = None, seeds: int = 2, final_seeds: int = 5, rungs: int = 3, sampler: Literal['tpe', 'random'] = 'tpe', search: Iterable[str] = (), fix: Iterable[str] = (), preset: bool = True, search_seed: int = 0, jobs: int | None = None, make_env: Callable[..., Env | CompiledEnv] | None = None, quiet: bool = False, **settings: Unpack[DdpgSettings]) -> dict[str, Any]: ...
@overload
def tune(algorithm: Literal['td3'] | td3.Config, env: str | EnvConfig | None = None, *, minutes: float | None = None, trials: int | None = None, seeds: int = 2, final_seeds: int = 5, rungs: int = 3, sampler: Literal['tpe', 'random'] = 'tpe', search: Iterable[str] = (), fix: Iterable[str] = (), preset: bool = True, search_seed: int = 0, jobs: int | None = None, make_env: Callable[..., Env | CompiledEnv] | None = None, quiet: bool = False, **settings: Unpack[Td3Settings]) -> dict[str, Any]: ...
@overload
def tune(algorithm: Literal['sac'] | sac.Config, env: str | EnvConfig | None = None, *, minutes: float | None = None, trials: int | None = None, seeds: int = 2, final_seeds: int = 5, rungs: int = 3, sampler: Literal['tpe', 'random'] = 'tpe', search: Iterable[str] = (), fix: Iterable[str] = (), preset: bool = True, search_seed: int = 0, jobs: int | None = None, make_env: Callable[..., Env | CompiledEnv] | None = None, quiet: bool = False, **settings: Unpack[SacSettings]) -> dict[str, Any]: ...
@overload
def tune(algorithm: Literal['a3c'] | a3c.Config, env: str | EnvConfig | None = None, *, minutes: float | None = None, trials: int | None = None, seeds: int = 2, final_seeds: int = 5, rungs: int = 3, sampler: Literal['tpe', 'random'] = 'tpe', search: Iterable[str] = (), fix: Iterable[str] = (), preset: bool = True, search_seed: int = 0, jobs: int | None = None, make_env: Callable[..., Env | CompiledEnv] | None = None, quiet: bool = False, **settings: Unpack[A3CSettings]) -> dict[str, Any]: ...
@overload
def tune(algorithm: Literal['async-q'] | async_q.Config, env: str | EnvConfig | None = None, *, minutes: float | None = None, trials: int | None = None, seeds: int = 2, final_seeds: int = 5, rungs: int = 3, sampler: Literal['tpe', 'random'] = 'tpe', search: Iterable[str] = (), fix: Iterable[str] = (), preset: bool = True, search_seed: int = 0, jobs: int | None = None, make_env: Callable[..., Env | CompiledEnv] | None = None, quiet: bool = False, **settings: Unpack[AsyncQSettings]) -> dict[str, Any]: ...
@overload
def tune(algorithm: Literal['async-sarsa'] | async_sarsa.Config, env: str | EnvConfig | None = None, *, minutes: float | None = None, trials: int | None = None, seeds: int = 2, final_seeds: int = 5, rungs: int = 3, sampler: Literal['tpe', 'random'] = 'tpe', search: Iterable[str] = (), fix: Iterable[str] = (), preset: bool = True, search_seed: int = 0, jobs: int | None = None, make_env: Callable[..., Env | CompiledEnv] | None = None, quiet: bool = False, **settings: Unpack[AsyncSarsaSettings]) -> dict[str, Any]: ...
@overload
def tune(algorithm: Literal['async-nstep-q'] | async_nstep_q.Config, env: str | EnvConfig | None = None, *, minutes: float | None = None, trials: int | None = None, seeds: int = 2, final_seeds: int = 5, rungs: int = 3, sampler: Literal['tpe', 'random'] = 'tpe', search: Iterable[str] = (), fix: Iterable[str] = (), preset: bool = True, search_seed: int = 0, jobs: int | None = None, make_env: Callable[..., Env | CompiledEnv] | None = None, quiet: bool = False, **settings: Unpack[AsyncNstepQSettings]) -> dict[str, Any]: ...
@overload
def tune(algorithm: Literal['acer'] | acer.Config, env: str | EnvConfig | None = None, *, minutes: float | None = None, trials: int | None = None, seeds: int = 2, final_seeds: int = 5, rungs: int = 3, sampler: Literal['tpe', 'random'] = 'tpe', search: Iterable[str] = (), fix: Iterable[str] = (), preset: bool = True, search_seed: int = 0, jobs: int | None = None, make_env: Callable[..., Env | CompiledEnv] | None = None, quiet: bool = False, **settings: Unpack[AcerSettings]) -> dict[str, Any]: ...
@overload
def tune(algorithm: Literal['qr-dqn'] | qr_dqn.Config, env: str | EnvConfig | None = None, *, minutes: float | None = None, trials: int | None = None, seeds: int = 2, final_seeds: int = 5, rungs: int = 3, sampler: Literal['tpe', 'random'] = 'tpe', search: Iterable[str] = (), fix: Iterable[str] = (), preset: bool = True, search_seed: int = 0, jobs: int | None = None, make_env: Callable[..., Env | CompiledEnv] | None = None, quiet: bool = False, **settings: Unpack[QrDqnSettings]) -> dict[str, Any]: ...
@overload
def tune(algorithm: Literal['c51'] | c51.Config, env: str | EnvConfig | None = None, *, minutes: float | None = None, trials: int | None = None, seeds: int = 2, final_seeds: int = 5, rungs: int = 3, sampler: Literal['tpe', 'random'] = 'tpe', search: Iterable[str] = (), fix: Iterable[str] = (), preset: bool = True, search_seed: int = 0, jobs: int | None = None, make_env: Callable[..., Env | CompiledEnv] | None = None, quiet: bool = False, **settings: Unpack[C51Settings]) -> dict[str, Any]: ...
@overload
def tune(algorithm: str | AnyConfig, env: str | EnvConfig | None = None, *, minutes: float | None = None, trials: int | None = None, seeds: int = 2, final_seeds: int = 5, rungs: int = 3, sampler: Literal['tpe', 'random'] = 'tpe', search: Iterable[str] = (), fix: Iterable[str] = (), preset: bool = True, search_seed: int = 0, jobs: int | None = None, make_env: Callable[..., Env | CompiledEnv] | None = None, quiet: bool = False, **settings: Unpack[Settings]) -> dict[str, Any]: ...

def fork(run: str | Path, at: int | Literal['best'] | None = None, *, seeds: int | None = None, sweep: Mapping[str, Iterable[Any]] | None = None, jobs: int | None = None, envs: Any = None, eval_envs: Any = None, make_env: Callable[..., Env | CompiledEnv] | None = None, make_network: Any = None, make_encoder: Any = None, trust: bool = False, env: str | None = None, quiet: bool = False, overwrite: bool = False, pause_at: int | None = None, **settings: Unpack[AnySettings]) -> dict[str, Any]:
    """Train a fork of a run to its end; the content of its summary.json.

    `birl.fork("runs/mine", at=50_000, learning_rate=1e-4)` begins with that checkpoint of
    runs/mine, which stays as it is. The options are those of `birl.open_fork`, of which this is the
    loop with an empty body.

    With `seeds` or `sweep` it is a group of forks, as `birl.train` makes groups of runs. The first
    seed is that of the run and continues it exactly; the others are other continuations. If `run`
    is a group, each of its runs is forked."""

def open_fork(run: str | Path, at: int | Literal['best'] | None = None, *, envs: Any = None, eval_envs: Any = None, make_env: Callable[..., Env | CompiledEnv] | None = None, make_network: Any = None, make_encoder: Any = None, trust: bool = False, env: str | None = None, quiet: bool = False, overwrite: bool = False, pause_at: int | None = None, **settings: Unpack[AnySettings]) -> Run:
    """A new run that begins with a checkpoint of another, to be trained in a loop of your own.

    `at` is the checkpoint: its environment steps, "best", or None for the newest. The fork has the
    State, environments, replay and random keys of that checkpoint. `settings` are changed by the
    names of the command line's options. Another `seed` is another continuation: new random keys
    and new episodes. The other options are those of `birl.reopen` and `birl.start`."""

def resume(run_dir: str | Path, total_steps: int | None = None, *, jobs: int | None = None, ray_address: str | None = None, workers: int | None = None, envs: Any = None, eval_envs: Any = None, make_env: Callable[..., Env | CompiledEnv] | None = None, make_network: Any = None, make_encoder: Any = None, trust: bool = False, env: str | None = None, quiet: bool = False, pause_at: int | None = None) -> dict[str, Any]:
    """Continue a run from its newest undamaged checkpoint, as if it had not stopped; its summary.

    The options are those of `birl.reopen`, of which this is the loop with an empty body. Of a group
    of runs, every one that has not finished is continued, `jobs` at once: in processes here, or as
    tasks of the Ray cluster at `ray_address`."""
