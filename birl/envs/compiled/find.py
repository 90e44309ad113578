"""Compiled environments by their ids."""

import importlib
from collections.abc import Callable
from typing import Any

from birl.compiled_ids import CLASSIC, OWN, SUITES, has_twin, is_compiled_id
from birl.config import ConfigError, EnvConfig, require
from birl.envs.compiled.interface import CompiledEnv
from birl.envs.explain import errors_explained
from birl.envs.registration import find_function

__all__ = ["CLASSIC", "OWN", "SUITES", "has_twin", "is_compiled_id", "make_compiled"]


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
