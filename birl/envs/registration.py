"""What Gymnasium's registry knows of an environment id: its spec, newer versions, arguments."""

import importlib
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from birl.config import EnvConfig


def find_spec(env_id: str) -> EnvSpec:
    """The registered spec. Imports the module of a module:Id, and ale_py for an Atari game."""
    module, _, name = env_id.rpartition(":")
    if module:
        importlib.import_module(module)
    if name.startswith("ALE/"):
        ale_py = importlib.import_module("ale_py")
        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)  # else every process prints a banner
        gym.register_envs(ale_py)
    return gym.spec(name)


def newer_version(env_id: str) -> str | None:
    """The id of the latest registered version if it is newer than this one, else None."""
    name, _, version = env_id.rpartition(":")[2].rpartition("-v")
    versions = [
        spec.version or 0
        for spec in gym.registry.values()
        if "/".join(filter(None, (spec.namespace, spec.name))) == name
    ]
    latest = max(versions, default=0)
    return f"{name}-v{latest}" if version.isdigit() and latest > int(version) else None


def make_arguments(config: EnvConfig) -> dict[str, Any]:
    """Arguments of gymnasium.make or envpool.make for an environment that is no Atari game."""
    limit = {} if config.max_episode_steps is None else {"max_episode_steps": config.max_episode_steps}
    return limit | dict(config.kwargs)
