"""The algorithms by name, and what each of them supports.

An algorithm is imported only when it is asked for by name.
"""

import importlib
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import gymnasium as gym

from birl import ALGORITHMS
from birl.config import ConfigError, is_compiled, is_compiled_id, require, validate_run
from birl.errors import cut, suggest_algorithm
from birl.settings import flat_settings, home_of, own_name

ActionKind = Literal["Discrete", "MultiDiscrete", "MultiBinary", "Box", "Dict", "Tuple"]
EVERY_ACTION: tuple[ActionKind, ...] = ("Discrete", "MultiDiscrete", "MultiBinary", "Box", "Dict", "Tuple")


MetricNames = Literal["birl", "sb3", "cleanrl"]


class Alias(NamedTuple):
    """A metric's name in another library, and what its value is multiplied by there."""

    name: str
    factor: float = 1.0


Aliases = Mapping[str, Alias]  # by Birl's name


def critic_losses(factor: float, cleanrl: Alias) -> Mapping[MetricNames, Aliases]:
    """What Stable-Baselines3 and CleanRL call the losses of actor and critic.

    SB3's of the critic is `factor` times ours.
    """
    return {
        "sb3": {"loss/policy": Alias("train/actor_loss"), "loss/value": Alias("train/critic_loss", factor)},
        "cleanrl": {"loss/policy": Alias("losses/actor_loss"), "loss/value": cleanrl},
    }


def rollout_rows(config: Any) -> int:
    """The rows of a rollout: steps of all environments."""
    return config.rollout_length * config.env.num_envs


@dataclass(frozen=True)
class Supports:
    """What an algorithm supports. Each algorithm's file declares it once, as SUPPORTS.

    Error messages, `birl list`, `birl check-env` and the table in the docs are made from it.
    """

    actions: tuple[ActionKind, ...]
    bounded: bool = False  # a Box must have finite bounds: actions are scaled to them
    masks: bool = False  # action masks
    recurrent: bool = False  # `core`: LSTM, GRU, layer-norm LSTM
    passed_envs: bool = True  # environments passed to `train` as envs=
    ray_rollouts: bool = False  # `env.ray_actors`: rollouts from Ray actors
    prefill: bool = False  # `prefill`: a replay of single steps, which others can be added to
    compiled: bool = False  # compiled environments: acting, stepping and learning are one program
    actor_learners: bool = False  # `pool`: serial, processes or Ray
    values: str = ""  # what `policy.values` gives; "": the part that acts has no values
    values_need: str = ""  # the setting without which they are not learned
    distribution: bool = False  # `policy.distribution`
    rows: Callable[[Any], int] = rollout_rows  # that a gradient step learns from, by the Config: how long it takes
    aliases: Mapping[MetricNames, Aliases] = field(default_factory=dict)  # names of metrics in other libraries


def register(name: str, module: str) -> str:
    """Make an algorithm of your own known; its whole name, which commands and functions take.

    Write it at the end of your module: `birl.register("my-algo", __name__)`. Then `birl train
    my_module:my-algo CartPole-v1` imports the module and finds it. `module` may be the name of an
    object in a module, my_module:my_object.
    """
    wrong = f"algorithm {cut(name)} is not a name; use small letters, digits and hyphens, such as my-algo"
    require(isinstance(name, str) and re.fullmatch(r"[a-z][a-z0-9-]*", name) is not None, wrong)
    home = module.partition(":")[0]
    wrong = f"algorithm {name}: a script itself cannot be imported by birl resume, or by worker processes"
    require(home != "__main__", f"{wrong}; put it into a module of its own, and import that")
    whole = f"{home}:{name}"
    ALGORITHMS[whole] = module
    return whole


def import_algorithm(name: str) -> str:
    """The name of an algorithm that the user named; module:name imports its module first."""
    module, _, own = str(name).rpartition(":")
    if not module or name in ALGORITHMS:
        return name
    whole = f"{module}:{own.replace('_', '-')}"
    wrong = f"algorithm {cut(name)} cannot be imported"
    require(not module.startswith("."), f"{wrong}: a relative name has no package here; use the module's whole name")
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as problem:
        raise ConfigError(f"{wrong}: {problem}") from problem
    registered = ", ".join(one for one in ALGORITHMS if one.startswith(f"{module}:")) or "none"
    remedy = f'it ends with birl.register("{own.replace("_", "-")}", __name__)'
    require(whole in ALGORITHMS, f"module {module} registers no algorithm {own} (registered: {registered}); {remedy}")
    return whole


def algorithm_named(name: str) -> Any:
    """The module of that algorithm, or the object in a module (see types.Algorithm)."""
    if name not in ALGORITHMS:
        listed = f"use one of {', '.join(ALGORITHMS)}"
        remedy = (isinstance(name, str) and suggest_algorithm(name, ALGORITHMS)) or listed
        if isinstance(name, str) and ":" in name:
            remedy = f"import {name.rpartition(':')[0]} first if you trust it, or use --trust on the command line"
        raise ConfigError(f"algorithm {cut(name)} is unknown; {remedy}")
    module, _, part = ALGORITHMS[name].partition(":")
    found = importlib.import_module(module)
    return vars(found)[part] if part else found


def name_of(config: Any) -> str:
    """The name of the algorithm whose Config this is."""
    names = {home: name for name, home in ALGORITHMS.items()}
    home = home_of(type(config))
    require(home in names, f"{cut(config)} is not the Config of an algorithm; use birl.ppo.Config or a similar one")
    return names[home]


def validate(name: str, config: Any) -> None:
    """Raise ConfigError if these settings cannot work."""
    validate_run(config.run)
    require_compiled_supported(config)
    algorithm_named(name).validate(config)


def supports(name: str) -> Supports:
    """What the algorithm of that name supports."""
    return algorithm_named(name).SUPPORTS


def algorithms_for(space: gym.Space) -> list[str]:
    """The names of the algorithms that take actions of this space."""
    return [name for name in ALGORITHMS if _takes(supports(name), space)]


def algorithms_with_ray_rollouts() -> list[str]:
    """The names of the algorithms that take rollouts from Ray actors."""
    return [name for name in ALGORITHMS if supports(name).ray_rollouts]


def algorithms_with_compiled_envs() -> list[str]:
    """The names of the algorithms that learn in compiled environments."""
    return [name for name in ALGORITHMS if supports(name).compiled]


def algorithms_with_prefill() -> list[str]:
    """The names of the algorithms whose replay takes transitions from elsewhere."""
    return [name for name in ALGORITHMS if supports(name).prefill]


def require_inside(config: Any, what: Literal["values", "distribution"]) -> None:
    """Raise ConfigError if policies of this Config cannot be asked for that.

    The message names the algorithms whose policies can.
    """
    name = name_of(config)
    declared = supports(name)
    names = ", ".join(other for other in ALGORITHMS if vars(supports(other))[what])
    has = bool(vars(declared)[what])
    require(has, f"the part of {name} that acts has no {what}; algorithms whose policies have: {names}")
    need = declared.values_need if what == "values" else ""
    learned = not need or flat_settings(config)[need]
    require(learned, f"{name} with {need} False learns no values; train it with {need} True")


def require_supported(config: Any, action_space: gym.Space) -> None:
    """Raise ConfigError if the algorithm of this Config does not support these actions.

    The message names the algorithms that do. A user's own algorithm without SUPPORTS is not
    checked.
    """
    declared = _declared(config)
    if declared is not None and not _takes(declared, action_space):
        name = _shown_name(config)
        others = ", ".join(algorithms_for(action_space)) or "none"
        bounds = " with finite bounds" if declared.bounded else ""
        rescale = _lacks_bounds(declared, action_space)
        remedy = " gymnasium.wrappers.RescaleAction gives a Box finite bounds;" if rescale else ""
        raise ConfigError(
            f"{name} takes {' and '.join(declared.actions)} actions{bounds}, and action space "
            f"{' '.join(str(action_space).split())} is none;{remedy} algorithms that take it: {others}"
        )


def require_ray_supported(config: Any) -> None:
    """Raise ConfigError if the settings ask for Ray actors that the algorithm cannot use."""
    declared = _declared(config)
    if config.env.ray_actors and declared is not None and not declared.ray_rollouts:
        names = ", ".join(algorithms_with_ray_rollouts())
        raise ConfigError(f"env.ray_actors {config.env.ray_actors}: only {names} take rollouts from Ray actors; use 0")


def require_compiled_supported(config: Any) -> None:
    """Raise ConfigError if the settings ask for compiled environments, and the algorithm has none.

    The message names the algorithms that have.
    """
    declared = _declared(config)
    if is_compiled(config.env) and declared is not None and not declared.compiled:
        by_id = is_compiled_id(config.env.id)
        setting = f"env.id {config.env.id!r} is a compiled environment" if by_id else "env.backend 'compiled'"
        name = _shown_name(config)
        names = ", ".join(algorithms_with_compiled_envs())
        instead = "" if by_id else "; or use backend gymnasium"
        reason = f"{name} steps environments on the host"
        raise ConfigError(f"{setting}: {reason}; algorithms with compiled environments: {names}{instead}")


def action_kind(space: gym.Space) -> str:
    """The kind of an action space, by Gymnasium's name for it."""
    return next((kind for kind in EVERY_ACTION if isinstance(space, vars(gym.spaces)[kind])), type(space).__name__)


def _declared(config: Any) -> Supports | None:
    """What the algorithm of this Config declares; None for a user's own without SUPPORTS."""
    return vars(sys.modules[type(config).__module__]).get("SUPPORTS")


def _shown_name(config: Any) -> str:
    """The name of the algorithm of this Config, which may be a user's own."""
    return own_name(type(config)).replace("_", "-")


def _takes(declared: Supports, space: gym.Space) -> bool:
    return action_kind(space) in declared.actions and not _lacks_bounds(declared, space)


def _lacks_bounds(declared: Supports, space: gym.Space) -> bool:
    """Whether the algorithm needs finite bounds and this Box has infinite or empty ones."""
    if not declared.bounded or not isinstance(space, gym.spaces.Box):
        return False
    widths = space.high.astype(float) - space.low
    return not bool(((widths > 0) & (widths < 3.4e38)).all())
