"""Compiled environments by their ids."""

import importlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import gymnasium as gym

from birl.compiled_ids import CLASSIC, OWN, SUITES, has_twin, is_compiled_id
from birl.config import ConfigError, EnvConfig, require
from birl.envs.compiled.interface import CompiledEnv
from birl.envs.explain import errors_explained
from birl.envs.registration import find_function
from birl.suggestions import suggest_compiled

__all__ = ["CLASSIC", "OWN", "SUITES", "has_twin", "is_compiled_id", "make_compiled", "with_id"]


def make_compiled(config: EnvConfig) -> CompiledEnv:
    """The compiled environment of these settings; ConfigError if there is none of this id."""
    with errors_explained(config):
        make, arguments = maker_of(config.id)
        env = make(*arguments, **config.kwargs)
    wrong = f"env.id {config.id!r} made {env!r}, which is a Gymnasium environment and not a compiled one"
    require(not isinstance(env, gym.Env), f"{wrong}; use backend gymnasium, or write it as a birl.CompiledEnv")
    wrong = f"env.id {config.id!r} made {env!r}, which has no spaces, reset and step as birl.CompiledEnv has them"
    require(isinstance(env, CompiledEnv), f"{wrong}; see docs/compiled-environments.md")
    return env


def with_id(config: EnvConfig, env_id: str) -> EnvConfig:
    """The settings with another id; with backend gymnasium if that is no compiled environment.

    So a policy that was trained in compiled environments can be played in others.
    """
    named = replace(config, id=env_id)
    if config.backend != "compiled" or env_id in CLASSIC or is_compiled_id(env_id):
        return named
    with errors_explained(named):
        function = find_function(env_id)
    is_gymnasium = function is None or (isinstance(function, type) and issubclass(function, gym.Env))
    return replace(named, backend="gymnasium") if is_gymnasium else named


def maker_of(env_id: str) -> tuple[Callable[..., Any], tuple[str, ...]]:
    """The function that makes this environment, and its arguments before `kwargs`."""
    prefix, _, name = env_id.partition("/")
    if path := (CLASSIC | OWN).get(env_id):
        return _function(path), ()
    if is_compiled_id(env_id):
        return _function(SUITES[prefix]), (name,)
    if (function := find_function(env_id)) is not None:
        return function, ()
    known = ", ".join([*CLASSIC, *OWN, *(f"{prefix}/NAME" for prefix in SUITES)])
    meant = suggest_compiled(env_id)
    remedy = f"use one of {known}, a class of your own as module:Class, or backend gymnasium"
    wrong = f"env.id {env_id!r} is not among the compiled environments"
    raise ConfigError(f"{wrong}; {meant}. Or {remedy}" if meant else f"{wrong}; {remedy}")


def _function(path: str) -> Callable[..., Any]:
    module, _, name = path.partition(":")
    return vars(importlib.import_module(module))[name]
