"""Checks of settings. Each raises ConfigError with the field, its value and what to use instead.

A field has the same meaning, and the same range, in every algorithm that has it: `discount` always
lies in [0, 1]. `validate_settings` looks up the range of each field by its name. Rules of one
algorithm only are in that algorithm's own `validate`.
"""

import dataclasses
import typing
from math import isclose
from typing import Any, Protocol

from birl.config import ConfigError, EnvConfig, RunConfig, require
from birl.env_checks import require_importable, validate_env
from birl.functions import function_named, is_local

# Which range a field has, by its name.
AT_LEAST_ONE = {
    "rollout_length", "epochs", "minibatches", "batch_size", "frame_stack", "n_step", "target_every", "policy_delay",
    "cg_steps", "fisher_every", "backtrack_tries", "num_features", "advantage_samples", "actor_learners",
    "report_every", "gsde_every",
}  # fmt: skip
FRACTIONS = {"discount", "gae_lambda", "target_rate", "priority_exponent", "average_decay"}
POSITIVE = {
    "max_grad_norm", "optimizer_epsilon", "target_kl", "value_clip", "penalty_target_kl", "penalty_weight", "max_kl",
    "update_ratio", "temperature", "noise_rate", "noise_time_step", "feature_scale", "importance_truncation",
    "trust_region", "target_rate",
}  # fmt: skip
NOT_NEGATIVE = {
    "learning_rate", "actor_learning_rate", "critic_learning_rate", "value_learning_rate", "temperature_learning_rate",
    "clip_range", "exploration_noise", "target_noise", "target_noise_clip", "priority_correction", "replay_size",
    "replay_ratio", "learning_starts", "cg_damping",
}  # fmt: skip
SIZES = {"core_size", "hidden_sizes", "policy_hidden_sizes", "value_hidden_sizes"}  # of layers
OF_OWN_TRUNKS = {  # settings of the policy or the value alone, and what to use with a shared trunk
    "policy_hidden_sizes": "hidden_sizes",
    "value_hidden_sizes": "hidden_sizes",
    "value_learning_rate": "learning_rate",
}
MOST_UNITS = 2**31  # in a layer; and the limit of every number that counts something


class ExplorationSettings(Protocol):
    """The settings that say how often actor-learners act at random."""

    @property
    def final_explorations(self) -> tuple[float, ...]: ...
    @property
    def exploration_chances(self) -> tuple[float, ...]: ...
    @property
    def exploration_fraction(self) -> float: ...


class ReplaySettings(Protocol):
    """The settings that say when an algorithm begins to learn from its replay."""

    @property
    def run(self) -> RunConfig: ...
    @property
    def learning_starts(self) -> int: ...


class ActorLearnerSettings(Protocol):
    """The settings of an algorithm whose actor-learners have environments of their own."""

    @property
    def env(self) -> EnvConfig: ...
    @property
    def pool(self) -> str: ...


def validate_settings(config: Any, kind: type) -> None:
    """Check the environments, and each field whose range is known by its name."""
    require_config(config, kind)
    validate_env(config.env)
    for field in dataclasses.fields(config):
        value = vars(config)[field.name]
        optional = type(None) in typing.get_args(field.type)
        if value is None and optional:
            continue
        if field.name in AT_LEAST_ONE:
            require(value >= 1, f"{field.name} {value} must be at least 1")
            require(value < MOST_UNITS, f"{field.name} {value:,} must be below {MOST_UNITS:,}")
        if field.name in FRACTIONS:
            require(0 <= value <= 1, f"{field.name} {value} must lie in [0, 1]")
        if field.name in POSITIVE:
            remedy = ", or None to switch it off" if optional else f"; {field.default:g} is usual"
            require(lowest(value) > 0, f"{field.name} {lowest(value)} must be positive{remedy}")
        if field.name in NOT_NEGATIVE:
            require(lowest(value) >= 0, f"{field.name} {lowest(value)} must not be negative")
        if field.name == "exploration":
            require_probability(field.name, value)
        if field.name == "prefill":
            wrong = f"prefill {value!r} must name an .npz file, or a Minari dataset as minari:DATASET-ID"
            require(value.endswith(".npz") or (value.startswith("minari:") and len(value) > 7), wrong)
        if field.name == "rmsprop_decay":
            require(0 <= value < 1, f"rmsprop_decay {value} must lie in [0, 1); 0.99 is usual")
        if field.name in SIZES:
            sizes = value if isinstance(value, tuple) else (value,)
            each = "each be" if isinstance(value, tuple) else "be"
            fits = all(0 < size < MOST_UNITS for size in sizes)
            require(fits, f"{field.name} {value} must {each} at least 1, and below {MOST_UNITS:,}")
        if field.name == "encoder" and ":" in value:
            _require_encoder(config)
        if field.name in OF_OWN_TRUNKS:
            _require_own_trunk(config, field.name)


def _require_encoder(config: Any) -> None:
    """Raise ConfigError if an encoder of the user's own is not found, or not where it is needed."""
    function_named(config.encoder, "encoder")
    if not is_local(config.encoder):
        return
    wrong = f"encoder {config.encoder!r} is a function that only this process has"
    remedy = "put it into a module that can be imported"
    pool = vars(config).get("pool")
    within = pool not in ("processes", "ray")
    require(within, f"{wrong}, and pool {pool!r} uses other processes; {remedy}, or use pool serial")
    actors = config.env.ray_actors
    require(actors == 0, f"{wrong}, and env.ray_actors {actors} uses other processes; {remedy}, or use ray_actors 0")


def _require_own_trunk(config: Any, name: str) -> None:
    """Raise ConfigError if a setting of the policy or the value alone meets a shared trunk."""
    settings = vars(config)
    wrong = f"{name} {settings[name]} does not go with share_trunk True: policy and value have one trunk"
    remedy = f"use {OF_OWN_TRUNKS[name]} for both, or share_trunk False"
    require(not settings.get("share_trunk", False), f"{wrong}; {remedy}")


def lowest(value: Any) -> float:
    """The smallest value of a setting over the run; it is a number or a Schedule."""
    return min(value.values) if dataclasses.is_dataclass(value) else value  # type: ignore[union-attr]


def highest(value: Any) -> float:
    """The largest value of a setting over the run; it is a number or a Schedule."""
    return max(value.values) if dataclasses.is_dataclass(value) else value  # type: ignore[union-attr]


def require_config(config: Any, kind: type) -> None:
    """Raise ConfigError unless this is the Config of the algorithm itself.

    Another algorithm's Config may have settings of the same names.
    """
    if type(config) is kind:
        return
    own, given = kind.__module__.rpartition(".")[2], type(config).__module__.rpartition(".")[2]
    is_config = type(config).__name__ == "Config"
    wrong = f"this is the Config of birl.{given}" if is_config else f"{config!r} is not a Config"
    raise ConfigError(f"{wrong}; {own} needs birl.{own}.Config")


def require_probability(name: str, value: Any) -> None:
    """Raise ConfigError unless a number or schedule stays within [0, 1]."""
    least, most = lowest(value), highest(value)
    require(least >= 0 and most <= 1, f"{name} from {least} to {most} must lie in [0, 1]: it is a probability")


def require_minibatches(count: int, rollout_length: int, num_envs: int, recurrent: bool) -> None:
    """Raise ConfigError unless a rollout divides into `count` equal minibatches.

    A recurrent network learns from whole sequences, so there the environments are divided.
    """
    name, whole = ("num_envs", num_envs) if recurrent else ("rollout_length x num_envs", rollout_length * num_envs)
    fits = [n for n in range(1, min(whole, 65) + 1) if whole % n == 0]
    require(
        count in fits or (count > 65 and whole % count == 0),
        f"{name} {whole} does not divide into {count} minibatches; use one of {', '.join(map(str, fits))}",
    )


def require_own_envs(envs: object) -> None:
    """Raise ConfigError if environments were passed in: each actor-learner makes its own."""
    remedy = "set env.id instead; module:Id-v0 imports the module that registers your environment"
    require(envs is None, f"envs {envs!r} cannot be used: each actor-learner makes its own environments; {remedy}")


def validate_run(run: RunConfig) -> None:
    """Check how long a run lasts, what it writes and when it is evaluated."""
    require(0 < run.total_steps <= 2**53, f"total_steps {run.total_steps} must lie between 1 and {2**53:,}")
    require(0 <= run.seed < 2**31, f"seed {run.seed} must lie between 0 and {2**31 - 1:,}")
    require(run.eval_every >= 0, f"eval_every {run.eval_every} must be 0 (only at the end) or more")
    require(run.eval_episodes > 0, f"eval_episodes {run.eval_episodes} must be at least 1")
    remedy = "use None for the environment's own limit, or 10,000 where it has none"
    limited = run.eval_max_steps is None or run.eval_max_steps > 0
    require(limited, f"eval_max_steps {run.eval_max_steps} must be at least 1; {remedy}")
    require(run.checkpoint_every >= 0, f"checkpoint_every {run.checkpoint_every} must be 0 (only at the end) or more")
    require(run.video_every >= 0, f"video_every {run.video_every} must be 0 (no videos) or more")
    require(run.keep_checkpoints > 0, f"keep_checkpoints {run.keep_checkpoints} must be at least 1")
    require(run.keep_every >= 0, f"keep_every {run.keep_every} must be 0 (none is kept for good) or more")
    require(run.log_every >= 0, f"log_every {run.log_every} must be 0 (every update, of many about 2,000) or more")
    evaluated = run.stop_at_return is None or run.eval_every > 0
    remedy = "set eval_every, for instance to 10000"
    require(evaluated, f"stop_at_return {run.stop_at_return} needs evaluations; {remedy}")


def validate_replay(config: ReplaySettings) -> None:
    """Check that learning from the replay begins before the run ends."""
    start = config.learning_starts
    end = config.run.total_steps
    wrong = f"learning_starts {start} lies beyond the run's {end} total_steps: nothing would be learned"
    require(start < end, f"{wrong}; use fewer, for example {end // 10}")


def validate_burn_in(burn_in: int, rollout_length: int) -> None:
    """Check that a sequence has steps to learn from after its burn-in."""
    wrong = f"burn_in {burn_in} must leave a step of rollout_length {rollout_length}"
    require(0 <= burn_in < rollout_length, f"{wrong}; use at most {rollout_length - 1}")


def validate_actor_learners(config: ActorLearnerSettings) -> None:
    """Check that each actor-learner can step its environments itself."""
    remedy = "each actor-learner steps its own environments; use workers 0, and more actor_learners"
    require(config.env.workers == 0, f"env.workers {config.env.workers} does not go with actor-learners: {remedy}")
    wrong = f"env.ray_actors {config.env.ray_actors} does not go with actor-learners"
    require(config.env.ray_actors == 0, f"{wrong}: use ray_actors 0 and pool ray")
    if config.pool != "serial":
        require_importable(config.env, f"pool {config.pool!r}", "pool serial")


def validate_exploration(config: ExplorationSettings) -> None:
    """Check the values that each actor-learner draws its ε from."""
    finals = config.final_explorations
    chances = config.exploration_chances
    fraction = config.exploration_fraction
    within = all(0 <= epsilon <= 1 for epsilon in finals)
    require(within, f"final_explorations {finals} must each lie in [0, 1]: they are probabilities")
    wrong = f"exploration_chances {chances} must be as many as final_explorations {finals}"
    require(len(finals) == len(chances), f"{wrong}; for one ε alone, (1.0,)")
    sums = all(chance >= 0 for chance in chances) and isclose(sum(chances), 1, abs_tol=1e-6)
    require(sums, f"exploration_chances {chances} must not be negative and add up to 1, not {sum(chances):g}")
    require(0 < fraction <= 1, f"exploration_fraction {fraction} must lie in (0, 1]; 0.5 is usual")


def require_sequences_fit(config: Any, recurrent: bool) -> None:
    """Raise ConfigError if settings for sequences meet a network without memory, or the reverse."""
    apart = "prioritized samples single steps, and a recurrent network learns from sequences; use one of the two"
    require(not (recurrent and config.prioritized), apart)
    wrong = f"burn_in {config.burn_in} warms up a memory, and this network has none"
    require(recurrent or not config.burn_in, f"{wrong}; use 0, or core lstm")
