"""Checks of settings. Each raises ConfigError with the field, its value and what to use instead.

The range of a setting is in its type: a `Fraction` lies in [0, 1]. Rules of one algorithm only are
in that algorithm's own `validate`.
"""

import typing
from math import isclose
from typing import Any

from birl.config import ConfigError, EnvConfig, RunConfig, function_named, is_local, require
from birl.envs.make import require_importable, validate_env
from birl.limits import Limit, highest, lowest
from birl.parts import (
    ActionConfig,
    ActorLearnerConfig,
    OptimizerConfig,
    ReplayConfig,
    RMSPropName,
    ValueConfig,
)
from birl.settings import Place, flat_settings, home_of, left_out_settings, own_name, places_of

OF_OWN_TRUNKS = {  # settings of the policy or the value alone, and what to use with a shared trunk
    "policy_hidden_sizes": "hidden_sizes",
    "value_hidden_sizes": "hidden_sizes",
    "value_learning_rate": "learning_rate",
}


def validate_settings(config: Any, kind: type) -> None:
    """Check the environments, and that each setting is in the range of its type."""
    require_config(config, kind)
    validate_env(config.env)
    for name, place in places_of(kind).items():
        value = getattr(place.part_of(config), name)
        if value is None:
            continue
        _require_limits(name, value, place, place.default_in(kind))
        if name == "encoder" and ":" in value:
            _require_encoder(config)
        if name in OF_OWN_TRUNKS:
            _require_own_trunk(config, name)
    for name, part in left_out_settings(kind).items():
        value, default = (getattr(getattr(one, part), name) for one in (config, kind()))
        require(value == default, f"{part}.{name} {value!r}: {own_name(kind)} has no setting {name}; leave it out")


def _require_limits(name: str, value: Any, place: Place, usual: Any) -> None:
    """Raise ConfigError unless the value is within the limits of its type."""
    limits = place.about(Limit)
    if not limits or value == ():
        return
    several = value if isinstance(value, tuple) else (value,)
    low, high = min(map(lowest, several)), max(map(highest, several))
    for limit in limits:
        if limit.holds(low) and limit.holds(high):
            continue
        remedy = ""
        if limit.names_remedy:
            remedy = ", or None to switch it off" if place.optional else f"; {usual:g} is usual"
        raise ConfigError(f"{name} {limit.value.format(value=value, lowest=low, highest=high)} {limit.text}{remedy}")


def _require_encoder(config: Any) -> None:
    """Raise ConfigError if an encoder of the user's own is not found, or not where it is needed."""
    function_named(config.network.encoder, "encoder")
    if not is_local(config.network.encoder):
        return
    wrong = f"encoder {config.network.encoder!r} is a function that only this process has"
    remedy = "put it into a module that can be imported"
    pool = flat_settings(config).get("pool")
    within = pool not in ("processes", "ray")
    require(within, f"{wrong}, and pool {pool!r} uses other processes; {remedy}, or use pool serial")
    actors = config.env.ray_actors
    require(actors == 0, f"{wrong}, and env.ray_actors {actors} uses other processes; {remedy}, or use ray_actors 0")


def _require_own_trunk(config: Any, name: str) -> None:
    """Raise ConfigError if a setting of the policy or the value alone meets a shared trunk."""
    settings = flat_settings(config)
    wrong = f"{name} {settings[name]} does not go with share_trunk True: policy and value have one trunk"
    remedy = f"use {OF_OWN_TRUNKS[name]} for both, or share_trunk False"
    require(not settings.get("share_trunk", False), f"{wrong}; {remedy}")


def require_config(config: Any, kind: type) -> None:
    """Raise ConfigError unless this is the Config of the algorithm itself.

    Another algorithm's Config may have settings of the same names.
    """
    if kind in (type(config), vars(type(config)).get("__wrapped__")):  # or a variant of it
        return
    is_config = type(config).__name__ == "Config"
    wrong = f"this is the Config of {_name_in_python(type(config))}" if is_config else f"{config!r} is not a Config"
    raise ConfigError(f"{wrong}; {own_name(kind)} needs {_name_in_python(kind)}.Config")


def _name_in_python(kind: type) -> str:
    """birl.ppo for one of Birl's own algorithms, the module for one of a user's own."""
    return f"birl.{own_name(kind)}" if kind.__module__.startswith("birl.") else home_of(kind)


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


def validate_replay(replay: ReplayConfig, run: RunConfig) -> None:
    """Check that learning from the replay begins before the run ends."""
    start = replay.learning_starts
    end = run.total_steps
    wrong = f"learning_starts {start} lies beyond the run's {end} total_steps: nothing would be learned"
    require(start < end, f"{wrong}; use fewer, for example {end // 10}")


def validate_values(values: ValueConfig) -> None:
    """Check that there are atoms, with distances between them."""
    wrong = f"value_min {values.value_min:g} must lie below value_max {values.value_max:g}"
    require(values.value_min < values.value_max, f"{wrong}: the atoms lie between them; use -100 and 100, for example")
    few = f"num_atoms {values.num_atoms} must be at least 2: one atom has no distance to another"
    require(values.num_atoms >= 2, f"{few}; 51 is usual")


def validate_burn_in(burn_in: int, rollout_length: int) -> None:
    """Check that a sequence has steps to learn from after its burn-in."""
    wrong = f"burn_in {burn_in} must leave a step of rollout_length {rollout_length}"
    require(0 <= burn_in < rollout_length, f"{wrong}; use at most {rollout_length - 1}")


def validate_actor_learners(env: EnvConfig, learners: ActorLearnerConfig) -> None:
    """Check that there are actor-learners, and that each can step its environments itself."""
    require(learners.pool != "none", "pool none: there are no actor-learners; use serial, processes or ray")
    remedy = "each actor-learner steps its own environments; use workers 0, and more actor_learners"
    require(env.workers == 0, f"env.workers {env.workers} does not go with actor-learners: {remedy}")
    wrong = f"env.ray_actors {env.ray_actors} does not go with actor-learners"
    require(env.ray_actors == 0, f"{wrong}: use ray_actors 0 and pool ray")
    if learners.pool != "serial":
        require_importable(env, f"pool {learners.pool!r}", "pool serial")


def require_rmsprop(optimizer: OptimizerConfig, learners: ActorLearnerConfig, otherwise: str = "") -> None:
    """Raise ConfigError if actor-learners should share another optimizer than RMSProp."""
    names = typing.get_args(RMSPropName)
    wrong = f"optimizer {optimizer.optimizer!r} does not go with pool {learners.pool!r}"
    remedy = f"actor-learners share the statistics of RMSProp; use optimizer {' or '.join(names)}{otherwise}"
    require(optimizer.optimizer in names, f"{wrong}: {remedy}")


def validate_exploration(finals: tuple[float, ...], chances: tuple[float, ...], fraction: float) -> None:
    """Check the values that each actor-learner draws its ε from."""
    within = all(0 <= epsilon <= 1 for epsilon in finals)
    require(within, f"final_explorations {finals} must each lie in [0, 1]: they are probabilities")
    wrong = f"exploration_chances {chances} must be as many as final_explorations {finals}"
    require(len(finals) == len(chances), f"{wrong}; for one ε alone, (1.0,)")
    sums = all(chance >= 0 for chance in chances) and isclose(sum(chances), 1, abs_tol=1e-6)
    require(sums, f"exploration_chances {chances} must not be negative and add up to 1, not {sum(chances):g}")
    require(0 < fraction <= 1, f"exploration_fraction {fraction} must lie in (0, 1]; 0.5 is usual")


def require_sequences_fit(replay: ReplayConfig, recurrent: bool) -> None:
    """Raise ConfigError if settings for sequences meet a network without memory, or the reverse."""
    apart = "prioritized samples single steps, and a recurrent network learns from sequences; use one of the two"
    require(not (recurrent and replay.prioritized), apart)
    wrong = f"burn_in {replay.burn_in} warms up a memory, and this network has none"
    require(recurrent or not replay.burn_in, f"{wrong}; use 0, or core lstm")


def validate_gsde(actions: ActionConfig, length: int) -> None:
    """Check that the settings of gSDE belong to a run with gSDE, and go with the others."""
    every = actions.gsde_every
    remedy = "use gsde True, or gsde_every None"
    require(actions.gsde or every is None, f"gsde_every {every} does nothing without gsde; {remedy}")
    wrong = f"gsde_every {every} exceeds rollout_length {length}, and each rollout begins with a new matrix"
    require(every is None or every <= length, f"{wrong}; use at most {length}, or None for one a rollout")
    wrong = "state_dependent_std True does not go with gsde True: with gSDE the deviation depends on the state already"
    require(not (actions.gsde and actions.state_dependent_std), f"{wrong}; use one of them")


def require_own_head(actions: ActionConfig, make_network: object) -> None:
    """Raise ConfigError if gSDE should explore with a network that has no exploration matrix."""
    wrong = (
        f"gsde True does not go with make_network {make_network!r}: the exploration matrix is part of Birl's network"
    )
    require(make_network is None or not actions.gsde, f"{wrong}; use gsde False")
