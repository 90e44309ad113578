"""The words of `birl train`: a Config from a preset, a run or a file and options, and a sweep."""

import dataclasses
import itertools
import re
import typing
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import tyro

from birl import ALGORITHMS
from birl.cli.options import (
    Flag,
    Repeated,
    allow_modules_here,
    errors_in_one_line,
    read_known,
    reading_rules,
    require_no_unknown,
    text_of,
)
from birl.cli.settings_help import OPTION_NAMES, Setting, help_text, settings_of
from birl.config import AtariConfig, ConfigError, Wrapper, require
from birl.errors import suggest_algorithm, suggest_setting
from birl.maths import schedules
from birl.registry import algorithm_named, import_algorithm, name_of
from birl.run.configure import SettingsSource, from_file, from_preset, like_run, with_settings
from birl.run.groups.group_plan import GroupPlan, plan_group
from birl.settings import flat_settings, places_of

HELP = ("-h", "--help")
METAVARS = {"like": "RUN", "config": "FILE", "seeds": "INT", "sweep": "NAME=VALUE,VALUE", "jobs": "INT"}
# Each --wrapper adds one.
WRAPPERS = Annotated[tuple[Wrapper, ...], tyro.conf.arg(name="wrapper"), tyro.conf.UseAppendAction]
EXAMPLE = "--sweep learning_rate=1e-4,3e-4,1e-3"


@dataclass(frozen=True)
class StartOptions:
    """The options of `birl train` that are no settings."""

    like: Path | None = None  # begin with the settings of this run, but not its run_dir
    config: Path | None = None  # begin with the settings in this JSON or TOML file
    preset: bool = True  # begin with the preset of the task, if there is one; --no-preset: with the defaults
    overwrite: Flag = False  # move a run that is in run_dir aside, to run_dir.1
    trust: Flag = False  # let a --like run that was not made here import modules
    seeds: int | None = None  # train a group of runs with this many seeds: seed, seed + 1, ...
    sweep: Repeated = ()  # train a group, with each of these values; may be repeated
    jobs: int | None = None  # runs of a group that train at once, a process each; None: the CPU cores


class Request(NamedTuple):
    """A parsed command line of `birl train`."""

    algorithm: str
    config: Any
    notices: list[str]
    overwrite: bool
    group: GroupPlan | None = None  # the runs of a group; None: one run
    jobs: int | None = None  # of the group


def read_request(words: list[str]) -> Request:
    """The parsed words: at most an algorithm and an environment, and options.

    The settings are those of the preset, then of --like, then of --config, then the options.
    """
    task, start, words = _divided(words)
    algorithm, env_id, sources = _task(task, start)
    config, notice = training_config(algorithm, env_id, words, sources, start.preset)
    notices = [notice] if not sources else [f"settings of {source.name}" for source in sources]
    notices += [text for source in sources for text in source.notices]
    group = None
    if start.seeds is not None or start.sweep:
        sweep, as_options = read_sweep(config, start.sweep, words)
        group = plan_group(
            lambda point: training_config(algorithm, env_id, [*words, *as_options(point)], sources, start.preset)[0],
            sweep,
            1 if start.seeds is None else start.seeds,
        )
    wrong = f"--jobs {start.jobs} is for a group of runs; add --seeds or --sweep, or leave it out"
    require(start.jobs is None or group is not None, wrong)
    return Request(algorithm, config, notices, start.overwrite, group, start.jobs)


def training_help(words: list[str], columns: int) -> str:
    """The help of `birl train` for an algorithm, with the values of the preset if there is one."""
    task, start, words = _divided([word for word in words if word not in HELP])
    if len(task) == 1 and ":" in task[0] and not (start.like or start.config):
        allow_modules_here(task[0])
        task = [import_algorithm(task[0])]
    if len(task) == 1 and task[0] in ALGORITHMS and not (start.like or start.config):
        config = with_options(algorithm_named(task[0]).Config(), words, f"birl train {task[0]}")
        about = f"The settings of {task[0]}. With an environment, this shows the values of its preset."
        return help_text(f"birl train {task[0]} ENV", about, config, start_texts(), columns)
    algorithm, env_id, sources = _task(task, start)
    config, notice = training_config(algorithm, env_id, words, sources, start.preset)
    about = f"In brackets: {', '.join(f'settings of {source.name}' for source in sources) or notice}."
    return help_text(f"birl train {algorithm} {env_id}", about, config, start_texts(), columns)


def training_config(
    algorithm: str, env_id: str, words: list[str], sources: list[SettingsSource] | None = None, preset: bool = True
) -> tuple[Any, str]:
    """The Config that these words ask for, and a sentence about where its defaults come from."""

    def change(config: Any) -> Any:
        for source in sources or []:
            _require_known(source, algorithm, config)
            config = with_settings(config, source.settings)
        return with_options(config, words, f"birl train {algorithm} {env_id}")

    return from_preset(algorithm, env_id, change, preset)


def with_options(config: Any, words: list[str], prog: str) -> Any:
    """The Config, changed by these options; ConfigError if one is unknown or cannot be read."""
    settings = settings_of(config)
    hints = {setting.name: setting.hint for setting in settings} | {"wrappers": WRAPPERS}
    kind = dataclasses.make_dataclass("Settings", hints.items())
    values = {setting.name: setting.value for setting in settings}
    if any(word.partition("=")[0] == "--wrapper" for word in words):
        values["wrappers"] = ()  # options replace what they change; without this, tyro would append
    default = kind(**values)
    rules = reading_rules()
    rules.primitive_rule(_schedule_rule)
    rules.primitive_rule(_wrapper_rule)
    with rules, errors_in_one_line():
        found, unknown = tyro.cli(kind, default=default, args=words, prog=prog, return_unknown_args=True)
    for word in unknown:
        for_atari = word.removeprefix("--").replace("-", "_") in places_of(AtariConfig)
        require(not for_atari, f"{word} is for Atari games, whose ids begin with ALE/; {config.env.id} is none")
    require_no_unknown(unknown, name_of(config), prog, [setting.option for setting in settings])
    return with_settings(config, vars(found))


def start_texts(kind: Any = StartOptions, metavars: dict[str, str] = METAVARS) -> list[tuple[str, str]]:
    """The options of this dataclass with their metavars, and their texts."""
    shown = {
        field.name: f"no-{field.name}" if field.default is True else field.name for field in dataclasses.fields(kind)
    }
    return [(f"--{option} {metavars.get(name, '')}".strip(), text_of(kind, name)) for name, option in shown.items()]


def read_sweep(
    config: Any, texts: Iterable[str], words: list[str]
) -> tuple[dict[str, list[str]], Callable[[dict[str, str]], list[str]]]:
    """The values that --sweep asks for, by setting; a function from some of them to options.

    ConfigError if a setting is swept and set by these words.
    """
    settings = settings_of(config)
    sweep = read_sweeps(texts, settings)
    require_not_set(sweep, settings, words)
    return sweep, partial(as_words, settings=settings)


def read_sweeps(texts: Iterable[str], settings: Iterable[Setting]) -> dict[str, list[str]]:
    """The texts of the values of each swept setting, by its flat name.

    A comma before KEY= is part of a value: piecewise:0=1,0.5=0.1 is one, and so is a wrapper with
    arguments.
    """
    names = {name: setting.name for setting in settings for name in (setting.name, _plain(setting.option))}
    found: dict[str, list[str]] = {}
    for text in texts:
        given, equals, values = text.partition("=")
        require(bool(equals and values), f"--sweep {text!r} names no values; write it like {EXAMPLE}")
        name = names.get(_plain(given), _plain(given))
        require(name not in found, f"--sweep {name} is given twice; write all its values in one: {EXAMPLE}")
        found[name] = [value.strip() for value in re.split(r",(?!\s*[\w.]+=)", values)]
        require(all(found[name]), f"--sweep {text!r} has an empty value; write it like {EXAMPLE}")
    return found


def as_words(point: dict[str, str], settings: Iterable[Setting]) -> list[str]:
    """The options that set these values: hidden_sizes=64 64 is --hidden-sizes 64 64."""
    by_name = {setting.name: setting for setting in settings}
    for name in point:
        require(name in by_name, f"{name} is for Atari games, whose ids begin with ALE/")
    return [word for name, text in point.items() for word in _option_words(by_name[name], text)]


def require_not_set(swept: Iterable[str], settings: Iterable[Setting], words: list[str]) -> None:
    """Raise ConfigError if a swept setting is also an option."""
    used = {_plain(word.partition("=")[0]).removeprefix("no_") for word in words if word.startswith("--")}
    for setting in settings:
        is_set = setting.name in swept and used & {setting.name, _plain(setting.option)}
        require(not is_set, f"{setting.option} and --sweep {setting.name} set the same setting; leave one out")


def _divided(words: list[str]) -> tuple[list[str], StartOptions, list[str]]:
    """The task, the options that are no settings, and those that are.

    The task may follow options that are no settings: `birl train --like runs/mine ppo`.
    """
    task, words = _task_first(words)
    start, rest = read_known(StartOptions, words, "birl train")
    if not task:
        task, rest = _task_first(rest)
    misplaced = next((word for word in rest if word in ALGORITHMS), "")
    begun = bool(task or start.like or start.config)
    wrong = "birl train needs the algorithm and the environment before the settings"
    require(begun or not misplaced, f"{wrong}: birl train {misplaced} CartPole-v1 --seed 1")
    return task, start, rest


def _task_first(words: list[str]) -> tuple[list[str], list[str]]:
    """At most an algorithm and an environment, and the words after them."""
    task = list(itertools.takewhile(lambda word: not word.startswith("-"), words[:2]))
    return task, words[len(task) :]


def _task(task: list[str], start: StartOptions) -> tuple[str, str, list[SettingsSource]]:
    """The algorithm, the environment, and the settings to begin with."""
    algorithm = task[0] if len(task) == 2 or (task and task[0] in ALGORITHMS) else None
    if algorithm is not None and ":" in algorithm:
        allow_modules_here(algorithm)
        algorithm = import_algorithm(algorithm)
    if start.trust:
        allow_modules_here(trust=True)
    env_id = task[-1] if task and (len(task) == 2 or algorithm is None) else None
    sources = [like_run(start.like, env_id, start.trust)] if start.like else []
    sources += [from_file(start.config, env_id, start.trust)] if start.config else []
    for source in sources:
        algorithm = algorithm or source.algorithm
        env_id = env_id or source.env_id
        wrong = f"{source.name} has settings of {source.algorithm}, not of {algorithm}"
        require(
            source.algorithm in (None, algorithm), f"{wrong}; leave the algorithm out, or use birl train {algorithm}"
        )
    _require_task(task, algorithm, env_id)
    return str(algorithm), str(env_id), sources


def _require_task(task: list[str], algorithm: str | None, env_id: str | None) -> None:
    """Raise ConfigError unless there is both an algorithm and an environment."""
    require(bool(task or algorithm), "birl train needs an algorithm and an environment: birl train ppo CartPole-v1")
    if algorithm is None or (algorithm not in ALGORITHMS and env_id in ALGORITHMS):
        meant = suggest_algorithm(task[0], ALGORITHMS)
        require(not meant or len(task) > 1, f"algorithm {task[0]!r} is unknown; {meant}")
        example = f"birl train {task[1] if len(task) == 2 else 'ppo'} {task[0]}"
        known = f"algorithms: {', '.join(ALGORITHMS)}"
        raise ConfigError(f"birl train needs an algorithm before the environment: {example}; {known}")
    algorithm_named(algorithm)
    require(env_id is not None, f"birl train {algorithm} needs an environment: birl train {algorithm} CartPole-v1")


def _require_known(source: SettingsSource, algorithm: str, config: Any) -> None:
    """Raise ConfigError if a file has settings that there are not, with what it may mean."""
    known = {*flat_settings(config), "run_dir"}
    for name in source.settings.keys() - known:
        remedy = suggest_setting(name, known) or f"birl train {algorithm} --help shows the settings"
        raise ConfigError(f"{source.name}: {algorithm} has no setting {name!r}; {remedy}")


def _schedule_rule(info: tyro.constructors.PrimitiveTypeInfo) -> tyro.constructors.PrimitiveConstructorSpec | None:
    """Read a schedule from one word, such as linear:1e-3:0."""
    optional = info.type == float | schedules.Schedule | None
    if info.type != float | schedules.Schedule and not optional:
        return None
    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="SCHEDULE",
        instance_from_str=lambda given: None if optional and given[0] == "None" else schedules.parse(given[0]),
        is_instance=lambda value: isinstance(value, float | schedules.Schedule) or (optional and value is None),
        str_from_instance=lambda value: ["None" if value is None else schedules.shown(value)],
    )


def _wrapper_rule(info: tyro.constructors.PrimitiveTypeInfo) -> tyro.constructors.PrimitiveConstructorSpec | None:
    """Read a wrapper from one word, such as my_module:MyWrapper,size=3."""
    if info.type is not Wrapper:
        return None
    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="WRAPPER",
        instance_from_str=lambda given: Wrapper.from_text(given[0]),
        is_instance=lambda value: isinstance(value, Wrapper),
        str_from_instance=lambda value: [value.text()],
    )


def _option_words(setting: Setting, text: str) -> list[str]:
    if setting.hint is bool:
        if text.casefold() not in ("true", "false"):
            raise ConfigError(f"{setting.name} {text!r} is not True or False")
        return [setting.option if text.casefold() == "true" else setting.option.replace("--", "--no-", 1)]
    one = setting.name in OPTION_NAMES or not _has_several(setting.hint)
    return [setting.option, *([text] if one else text.split())]


def _has_several(hint: Any) -> bool:
    """True if a setting with this annotation takes several words: hidden_sizes, kwargs."""
    return typing.get_origin(hint) in (tuple, dict) or any(map(_has_several, typing.get_args(hint)))


def _plain(name: str) -> str:
    return name.strip().lstrip("-").replace("-", "_")
