"""Compiled environments by their ids."""

import importlib
from collections.abc import Callable
from typing import Any

from birl.config import ConfigError, EnvConfig, require
from birl.envs.compiled.interface import CompiledEnv
from birl.envs.explain import errors_explained
from birl.envs.registration import find_function

CLASSIC = {  # Gymnasium's environments that Birl also has in JAX, with the same physics
    "CartPole-v1": "birl.envs.compiled.cartpole:CartPole",
    "Acrobot-v1": "birl.envs.compiled.acrobot:Acrobot",
    "MountainCar-v0": "birl.envs.compiled.mountain_car:MountainCar",
    "MountainCarContinuous-v0": "birl.envs.compiled.mountain_car:MountainCarContinuous",
    "Pendulum-v1": "birl.envs.compiled.pendulum:Pendulum",
}
OWN = {  # Birl's own, which exist only in JAX
    "birl/MemoryGrid-v0": "birl.envs.compiled.memory_grid:MemoryGrid",
    "birl/Crawler-v0": "birl.envs.compiled.crawler:Crawler",
}
SUITES = {  # PREFIX/NAME: the function that makes NAME
    "gymnax": "birl.envs.compiled.gymnax:make_gymnax",
    "brax": "birl.envs.compiled.brax:make_brax",
}


def is_compiled_id(env_id: str) -> bool:
    """Whether an id names an environment that exists only in JAX."""
    return env_id in OWN or env_id.partition("/")[0] in SUITES


def has_twin(config: EnvConfig) -> bool:
    """Whether Gymnasium has the same environment, which is then evaluated, played and recorded."""
    return config.id in CLASSIC


def make_compiled(config: EnvConfig) -> CompiledEnv:
    """The compiled environment of these settings; ConfigError if there is none of this id."""
    make = _maker(config.id)
    with errors_explained(config):
        env = make(**config.kwargs)
    wrong = f"env.id {config.id!r} made {env!r}, which has no spaces, reset and step as birl.CompiledEnv has them"
    require(isinstance(env, CompiledEnv), f"{wrong}; see docs/compiled-environments.md")
    return env


def _maker(env_id: str) -> Callable[..., Any]:
    """The function that makes this environment."""
    prefix, _, name = env_id.partition("/")
    if path := (CLASSIC | OWN).get(env_id):
        return _function(path)
    if prefix in SUITES:
        make = _function(SUITES[prefix])
        return lambda **kwargs: make(name, **kwargs)
    if (function := find_function(env_id)) is not None:
        return function
    known = ", ".join([*CLASSIC, *OWN, *(f"{prefix}/NAME" for prefix in SUITES)])
    remedy = f"use one of {known}, a class of your own as module:Class, or backend gymnasium"
    raise ConfigError(f"env.id {env_id!r} is not among the compiled environments; {remedy}")


def _function(path: str) -> Callable[..., Any]:
    module, _, name = path.partition(":")
    return vars(importlib.import_module(module))[name]
