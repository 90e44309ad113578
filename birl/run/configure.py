"""Settings for a run: the preset of its task, changed by the flat names of the command line."""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from birl.config import ConfigError, EnvConfig, require
from birl.envs.make import MakeEnv, name_of_make_env
from birl.errors import cut, suggest_setting
from birl.presets import find_preset
from birl.presets.entry import core_of
from birl.registry import algorithm_named, import_algorithm, name_of
from birl.run.evaluate import PASSED_IN
from birl.run.sources import like_run
from birl.settings import places_of, replaced

Change = Callable[[Any], Any]  # from a Config to one with other settings


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


def from_preset(algorithm: str, env_id: str, change: Change, preset: bool = True) -> tuple[Any, str]:
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


def called_env(
    algorithm: Any, env: str | EnvConfig | None, envs: Any, make_env: MakeEnv | None
) -> str | EnvConfig | None:
    """The environment that is to be trained on: its id or settings; None: that of the Config."""
    given = [name for name, value in {"env": env, "envs": envs, "make_env": make_env}.items() if value is not None]
    if not isinstance(algorithm, str) and not given:
        return None
    example = 'birl.train("ppo", "CartPole-v1")'
    require(bool(given), f"an environment is needed: {example}, or one of make_env= and envs=")
    require(len(given) == 1, f"{' and '.join(given)} each name the environments; use one of them")
    if envs is not None:
        return PASSED_IN
    if make_env is None:
        return env
    return name_of_make_env(make_env)


def called_config(
    algorithm: Any, env: str | EnvConfig | None, settings: dict[str, Any], preset: bool = True
) -> tuple[Any, list[str]]:
    """The Config of a run, and what to say about where its defaults come from."""
    if isinstance(algorithm, str):
        assert env is not None
        config, notice = configured(algorithm, env, settings, preset)
        return config, [notice]
    name_of(algorithm)  # refuses anything that is no Config
    if isinstance(env, EnvConfig):
        algorithm = dataclasses.replace(algorithm, env=env)
    elif env is not None:
        algorithm = dataclasses.replace(algorithm, env=dataclasses.replace(algorithm.env, id=env))
    return with_settings(algorithm, settings), []


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
