"""Errors and warnings that a user can act on, and suggestions for unknown names.

Each message says what was wrong, with the value, and what to do. Names of settings and algorithms
from Stable-Baselines3, CleanRL and the papers are in tables. They are no aliases: a setting has one
name. Other names are compared by their letters.
"""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from difflib import get_close_matches

LONGEST_VALUE = 200  # characters of a value in a message
TERMINAL_CODES = re.compile(r"\x1b\[[0-9;]*m")

_is_command: ContextVar[bool] = ContextVar("is_command", default=False)


class ConfigError(ValueError):
    """A setting cannot work; the message names the field, the value and what to use instead."""


class CheckpointError(RuntimeError):
    """A checkpoint or another file of a run is damaged, missing, or does not fit."""


class UnreadableError(CheckpointError):
    """A checkpoint that may be intact but cannot be read now.

    Another version of Birl wrote it, or the disk or the memory refused to read it.
    """


class RunDirectoryError(RuntimeError):
    """The directory of a run was removed, moved or replaced while the run was writing to it."""


class NonFiniteError(RuntimeError):
    """A NaN or infinity where a finite number is needed; training on it would ruin the network."""


class EnvError(ValueError):
    """An environment broke its spaces or Gymnasium's rules; restarting it would not help."""


class InexactResume(UserWarning):
    """A resumed run differs from the uninterrupted one: some environments start new episodes."""


def install_extra(extra: str) -> str:
    """How to install an extra. Birl is not on PyPI yet, so that is done in a clone."""
    return f"pip install '.[{extra}]' in a clone of Birl"


def cut(value: object) -> str:
    """A value for a message: its repr in one line, cut if it is long."""
    text = " ".join(repr(value).split())
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}..."


def printable(text: str) -> str:
    """The text without codes for the terminal: a run's files may come from somebody else."""
    return "".join(character if character.isprintable() else "?" for character in text)


def printable_lines(text: str) -> str:
    """The text without codes for the terminal, in its lines."""
    return "\n".join(map(printable, text.split("\n")))


@contextmanager
def on_command_line() -> Iterator[None]:
    """Within it, messages name what the command line has."""
    before = _is_command.set(True)
    try:
        yield
    finally:
        _is_command.reset(before)


def by_use(python: str, command: str) -> str:
    """A remedy by its name in Python or on the command line, whichever is used."""
    return command if _is_command.get() else python


def require(condition: bool, message: str) -> None:
    """Raise ConfigError with this message unless the condition holds."""
    if not condition:
        raise ConfigError(message)


@contextmanager
def snapshot_errors() -> Iterator[None]:
    """Raise CheckpointError if a snapshot lacks a value that is read from it, or has a bad one."""
    try:
        yield
    except EnvError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as problem:
        raise CheckpointError(f"the checkpoint's snapshot does not fit this run: {problem!r}") from problem


def plain_warning(message: Warning | str) -> str:
    """The text of a warning, without the colours and the prefix that Gymnasium adds."""
    return TERMINAL_CODES.sub("", str(message)).removeprefix("WARN: ")


# Names of a setting elsewhere, and what it is called here. Where algorithms differ, the groups are
# tried from left to right; a group is what to set together.
_RATES = ("learning_rate", "actor_learning_rate critic_learning_rate")
ELSEWHERE: dict[str, tuple[str, ...]] = {
    "lr learning_rate adam_lr step_size": _RATES,
    "anneal_lr lr_schedule": _RATES,
    "policy_lr actor_lr pi_lr lr_actor": ("actor_learning_rate", "learning_rate"),
    "q_lr critic_lr qf_learning_rate vf_lr lr_critic": ("critic_learning_rate", "learning_rate"),
    "gamma discount_factor": ("discount",),
    "lam lambda gae_lam gae tau_gae": ("gae_lambda",),
    "n_steps num_steps nsteps horizon steps_per_epoch": ("n_step", "rollout_length"),
    "rollout_steps rollout_fragment_length n_rollout_steps": ("rollout_length",),
    "timesteps total_timesteps n_timesteps num_timesteps max_timesteps steps num_env_steps frames": ("total_steps",),
    "batch_size minibatch_size sgd_minibatch_size mini_batch_size": ("batch_size", "minibatches", "rollout_length"),
    "num_minibatches n_minibatches nminibatches num_mini_batch": ("minibatches",),
    "n_epochs num_epochs update_epochs noptepochs num_sgd_iter ppo_epoch": ("epochs",),
    "n_envs num_env nenvs num_processes": ("num_envs",),
    "num_workers n_workers num_cpu n_cpu n_procs vec_env_class": ("workers",),
    "clip_coef cliprange clip_param eps_clip clip_ratio clip clip_epsilon": ("clip_range",),
    "clip_range_vf clip_vloss vf_clip_param value_clip_range": ("value_clip",),
    "ent_coef entropy_coef entropy_coeff entropy_loss_weight ent_weight entropy": ("entropy_weight", "temperature"),
    "vf_coef value_coef value_loss_coef vf_loss_coeff vf_weight": ("value_weight",),
    "alpha autotune init_alpha alpha_lr": ("temperature temperature_learning_rate", "rmsprop_decay"),
    "normalize_advantage norm_adv advantage_normalization": ("normalize_advantages",),
    "normalize": ("normalize_observations normalize_rewards",),
    "norm_obs normalize_obs obs_norm normalize_observation": ("normalize_observations",),
    "norm_reward normalize_reward rew_norm norm_rewards": ("normalize_rewards",),
    "clip_reward reward_clip": ("clip_rewards",),
    "grad_clip clip_grad_norm gradient_clip grad_norm_clip": ("max_grad_norm",),
    "adam_eps rms_prop_eps rmsprop_eps opt_eps": ("optimizer_epsilon",),
    "use_rms_prop optimizer_class": ("optimizer",),
    "tau polyak soft_tau": ("target_rate",),
    "buffer_size replay_buffer_size memory_size buffer_capacity replay_capacity": ("replay_size",),
    "train_freq train_frequency": ("rollout_length",),
    "gradient_steps utd utd_ratio policy_frequency_ratio": ("update_ratio",),
    "target_update_interval target_network_frequency target_update_freq": ("target_every",),
    "start_timesteps warmup_steps start_steps random_steps learning_start": ("learning_starts",),
    "exploration_initial_eps exploration_final_eps exploration_fraction start_e end_e epsilon eps": (
        "exploration",
        "final_explorations exploration_fraction",
    ),
    "action_noise expl_noise noise_std exploration_std": ("exploration_noise",),
    "policy_noise target_policy_noise": ("target_noise",),
    "noise_clip": ("target_noise_clip",),
    "policy_frequency policy_freq actor_delay": ("policy_delay",),
    "double_q ddqn": ("double",),
    "prioritized_replay per prioritised": ("prioritized",),
    "prioritized_replay_alpha per_alpha": ("priority_exponent",),
    "prioritized_replay_beta per_beta": ("priority_correction",),
    "target_kl delta kl_target": ("max_kl",),
    "cg_max_steps cg_iters": ("cg_steps",),
    "line_search_shrinking_factor": ("backtrack_factor",),
    "line_search_max_iter": ("backtrack_tries",),
    "policy_kwargs net_arch": ("hidden_sizes activation",),
    "hidden_size hidden_dim hidden_units layers hidden fc_size": ("hidden_sizes",),
    "activation_fn activation_function nonlinearity": ("activation",),
    "policy features_extractor_class features_extractor feature_extractor network": ("encoder",),
    "share_features_extractor shared vf_share_layers": ("share_trunk",),
    "lstm gru recurrent use_lstm rnn": ("core",),
    "lstm_hidden_size rnn_size gru_size": ("core_size",),
    "log_std_init init_log_std": ("log_std",),
    "use_sde sde": ("gsde",),
    "stack_size n_stack framestack frame_stack num_stack": ("frame_stack", "stacked_frames"),
    "frameskip action_repeat": ("frame_skip",),
    "noops": ("noop_max",),
    "terminal_on_life_loss": ("episodic_life",),
    "repeat_action_probability": ("sticky_actions",),
    "env_kwargs environment_kwargs": ("kwargs",),
    "env_wrapper wrapper wrappers wrapper_class wrapper_kwargs": ("wrapper", "wrappers"),
    "time_limit episode_length max_ep_len max_episode_length": ("max_episode_steps",),
    "eval_freq eval_interval evaluation_interval eval_frequency": ("eval_every",),
    "n_eval_episodes num_eval_episodes eval_eps": ("eval_episodes",),
    "deterministic deterministic_eval": ("eval_deterministic",),
    "reward_threshold target_reward": ("stop_at_return",),
    "save_freq save_every checkpoint_freq save_interval checkpoint_interval": ("checkpoint_every",),
    "log_interval log_freq": ("log_every",),
    "tensorboard_log tb use_tensorboard": ("tensorboard",),
    "track wandb_project wandb_project_name": ("wandb",),
    "capture_video video_freq record_every record_video": ("video_every",),
    "out output outdir out_dir log_dir logdir log_folder save_dir save_path exp_name experiment_name run_name": (
        "run_dir",
    ),
    "random_seed rng_seed": ("seed",),
}
# What a setting here is, where its value is not that of the other name.
NOTES = {
    "anneal_lr": "write a schedule, for example linear:3e-4:0",
    "lr_schedule": "write a schedule, for example linear:3e-4:0",
    "minibatches": "a minibatch has rollout_length x num_envs / minibatches steps",
    "rollout_length": "steps of each environment between updates",
    "update_ratio": "gradient steps for each environment step",
    "polyak": "target_rate is 1 - polyak",
    "exploration": "ε, for example linear:1:0.05:0.2",
}
NOT_HERE = {
    "device": "JAX chooses the device; JAX_PLATFORMS=cpu in the environment forces the CPU",
    "cuda": "JAX chooses the device; JAX_PLATFORMS=cpu in the environment forces the CPU",
    "torch_deterministic": "the same seed always gives the same run",
    "verbose": "a run shows its progress; quiet=True in Python silences it",
    "progress_bar": "a run shows its progress; quiet=True in Python silences it",
    "callback": "a callback is the body of your own loop: with birl.start(...) as run: for update in run: ...",
    "eval_env": "evaluations make their environments from the settings; only envs= needs eval_envs= beside it",
    "norm_obs_keys": "normalize_observations takes all parts of numbers; or scale single parts in a wrapper",
    "stats_window_size": "the training return is always a mean over the last 20 episodes",
    "env": "the environment is the word after the algorithm: ppo CartPole-v1",
    "id": "the environment is the word after the algorithm: ppo CartPole-v1",
    "env_id": "the environment is the word after the algorithm: ppo CartPole-v1",
    "algo": "the algorithm is the first word: ppo CartPole-v1",
}
VARIANTS = {  # algorithms that are settings here
    "recurrentppo": "ppo with core lstm",
    "ppolstm": "ppo with core lstm",
    "maskableppo": "ppo, which reads action masks by itself",
    "ppo1": "ppo",
    "ppo2": "ppo",
    "doubledqn": "dqn with double",
    "ddqn": "dqn with double",
    "duelingdqn": "dqn with dueling",
    "rainbow": "dqn with double, dueling, prioritized and n_step 3",
    "drqn": "dqn with core lstm",
    "apex": "dqn with prioritized",
    "vpg": "reinforce",
    "policygradient": "reinforce",
    "pg": "reinforce",
    "actorcritic": "a2c",
    "qlearning": "dqn or async-q",
    "sarsa": "async-sarsa",
}
SIMILAR = 0.75  # the least similarity of a name with a typing error, 0 to 1

_BY_NAME = {name: groups for names, groups in ELSEWHERE.items() for name in names.split()}


def suggest_setting(name: str, known: Iterable[str]) -> str:
    """A suggestion for an unknown setting: "you may mean discount"; "" if nothing is near.

    `known` are the settings that there are. Names may be written with - or _.
    """
    name = _plain(name)
    settings = {_plain(one): one for one in known}
    groups = [group.split() for group in _BY_NAME.get(name, ())]
    found = next((there for group in groups if (there := [settings[one] for one in group if one in settings])), [])
    if found:
        note = NOTES.get(name) or NOTES.get(_plain(found[0]))
        return f"you may mean {' and '.join(found)}" + (f": {note}" if note else "")
    if name in NOT_HERE:
        return NOT_HERE[name]
    if groups:
        return ""  # known elsewhere, and not a typing error
    near = get_close_matches(name, settings, n=1, cutoff=SIMILAR)
    return f"you may mean {settings[near[0]]}" if near else ""


def suggest_algorithm(name: str, known: Iterable[str]) -> str:
    """A suggestion for an unknown algorithm: "you may mean ppo"; "" if nothing is near."""
    folded = re.sub(r"[\W_]", "", name.casefold())
    algorithms = {re.sub(r"\W", "", one): one for one in known}
    if folded in algorithms or folded in VARIANTS:
        return f"you may mean {algorithms.get(folded) or VARIANTS[folded]}"
    near = get_close_matches(folded, algorithms, n=2, cutoff=0.7)
    return f"you may mean {' or '.join(algorithms[one] for one in near)}" if near else ""


def _plain(name: str) -> str:
    """A name without dashes, capitals and the part of the settings that it is in."""
    return name.lstrip("-").replace("-", "_").rpartition(".")[2].casefold()
