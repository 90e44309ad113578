"""Settings for a run: those of a preset, another run or a file, changed by flat names."""

import dataclasses
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym

from birl.config import ConfigError, EnvConfig, Wrapper, passed_encoder, require
from birl.errors import cut, suggest_setting
from birl.maths import schedules
from birl.presets import find_preset
from birl.presets.entry import core_of
from birl.registry import algorithm_named, import_algorithm, name_of
from birl.run.directory import StoredSettings, read_settings
from birl.run.files import parse_json, read_bytes
from birl.run.given import PASSED_IN, Given
from birl.settings import PARTS, flat_settings, places_of, replaced
from birl.types import Envs


class SettingsSource(NamedTuple):
    """Settings to begin with, from a run or a file. What it does not say is None or left out."""

    name: str  # for messages
    algorithm: str | None
    env_id: str | None
    settings: dict[str, Any]  # by flat name: num_envs, not env.num_envs
    notices: list[str]


def configure(
    algorithm: str | None = None,
    env: str | EnvConfig | None = None,
    *,
    like: str | Path | None = None,
    trust: bool = False,
    preset: bool = True,
    **settings: Any,
) -> Any:
    """The Config for a task: its preset if there is one, changed by these settings.

    Without `preset`, it begins with the algorithm's defaults.
    Settings have the names of the command line's options, without dashes: `total_steps`, `num_envs`
    and `learning_rate` alike. An EnvConfig replaces the preset's environment settings. With `like`,
    the settings of that run take the place of the preset's; its run_dir is not taken over. A run
    that was made elsewhere or by someone else may name modules only with `trust`.
    """
    if like is not None:
        return _like(like, algorithm, env, trust, settings)
    example = 'birl.configure("ppo", "CartPole-v1")'
    if algorithm is None or env is None:
        raise ConfigError(f"an algorithm and an environment are needed: {example}, or like= for those of a run")
    return configured(algorithm, env, settings, preset)[0]


def configured(
    algorithm: str, env: str | EnvConfig, settings: Mapping[str, Any], preset: bool = True
) -> tuple[Any, str]:
    """The Config for a task, and a sentence about where its defaults come from."""
    if isinstance(env, str):
        return from_preset(algorithm, env, lambda config: with_settings(config, settings), preset)
    wrong = f"env {cut(env)} is not an environment's id"
    require(
        isinstance(env, EnvConfig), f"{wrong}; use for example 'CartPole-v1', or make_env= for a class or a function"
    )

    def change(config: Any) -> Any:
        return with_settings(dataclasses.replace(config, env=env), settings)

    return from_preset(algorithm, env.id, change, preset)


def from_preset(algorithm: str, env_id: str, change: Callable[[Any], Any], preset: bool = True) -> tuple[Any, str]:
    """The changed preset of a task, and a sentence about where its defaults come from.

    Without `preset` they are the algorithm's. Hidden velocities and a core select another preset,
    so `change` may be called twice.
    """
    algorithm = import_algorithm(algorithm)
    default = algorithm_named(algorithm).Config(env=EnvConfig(env_id))
    if not preset:
        return change(default), "default settings"
    plain = find_preset(algorithm, env_id)
    config = change(plain.config if plain else default)
    hidden = config.env.hide_velocities
    found = find_preset(algorithm, env_id, hidden, core_of(config))
    if found is None:
        instead = "the preset of the plain task" if plain else "default settings"
        return config, f"no preset for {algorithm} on {env_id} with these options: using {instead}"
    if found != plain:
        config = change(found.config)
    task = f"{algorithm} {env_id}{' hidden velocities' if hidden else ''} {core_of(config)}"
    if found.measured is None:
        return config, f"preset {task}: published settings, not measured here"
    return config, f"preset {task}, measured at a return of {found.measured.score:g}"


def with_settings(config: Any, settings: Mapping[str, Any]) -> Any:
    """The Config with these settings, by flat name; ConfigError if one is unknown."""
    known = places_of(config.__class__).keys() - {"id"}
    for name in settings.keys() - known:
        algorithm = name_of(config)
        remedy = suggest_setting(name, known) or f"birl train {algorithm} --help lists them"
        raise ConfigError(f"{algorithm} has no setting {name!r}; {remedy}")
    return replaced(config, settings)


def called_env(algorithm: Any, given: Given) -> str | EnvConfig | None:
    """The environment that is to be trained on: its id or settings; None: that of the Config."""
    named = {"env": given.env, "envs": given.envs, "make_env": given.make_env}
    names = [name for name, value in named.items() if value is not None]
    example = 'birl.train("ppo", "CartPole-v1")'
    needed = f"an environment is needed: {example}, or one of make_env= and envs="
    require(bool(names) or not isinstance(algorithm, str), needed)
    require(len(names) <= 1, f"{' and '.join(names)} each name the environments; use one of them")
    return given.named_env


def called_config(
    algorithm: Any, env: str | EnvConfig | None, given: Given, settings: dict[str, Any], preset: bool = True
) -> tuple[Any, list[str]]:
    """The Config of a run, and notices about where its defaults come from.

    `algorithm` is a name or a Config, and `env` is what `called_env` gave.
    """
    settings = settings | passed_encoder(given.make_encoder)
    if isinstance(algorithm, str):
        assert env is not None
        config, notice = configured(algorithm, env, settings, preset)
        if "num_envs" not in settings and isinstance(given.envs, gym.vector.VectorEnv | Envs):
            config = dataclasses.replace(config, env=dataclasses.replace(config.env, num_envs=given.envs.num_envs))
        return config, [notice]
    name_of(algorithm)  # refuses anything that is no Config
    if isinstance(env, EnvConfig):
        algorithm = dataclasses.replace(algorithm, env=env)
    elif env is not None:
        algorithm = dataclasses.replace(algorithm, env=dataclasses.replace(algorithm.env, id=env))
    return with_settings(algorithm, settings), []


def like_run(run_dir: str | Path, env_id: str | None = None, trust: bool = False) -> SettingsSource:
    """The settings of a run, without its run_dir; `env_id` replaces its environment.

    A run that was made elsewhere or by someone else may name a module or start processes only with
    `trust`, as when it is resumed.
    """
    return _of_run(read_settings(Path(run_dir)), str(run_dir), env_id, trust)


def from_file(path: str | Path, env_id: str | None = None, trust: bool = False) -> SettingsSource:
    """The settings in a JSON or TOML file.

    Names are flat, or nested as in a run's config.json. `algorithm` and `env` may be among them. A
    run's config.json itself is taken as that run, see `like_run`.
    """
    path = Path(path)
    found = _read(path)
    match found:
        case {"algorithm": str(algorithm), "config": dict(values)}:
            stored = StoredSettings(algorithm, values, found.get("signature"), path)
            return _of_run(stored, str(path), env_id, trust)
    settings = _flat(found)
    algorithm = settings.pop("algorithm", None)
    env = settings.pop("env", settings.pop("id", None))
    for name, value in {"algorithm": algorithm, "env": env}.items():
        require(value is None or isinstance(value, str), f"{path}: {name} must be a string, not {cut(value)}")
    if trust and algorithm is not None:
        algorithm = import_algorithm(algorithm)
    return SettingsSource(str(path), algorithm, env_id or env, settings, [])


def value_text(value: Any) -> str:
    """A setting's value as it is written on the command line; "" for an empty tuple or dict."""
    match value:
        case schedules.Schedule():
            return schedules.shown(value)
        case Wrapper():
            return value.text()
        case tuple():
            return " ".join(map(value_text, value))
        case dict():
            return " ".join(f"{name} {value_text(item)}" for name, item in value.items())
        case float():
            short = f"{value:g}"
            return short if float(short) == value else str(value)
    return str(value)


def _like(
    run_dir: str | Path, algorithm: str | None, env: str | EnvConfig | None, trust: bool, settings: Mapping[str, Any]
) -> Any:
    """The Config of a run, for a new one, changed by these settings."""
    source = like_run(run_dir, env.id if isinstance(env, EnvConfig) else env, trust)
    wrong = f"{run_dir} has settings of {source.algorithm}, not of {algorithm}"
    require(algorithm in (None, source.algorithm), f"{wrong}; leave the algorithm out")
    fresh = algorithm_named(str(source.algorithm)).Config(env=EnvConfig(str(source.env_id)))
    config = with_settings(fresh, source.settings)
    return with_settings(dataclasses.replace(config, env=env) if isinstance(env, EnvConfig) else config, settings)


def _of_run(stored: StoredSettings, name: str, env_id: str | None, trust: bool) -> SettingsSource:
    consent = stored.consent(trust)
    config, notices = consent.to_train(consent.config(stored.algorithm, stored.values), env_id)
    wrong = f"{name} was trained on environments that were passed in, which Birl cannot make"
    require(config.env.id != PASSED_IN, f"{wrong}; name an environment")
    if stored.changes:
        after = f"after {stored.changes[-1].env_steps:,} steps"
        notices.append(f"{name} got its settings by a resume {after}: it did not begin with them")
    return SettingsSource(name, stored.algorithm, config.env.id, flat_settings(config), notices)


def _read(path: Path) -> dict[str, Any]:
    content = read_bytes(path)
    if path.suffix == ".toml":
        try:
            return tomllib.loads(content.decode())
        except (ValueError, RecursionError) as problem:  # UnicodeDecodeError and TOMLDecodeError too
            raise ConfigError(f"{path} is not TOML: {problem}") from problem
    require(path.suffix == ".json", f"{path} must end in .json or .toml")
    found = parse_json(content, path)
    require(isinstance(found, dict), f"{path} must hold an object with settings")
    return found


def _flat(settings: dict[str, Any]) -> dict[str, Any]:
    """Nested settings by their flat names; names may be written with dashes."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        name = name.replace("-", "_")
        found = _flat(value) if name in PARTS and isinstance(value, dict) else {name: value}
        twice = sorted(flat.keys() & found.keys())
        require(not twice, f"setting {', '.join(twice)} is given twice")
        flat |= found
    return flat
