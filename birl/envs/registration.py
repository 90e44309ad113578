"""What is known of an environment id: its spec, its package or function, newer versions."""

import importlib
from collections.abc import Callable
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from birl.config import ConfigError, EnvConfig
from birl.functions import LOCAL, function_named

# Packages that register environments when they are imported, by how the ids begin.
PACKAGES = {
    "minigrid": ("MiniGrid-", "BabyAI-"),
    "gymnasium_robotics": ("Fetch", "Hand", "PointMaze", "AntMaze", "Adroit", "FrankaKitchen"),
    "shimmy": ("dm_control/",),
    "highway_env": ("highway-", "merge-", "roundabout-", "parking-", "intersection-", "racetrack-"),
    "popgym": ("popgym-",),
}
# The latest versions of ids that tutorials name by older ones, by how they begin.
LATEST = {"Fetch": 4, "HandReach": 3, "HandManipulate": 1, "AntMaze": 5, "PointMaze": 3}


def find_spec(env_id: str) -> EnvSpec:
    """The spec of an id. Imports the module of a module:Id, or the package that registers the id.

    A function in module:function has a spec too, which says only that it makes the environment.
    """
    function = find_function(env_id)
    name = env_id.rpartition(":")[2]
    return gym.spec(name) if function is None else EnvSpec(name, entry_point=function)


def find_function(env_id: str) -> Callable[..., Any] | None:
    """The function that a module:function names; None if the id is, or should be, registered."""
    module, _, name = env_id.rpartition(":")
    if module == LOCAL:
        return function_named(env_id, "env.id")
    if module:
        importlib.import_module(module)
    _import_package(name)
    if not module or name in gym.registry:
        return None
    try:
        return function_named(env_id, "env.id")
    except ConfigError as problem:
        listed = ", ".join(_registered_by(module)) or "none"
        raise ConfigError(f"{problem}, and registers no {name}; ids that it registers: {listed}") from problem


def package_of(env_id: str) -> str:
    """The package that registers this id when it is imported; "" if it is not known."""
    name = env_id.rpartition(":")[2]
    return next((package for package, starts in PACKAGES.items() if name.startswith(starts)), "")


def newer_version(env_id: str) -> str | None:
    """The id of the latest version that is known if it is newer than this one, else None."""
    name, _, version = env_id.rpartition(":")[2].rpartition("-v")
    versions = [
        spec.version or 0
        for spec in gym.registry.values()
        if "/".join(filter(None, (spec.namespace, spec.name))) == name
    ]
    latest = max(versions or [number for start, number in LATEST.items() if name.startswith(start)], default=0)
    return f"{name}-v{latest}" if version.isdigit() and latest > int(version) else None


def make_arguments(config: EnvConfig) -> dict[str, Any]:
    """Arguments of gymnasium.make or envpool.make for an environment that is no Atari game."""
    limit = {} if config.max_episode_steps is None else {"max_episode_steps": config.max_episode_steps}
    return limit | dict(config.kwargs)


def _import_package(name: str) -> None:
    """Import the package that registers this id, if it is known and has not been imported."""
    if name.startswith("ALE/"):
        ale_py = importlib.import_module("ale_py")
        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)  # else every process prints a banner
        gym.register_envs(ale_py)
    if (package := package_of(name)) and name not in gym.registry:
        gym.register_envs(importlib.import_module(package))


def _registered_by(module: str) -> list[str]:
    """The ids whose environments are in this module's package."""
    package = module.partition(".")[0]
    entries = {name: spec.entry_point for name, spec in gym.registry.items()}
    homes = {name: entry if isinstance(entry, str) else entry.__module__ for name, entry in entries.items() if entry}
    return sorted(name for name, home in homes.items() if home.partition(":")[0].partition(".")[0] == package)
