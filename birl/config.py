"""Settings that every algorithm shares, and how settings become data and are read again.

The environment, Atari preprocessing and the run are here; other parts are in parts.py. Every Config
checks its fields with `check_fields` when it is made, by the same rules as `from_json`. So a wrong
value is refused with the same message from Python, from the command line and from a file.

A function that a user passes in is kept as a name. If other processes can import it, the name is
"module:function". Any other, such as a lambda or a function of the script itself, is kept in this
process and has the name "local:name".
"""

import dataclasses
import importlib
import json
import os
import re
import sys
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, TypeVar, dataclass_transform, runtime_checkable

from birl.errors import ConfigError, by_use, cut, require
from birl.settings import FLAT_PARTS, hints_in_files

__all__ = ["AtariConfig", "ConfigError", "EnvConfig", "RunConfig", "Wrapper", "check_fields", "require"]

Kind = TypeVar("Kind", bound=type)
Plain = bool | int | float | str  # what a keyword argument may be, so that settings stay data

USUAL_ROWS = 2_000  # lines of updates that a run logs if it has more updates and `log_every` is 0
MOST_ROWS = 50_000  # ... whatever it is; each is about 1 kB
PASSED_AS = {"env.id": "make_env", "encoder": "make_encoder"}  # arguments, in Python, that take a function
LOCAL = "local"  # the module in the name of a function that only this process has
FUNCTION_NAME = re.compile(r"\w[\w.]*:\w[\w.-]*")  # module:function, or local:name
BEFORE = {"scale_actions": False}  # what a stored config means that has no such field yet, if it is not the default
NOUNS = {int: "a whole number", float: "a number", bool: "True or False", str: "a string", type(None): "None"}

_local: dict[str, Callable[..., Any]] = {}  # functions that only this process has, by name


@runtime_checkable
class HasToList(Protocol):
    """A NumPy or JAX array or scalar."""

    def tolist(self) -> Any: ...


@runtime_checkable
class ReadsText(Protocol):
    """A settings type that may be written as one string."""

    TEXTS: ClassVar[str]  # examples, for error messages

    def from_text(self, text: str) -> Any:
        """The settings that this string stands for; ValueError if there are none."""


@runtime_checkable
class ReadsFunction(Protocol):
    """A settings type that may be given as a function, which is sampled: settings are data."""

    def from_function(self, function: Any) -> Any:
        """The settings that this function stands for; ValueError if there are none."""


class RemovedField(NamedTuple):
    """A field of an older version, which a stored config may still have."""

    default: Any  # a stored field with this value is ignored; with ... any value
    remedy: str = ""  # what to do about any other value


@runtime_checkable
class HasRemovedFields(Protocol):
    """A settings type of which an older version had more fields."""

    REMOVED_FIELDS: ClassVar[dict[str, RemovedField]]


def to_json(config: Any) -> Any:
    """A dataclass as JSON values: nested dataclasses become objects, tuples become lists.

    The settings of a Config's parts are flat, but for those of the environment and of the run.
    """
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        values: dict[str, Any] = {}
        for known in dataclasses.fields(config):
            value = getattr(config, known.name)
            values |= to_json(value) if type(value) in FLAT_PARTS else {known.name: to_json(value)}
        names = hints_in_files(type(config))
        return {name: value for name, value in values.items() if name in names}
    if isinstance(config, dict):
        return {key: to_json(value) for key, value in config.items()}
    if isinstance(config, list | tuple):
        return [to_json(value) for value in config]
    return str(config) if isinstance(config, Path) else config


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def part(kind: Kind) -> Kind:
    """The class as a part of Configs: a frozen dataclass that checks its values when it is made."""
    made = checked(kind)
    FLAT_PARTS.add(made)
    return made


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def checked(kind: Kind) -> Kind:
    """The class as a frozen dataclass that checks its values when it is made."""
    kind.__post_init__ = check_fields  # type: ignore[attr-defined]
    return dataclasses.dataclass(frozen=True)(kind)  # type: ignore[return-value]


def check_fields(config: Any) -> None:
    """Convert each field of a new Config to its annotated type; ConfigError if one does not fit.

    The decorators `part` and `checked` make it the class's `__post_init__`.
    """
    hints = _hints_of_fields(config.__class__)
    for known in dataclasses.fields(config):
        object.__setattr__(config, known.name, from_json(hints[known.name], getattr(config, known.name), known.name))


def from_json(kind: Any, value: Any, where: str = "config") -> Any:
    """The value converted to this type; ConfigError with its path if it does not fit.

    Whole floats become ints, lists and arrays become tuples, NumPy and JAX numbers become Python's,
    and a string becomes what the type reads from it.
    """
    if kind is Any:
        return value
    origin = typing.get_origin(kind)
    value = value.tolist() if isinstance(value, HasToList) else value
    if origin in (typing.Union, types.UnionType):
        return _first_match(kind, value, where)
    if origin is Literal:
        options = typing.get_args(kind)
        require(type(value) is str and value in options, f"{where} {cut(value)} is not one of {', '.join(options)}")
        return value
    if origin is tuple:
        require(isinstance(value, list | tuple), f"{where} must be a list, not {cut(value)}")
        return tuple(from_json(typing.get_args(kind)[0], item, f"{where}[{i}]") for i, item in enumerate(value))
    if origin is dict:
        require(isinstance(value, dict), f"{where} must be an object, not {cut(value)}")
        for key in value:
            require(isinstance(key, str), f"{where} has the key {cut(key)}; use strings")
        return {key: from_json(typing.get_args(kind)[1], item, f"{where}.{key}") for key, item in value.items()}
    if dataclasses.is_dataclass(kind):
        return _read_dataclass(kind, value, where)
    return _read_plain(kind, value, where)


def from_stored(kind: Any, values: Any, where: str = "config") -> Any:
    """The Config of a run, a search or a policy file, which an older version may have written."""
    if isinstance(values, dict):
        names = hints_of(kind)
        values = {name: before for name, before in BEFORE.items() if name in names} | values
    return from_json(kind, values, where)


def _read_plain(kind: type, value: Any, where: str) -> Any:
    """A number, boolean or string. Nothing is rounded: a float given for an int must be whole."""
    if kind is float and type(value) in (int, float):
        require(-sys.float_info.max <= value <= sys.float_info.max, f"{where} {cut(value)} must be a finite number")
        return float(value)
    if kind is int and type(value) is float and value.is_integer():
        return int(value)
    if kind is str and isinstance(value, os.PathLike):
        return os.fspath(value)
    require(type(value) is kind, f"{where} must be {_noun(kind)}, not {_describe(kind, value)}")
    return value


def _read_dataclass(kind: Any, value: Any, where: str) -> Any:
    if type(value) is kind:
        return value
    if isinstance(kind, ReadsText) and isinstance(value, str):
        try:
            return kind.from_text(value)
        except ValueError as problem:
            raise ConfigError(f"{where}: {problem}") from problem
    if isinstance(kind, ReadsFunction) and _is_function(value):
        try:
            return kind.from_function(value)
        except ValueError as problem:
            raise ConfigError(f"{where}: {problem}") from problem
    require(isinstance(value, dict), f"{where} must be {_noun(kind)}, not {_describe(kind, value)}")
    value = _without_removed(kind, value, where)
    hints = hints_of(kind)
    unknown = sorted(value.keys() - hints.keys())
    require(not unknown, f"{where} has no field {', '.join(unknown)}; it has {', '.join(sorted(hints))}")
    given = {name: from_json(hints[name], item, f"{where}.{name}") for name, item in value.items()}
    try:
        return kind(**given)
    except (TypeError, ValueError) as problem:  # a field without a default is missing, or two fields contradict
        raise ConfigError(f"{where} {cut(value)} does not fit: {problem}") from problem


def _without_removed(kind: Any, value: dict[str, Any], where: str) -> dict[str, Any]:
    """The value without fields of older versions; ConfigError if one of them was in use."""
    removed = kind.REMOVED_FIELDS if isinstance(kind, HasRemovedFields) else {}
    for name in removed.keys() & value.keys():
        default, remedy = removed[name]
        ignored = default is ... or value[name] == default
        require(ignored, f"{where}.{name} is {cut(value[name])}: this option was removed; {remedy}")
    return {name: item for name, item in value.items() if name not in removed}


def _first_match(kind: Any, value: Any, where: str) -> Any:
    """The value as the first type of a union that it fits."""
    if value is None and type(None) in typing.get_args(kind):
        return None
    options = [option for option in typing.get_args(kind) if option is not type(None)]
    names = [name for option in options if typing.get_origin(option) is Literal for name in typing.get_args(option)]
    if names and str in options:
        return _read_name(names, value, where)
    exact = [option for option in options if type(value) is option]
    problem = None
    for option in exact or options:
        try:
            return from_json(option, value, where)
        except ConfigError as error:
            reads = dataclasses.is_dataclass(option) and (isinstance(value, str | dict) or _is_function(value))
            problem = error if reads or exact else problem  # says more than a list of types
    raise problem or ConfigError(f"{where} must be {_noun(kind)}, not {_describe(kind, value)}{_instead(where)}")


def _read_name(names: list[str], value: Any, where: str) -> str:
    """One of these names, or module:function; a function itself becomes that."""
    value = name_of_function(value) if callable(value) else value
    is_name = isinstance(value, str) and (value in names or FUNCTION_NAME.fullmatch(value) is not None)
    require(is_name, f"{where} {cut(value)} is not one of {', '.join(names)}, or module:function")
    return value


def _noun(kind: Any) -> str:
    """The name of a type in an error message."""
    if typing.get_origin(kind) is tuple:
        return f"a list (each {_noun(typing.get_args(kind)[0])})"
    if options := [_noun(option) for option in typing.get_args(kind)]:
        return " or ".join([", ".join(options[:-1]), options[-1]] if len(options) > 1 else options)
    return NOUNS.get(kind) or f"{'an' if kind.__name__[0] in 'AEIOU' else 'a'} {kind.__name__}"


def _describe(kind: Any, value: Any) -> str:
    """The value in an error message, with examples of how to write one that fits."""
    texts = [option.TEXTS for option in (typing.get_args(kind) or (kind,)) if isinstance(option, ReadsText)]
    function = ", a function, which can be neither saved nor compiled" if _is_function(value) else ""
    return f"{cut(value)}{function}" + "".join(f"; write it like {text}" for text in texts)


def _instead(where: str) -> str:
    """A remedy for a keyword argument that settings cannot hold; "" for other settings."""
    argument = re.search(r"\bkwargs\.(\w+)$", where)
    if argument is None:
        return ""
    function = by_use(f"make_env=lambda: MyEnv({argument[1]}=...)", "a function of yours as the id, my_module:make_env")
    return f"; use {function}, or give the name of a file that the environment reads"


def _is_function(value: Any) -> bool:
    return callable(value) and not isinstance(value, type)


@cache
def hints_of(kind: Any) -> dict[str, Any]:
    """The annotations of what a file has for a settings class, without what Annotated adds."""
    hints = hints_in_files(kind)
    return typing.get_type_hints(type("Fields", (), {"__annotations__": hints}))


@cache
def _hints_of_fields(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind)


@checked
class AtariConfig:
    """Preprocessing of Atari games: ids that begin with ALE/ (Mnih et al. 2015, Machado 2018)."""

    noop_max: int = 30  # a game starts with 1 to this many no-op frames
    frame_skip: int = 4  # frames per action; the observation is the pixelwise maximum of the last two
    screen_size: int = 84  # height and width of a frame in pixels
    stacked_frames: int = 4  # frames per observation: the latest ones
    episodic_life: bool = False  # a lost life ends the episode, not the game; returns are still of whole games
    fire_reset: bool = True  # press FIRE when an episode starts, in games that have it: some wait for it
    sticky_actions: float = 0.0  # probability that a frame repeats the previous action; 0.25 in Machado et al.


@dataclass(frozen=True)
class Wrapper:
    """A wrapper around each environment, by name: settings are data, and a class is not."""

    path: str  # module:Class, called with the environment and `kwargs`; the class itself becomes its name
    kwargs: dict[str, Plain] = field(default_factory=dict, hash=False)

    TEXTS: ClassVar[str] = "'my_module:MyWrapper' or 'my_module:MyWrapper,tile_size=8,flag=true'"

    def __post_init__(self) -> None:
        if callable(self.path):
            object.__setattr__(self, "path", name_of_function(self.path))
        check_fields(self)
        is_name = re.fullmatch(r"[\w.]+:[\w.-]+", self.path) is not None
        require(is_name, f"wrapper {self.path!r} names no class; write it like {self.TEXTS}")

    @classmethod
    def from_text(cls, text: str) -> "Wrapper":
        """The wrapper that module:Class,key=value,... stands for.

        A value is read as JSON if it is JSON, else it is text.
        """
        path, *pairs = re.split(r",(?=\s*\w+=)", text)
        named = [pair.strip().partition("=") for pair in pairs]
        return cls(path.strip(), {name: _read_value(value) for name, _, value in named})

    def text(self) -> str:
        """The text that `from_text` reads as this wrapper."""
        return ",".join([self.path, *(f"{name}={_write_value(value)}" for name, value in self.kwargs.items())])


def _read_value(text: str) -> Any:
    """The JSON value in this text; the text itself if it is none."""
    words = {"True": True, "False": False}  # as Python writes them
    try:
        return words[text] if text in words else json.loads(text)
    except ValueError:
        return text


def _write_value(value: Plain) -> str:
    return value if isinstance(value, str) and _read_value(value) == value else json.dumps(value)


@dataclass(frozen=True)
class EnvConfig:
    """Which environment, how many of it, and where they run."""

    # A Gymnasium id; module:Id-v0 imports the module first, module:function calls your function.
    id: str = "CartPole-v1"
    num_envs: int = 8  # environments stepped together
    backend: Literal["gymnasium", "envpool", "compiled"] = "gymnasium"  # what steps them; compiled: JAX
    workers: int = 0  # processes that step the environments; 0: this process
    ray_actors: int = 0  # Ray actors that collect rollouts, each with its share of the environments; 0: this process
    ray_address: str | None = None  # of a Ray cluster, for ray_actors or the runs of a group; None: one on this machine
    step_timeout: float = 60.0  # seconds a worker may take for a step before it is replaced
    hide_velocities: bool = False  # remove velocities from the observation, so that the policy needs memory
    max_episode_steps: int | None = None  # truncate episodes after this many steps; None: the environment's own limit
    kwargs: dict[str, Plain] = field(default_factory=dict, hash=False)  # for gymnasium.make, or the function in `id`
    ignore_observations: tuple[str, ...] = ()  # parts of a Dict observation to leave out: mission, camera/depth
    wrappers: tuple[Wrapper, ...] = ()  # wrappers around each environment, the first one innermost
    atari: AtariConfig = field(default_factory=AtariConfig)

    TEXTS: ClassVar[str] = "'CartPole-v1'"
    REMOVED_FIELDS: ClassVar[dict[str, RemovedField]] = {
        "overlap": RemovedField(False, "load the run with the version of Birl that wrote it, or train again without it")
    }

    def __post_init__(self) -> None:
        if isinstance(self.wrappers, list | tuple):
            given: tuple[Any, ...] = tuple(self.wrappers)
            named = tuple(Wrapper(wrapper) if callable(wrapper) else wrapper for wrapper in given)
            object.__setattr__(self, "wrappers", named)
        check_fields(self)

    @classmethod
    def from_text(cls, text: str) -> "EnvConfig":
        """The environment with this id, and default settings."""
        return cls(text)


@checked
class RunConfig:
    """How long to train, what to write, and when to evaluate."""

    total_steps: int = 100_000  # environment steps to train for; schedules run from 0 to here
    seed: int = 1  # of environments, weights and actions; the same seed gives the same run
    run_dir: str | None = None  # None: runs/ALGORITHM-ENV-SEED, numbered if it exists
    eval_every: int = 0  # environment steps between evaluations; 0: only at the end
    eval_episodes: int = 20  # episodes per evaluation
    eval_max_steps: int | None = None  # step limit of evaluation episodes; None: the environment's own, or 10,000
    eval_deterministic: bool = True  # evaluate the policy's most likely actions, not samples
    stop_at_return: float | None = None  # stop once an evaluation reaches this mean return
    checkpoint_every: int = 50_000  # environment steps between checkpoints; 0: only at the end
    keep_checkpoints: int = 3  # how many of the newest to keep; the best one is kept too
    keep_every: int = 0  # also write and keep a checkpoint after every so many environment steps, to fork it; 0: none
    log_every: int = 0  # environment steps between log lines; 0: every update, or about 2,000 lines if there are more
    video_every: int = 0  # environment steps between videos of an episode of the current policy; 0: none
    tensorboard: bool = False  # write TensorBoard event files
    wandb: str | None = None  # name of a Weights & Biases project to log to
    trackio: str | None = None  # name of a Trackio project to log to, on this machine
    metric_names: Literal["birl", "sb3", "cleanrl"] = "birl"  # whose names TensorBoard and the other trackers get

    REMOVED_FIELDS: ClassVar[dict[str, RemovedField]] = {"log_seconds": RemovedField(...)}

    @property
    def steps_between_rows(self) -> int:
        """Environment steps between logged updates. No clock: the same run has the same rows."""
        return max(self.log_every or self.total_steps // USUAL_ROWS, self.total_steps // MOST_ROWS, 1)


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


CLASSIC = {  # Gymnasium's environments that Birl also has in JAX, with the same physics
    "CartPole-v1": "birl.envs.compiled.classic:CartPole",
    "Acrobot-v1": "birl.envs.compiled.classic:Acrobot",
    "MountainCar-v0": "birl.envs.compiled.classic:MountainCar",
    "MountainCarContinuous-v0": "birl.envs.compiled.classic:MountainCarContinuous",
    "Pendulum-v1": "birl.envs.compiled.classic:Pendulum",
}
OWN = {  # Birl's own, which exist only in JAX
    "birl/MemoryGrid-v0": "birl.envs.compiled.memory_grid:MemoryGrid",
    "birl/Crawler-v0": "birl.envs.compiled.crawler:Crawler",
}
SUITES = {  # PREFIX/NAME: the function that makes NAME
    "gymnax": "birl.envs.compiled.gymnax:make_gymnax",
    "brax": "birl.envs.compiled.robots:make_brax",
    "jumanji": "birl.envs.compiled.jumanji:make_jumanji",
    "playground": "birl.envs.compiled.robots:make_playground",
}


def is_compiled(env: EnvConfig) -> bool:
    """True if these settings ask for a compiled environment, by `backend` or by the id."""
    return env.backend == "compiled" or is_compiled_id(env.id)


def is_compiled_id(env_id: str) -> bool:
    """True if an id names an environment that exists only in JAX."""
    prefix, slash, _ = env_id.partition("/")
    return env_id in OWN or (bool(slash) and prefix in SUITES)


def is_atari(env_id: str) -> bool:
    """True for the id of an Atari game."""
    return env_id.rpartition(":")[2].startswith("ALE/")


def has_twin(env: EnvConfig) -> bool:
    """True if Gymnasium has the same environment, which is then evaluated, played and recorded."""
    return env.id in CLASSIC


def name_of_function(function: Callable[..., Any]) -> str:
    """The name by which `function_named` finds this function again."""
    module, qualname = _place(function)
    if module in sys.modules and module != "__main__" and _attribute(sys.modules[module], qualname) is function:
        return f"{module}:{qualname}"
    return f"{LOCAL}:{_keep(function, qualname.rpartition('.')[2].strip('<>'))}"


def passed_encoder(make_encoder: Callable[..., Any] | None) -> dict[str, str]:
    """The setting that an encoder stands for which the user passes in; {} without one."""
    return {} if make_encoder is None else {"encoder": name_of_function(make_encoder)}


def function_named(name: str, setting: str) -> Callable[..., Any]:
    """The function or class that a setting names; ConfigError if there is none."""
    module, _, qualname = name.rpartition(":")
    if module == LOCAL:
        if qualname not in _local:
            wrong = f"{setting} {name!r} is a function that only the process has that it was passed to"
            again = f"pass it again as {PASSED_AS[setting]}=, or " if setting in PASSED_AS else ""
            named = " and name it: --env my_module:make_env" if setting == "env.id" else ""
            moved = "put it into a module that can be imported"
            raise ConfigError(f"{wrong}; {by_use(again + moved, moved + named)}")
        return _local[qualname]
    try:
        found = _attribute(importlib.import_module(module), qualname)
    except ModuleNotFoundError as problem:
        raise ConfigError(f"{setting} {name!r} cannot be imported: {problem}") from problem
    if not callable(found):
        raise ConfigError(f"{setting} {name!r}: module {module} has no function or class {qualname}")
    return found


def is_local(name: str) -> bool:
    """True for the name of a function that only this process has."""
    return name.startswith(f"{LOCAL}:")


def _place(function: Callable[..., Any]) -> tuple[str, str]:
    """The module and the name that a function says it has; a partial or an instance has neither."""
    is_named = isinstance(function, type) or "__qualname__" in dir(function)
    named: Any = function if is_named else type(function)
    return named.__module__, named.__qualname__


def _attribute(module: ModuleType, qualname: str) -> Any:
    """The attribute at this dotted path; None if there is none."""
    found: Any = module
    for name in qualname.split("."):
        found = getattr(found, name, None)
    return found


def _keep(function: Callable[..., Any], name: str) -> str:
    """Keep a function in this process; its name, numbered if another function has it."""
    number = 1
    while _local.setdefault(numbered := name if number == 1 else f"{name}-{number}", function) is not function:
        number += 1
    return numbered
