"""Environments and wrappers of the user's own, named as module:function and module:Class."""

import inspect
import weakref
from collections.abc import Callable
from typing import Any

import gymnasium as gym

from birl.config import ConfigError, EnvConfig, Wrapper, require
from birl.envs.compiled.interface import CompiledEnv
from birl.errors import cut
from birl.functions import function_named, name_of_function

MakeEnv = Callable[..., gym.Env | CompiledEnv]  # a class, or a function that makes one environment

_made: "weakref.WeakValueDictionary[int, gym.Env]" = weakref.WeakValueDictionary()  # by id


def name_of_make_env(make_env: MakeEnv) -> str:
    """The id that stands for a function or a class which is passed in as `make_env`."""
    remedy = "pass the class, or a function that makes a new environment each time: make_env=lambda: MyEnv()"
    require(callable(make_env), f"make_env {cut(make_env)} is not a function; {remedy}")
    return name_of_function(make_env)


def env_from(function: Callable[..., Any], config: EnvConfig, render_mode: str | None = None) -> gym.Env:
    """The environment that a function of the user's makes, cut after `max_episode_steps`."""
    rendering = {"render_mode": render_mode} if render_mode is not None and _takes(function, "render_mode") else {}
    arguments = config.kwargs | rendering
    _require_fits(function, (), arguments, f"env.kwargs {cut(config.kwargs)} do not fit env.id {config.id!r}")
    env = function(**arguments)
    is_compiled_env = isinstance(env, CompiledEnv) and not isinstance(env, gym.Env)
    wrong = f"env.id {config.id!r} is a compiled environment"
    require(not is_compiled_env, f"{wrong}; use backend compiled (--backend compiled)")
    remedy = "return one gymnasium.Env; Birl makes num_envs of them"
    require(isinstance(env, gym.Env), f"env.id {config.id!r} returned {cut(env)}; {remedy}")
    again = _made.get(id(env)) is env
    require(not again, f"env.id {config.id!r} returned the same environment twice; make a new one at each call")
    _made[id(env)] = env
    if render_mode is not None and env.render_mode != render_mode:
        wrong = f"env.id {config.id!r} cannot be drawn: its render_mode is {env.render_mode!r}, not {render_mode!r}"
        raise ConfigError(f"{wrong}; let the function take render_mode and pass it on")
    return env if config.max_episode_steps is None else gym.wrappers.TimeLimit(env, config.max_episode_steps)


def wrapped(env: gym.Env, wrappers: tuple[Wrapper, ...]) -> gym.Env:
    """The environment inside these wrappers, the first one innermost."""
    for number, wrapper in enumerate(wrappers):
        setting = f"env.wrappers[{number}]"
        make = function_named(wrapper.path, setting)
        _require_fits(make, (env,), wrapper.kwargs, f"{setting} {wrapper.text()!r} has wrong arguments")
        try:
            outer = make(env, **wrapper.kwargs)
        except (AssertionError, TypeError, ValueError) as problem:  # it is made for other environments
            wrong = f"{setting} {wrapper.text()!r} does not fit {env}: {type(problem).__name__}: {problem}"
            raise ConfigError(wrong) from problem
        remedy = "use a gymnasium.Wrapper, or a function that returns one"
        require(isinstance(outer, gym.Env), f"{setting} {wrapper.text()!r} gave {cut(outer)}, no environment; {remedy}")
        env = outer
    return env


def _takes(function: Callable[..., Any], name: str) -> bool:
    """Whether a function has a parameter of this name, or takes any."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # some built-in functions do not say
        return False
    return name in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def _require_fits(function: Callable[..., Any], arguments: tuple[Any, ...], kwargs: dict[str, Any], wrong: str) -> None:
    """Raise ConfigError, beginning with `wrong`, if a function does not take these arguments."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*arguments, **kwargs)
    except TypeError as problem:
        raise ConfigError(f"{wrong}: {problem}; it takes {signature}") from problem
