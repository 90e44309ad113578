"""Errors while an environment is made, as messages that say what to do."""

import importlib.metadata
import importlib.util
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import gymnasium as gym

from birl.config import ConfigError, EnvConfig
from birl.envs.registration import newer_version, package_of
from birl.errors import cut, install_extra
from birl.suggestions import living_relative, suggest_env


class Package(NamedTuple):
    """What brings a module, where Birl has no extra for it."""

    install: str
    beside: str = ""  # what else, in versions that work with it

    def command(self) -> str:
        """How to install it."""
        return f"pip install '{self.install}'" + (f" '{self.beside}'" if self.beside else "")

    def conflict(self) -> str:
        """What is wrong with the versions that are installed; "" if they work together."""
        name, _, bound = self.beside.partition("<")
        try:
            installed = importlib.metadata.version(name) if name else ""
        except importlib.metadata.PackageNotFoundError:
            return ""
        if _release(installed) < _release(bound) or not name:
            return ""
        return f"{self.install} works with {self.beside}, and {name} {installed} is installed: {self.command()}"


EXTRAS = {  # the extra that brings a module
    "ale_py": "atari",
    "mujoco": "mujoco",
    "gymnax": "gymnax",
    "six": "gymnax",  # gymnax imports it and does not say so
    "brax": "brax",
    "jumanji": "jumanji",
    "mujoco_playground": "playground",
}
PACKAGES = {
    "Box2D": Package("box2d"),
    "pygame": Package("gymnasium[classic-control]"),
    "minigrid": Package("minigrid"),
    "gymnasium_robotics": Package("gymnasium-robotics", "mujoco<3.9"),
    "shimmy": Package("shimmy[dm-control]", "mujoco<4"),
    "highway_env": Package("highway-env"),
    "popgym": Package("popgym"),
}
OLD_MUJOCO = "mujoco_py"  # which nobody maintains


@contextmanager
def errors_explained(config: EnvConfig, render_mode: str | None = None) -> Iterator[None]:
    """Turn whatever is raised while an environment is made into a ConfigError with a remedy."""
    try:
        yield
    except ConfigError:
        raise
    except (ImportError, gym.error.Error, SystemExit, TypeError) as error:
        raise ConfigError(_explanation(config, render_mode, error)) from error
    except Exception as error:
        if not _conflict(config):
            raise
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
        case gym.error.DependencyNotInstalled() if OLD_MUJOCO in str(error):
            maintained = newer_version(config.id) or "a newer version"
            is_missing = importlib.util.find_spec("mujoco") is None
            remedy = _conflict(config) or (install_extra(EXTRAS["mujoco"]) if is_missing else "")
            wrong = f"env.id {config.id!r} needs {OLD_MUJOCO}, which is no longer maintained; use {maintained}"
            return f"{wrong}. {remedy}" if remedy else wrong
        case gym.error.DependencyNotInstalled():
            words = str(error).lower()
            missing = next((name for name in EXTRAS | PACKAGES if re.search(rf"\b{name.lower()}\b", words)), "")
            return f"{_missing_module(config, missing)} ({error})"
        case gym.error.DeprecatedEnv():
            conflict = _conflict(config)
            return f"env.id {config.id!r} is too old: {error}" + (f" {conflict}" if conflict else "")
        case _ if conflict := _conflict(config):
            said = f": {' '.join(str(error).split())}" if str(error) else ""
            return f"env.id {config.id!r} cannot be made ({type(error).__name__}{said}); {conflict}"
        case ImportError():  # from an installed package: something was moved or removed
            newer = newer_version(config.id)
            return f"env.id {config.id!r} cannot be made: {error}{f'; use {newer}' if newer else ''}"
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


def _conflict(config: EnvConfig) -> str:
    """Versions of the id's package and of another one that do not work together; "" if they do."""
    module = package_of(config.id)
    return PACKAGES[module].conflict() if module else ""


def _release(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)[:2]]


def _missing_module(config: EnvConfig, module: str) -> str:
    wrong = f"env.id {config.id!r} needs the module {module}, which is not installed"
    if module in EXTRAS:
        return f"{wrong}: {install_extra(EXTRAS[module])}"
    if module in PACKAGES:
        newer = newer_version(config.id)
        return f"{wrong}: {PACKAGES[module].command()}" + (f", and use {newer}" if newer else "")
    if relative := living_relative(config.id):
        return f"{wrong}; {relative}"
    return f"{wrong}: install {module}, or correct the module before the colon"
