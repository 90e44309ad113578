"""Errors while an environment is made, as messages that say what to do."""

from collections.abc import Iterator
from contextlib import contextmanager

import gymnasium as gym

from birl.config import ConfigError, EnvConfig
from birl.envs.registration import newer_version
from birl.errors import cut, install_extra
from birl.suggestions import suggest_env

EXTRAS = {  # the extra that brings a module
    "ale_py": "atari",
    "mujoco": "mujoco",
    "gymnax": "gymnax",
    "six": "gymnax",  # gymnax imports it and does not say so
    "brax": "brax",
    "jumanji": "jumanji",
    "mujoco_playground": "playground",
}
PACKAGES = {  # the package that brings it, where Birl has no extra for it
    "Box2D": "box2d",
    "pygame": "gymnasium[classic-control]",
    "minigrid": "minigrid",
    "gymnasium_robotics": "gymnasium-robotics",
    "shimmy": "shimmy[dm-control]",
    "highway_env": "highway-env",
    "popgym": "popgym",
}


@contextmanager
def errors_explained(config: EnvConfig, render_mode: str | None = None) -> Iterator[None]:
    """Turn whatever is raised while an environment is made into a ConfigError with a remedy."""
    try:
        yield
    except (ImportError, gym.error.Error, SystemExit, TypeError) as error:
        raise ConfigError(_explanation(config, render_mode, error)) from error


def _explanation(config: EnvConfig, render_mode: str | None, error: BaseException) -> str:
    match error:
        case gym.error.UnregisteredEnv():
            name = config.id.rpartition(":")[2]
            remedy = f"For an environment of your own, name the module that registers it: my_module:{name}"
            if meant := suggest_env(config.id):
                return f"env.id {config.id!r} is not registered; {meant}. {remedy}"
            return f"env.id {config.id!r} is not registered: {error} {remedy}"
        case ModuleNotFoundError():
            return _missing_module(config, error.name or "")
        case gym.error.DependencyNotInstalled():
            missing = next((name for name in EXTRAS | PACKAGES if name.lower() in str(error).lower()), "")
            return f"{_missing_module(config, missing)} ({error})"
        case ImportError():  # from an installed package: something was moved or removed
            newer = newer_version(config.id)
            return f"env.id {config.id!r} cannot be made: {error}{f'; use {newer}' if newer else ''}"
        case gym.error.DeprecatedEnv():
            return f"env.id {config.id!r} is too old: {error}"
        case gym.error.Error():
            meant = suggest_env(config.id) or "ids end in a version: CartPole-v1"
            return f"env.id {config.id!r} cannot be made: {error}; {meant}"
        case SystemExit():
            return f"env.id {config.id!r} cannot be made: it called sys.exit({error}); let it raise an error instead"
    if render_mode is not None:  # the other arguments worked in training
        listed = f"list {render_mode!r} in metadata['render_modes']"
        remedy = f"let its class take render_mode, {listed} and have a render method"
        return f"env.id {config.id!r} cannot be drawn: {error}; {remedy}"
    return f"env.kwargs {cut(config.kwargs)} do not fit env.id {config.id!r}: {error}; use what its constructor takes"


def _missing_module(config: EnvConfig, module: str) -> str:
    wrong = f"env.id {config.id!r} needs the module {module}, which is not installed"
    if module in EXTRAS:
        return f"{wrong}: {install_extra(EXTRAS[module])}"
    if module in PACKAGES:
        return f"{wrong}: pip install '{PACKAGES[module]}'"
    return f"{wrong}: install {module}, or correct the module before the colon"
