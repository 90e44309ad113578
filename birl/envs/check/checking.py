"""Check whether an environment is fit for training. A bad one gives findings, no exception."""

from collections.abc import Callable
from dataclasses import replace

import gymnasium as gym

from birl.config import ConfigError, EnvConfig, is_compiled, name_of_function, require
from birl.envs.check.answers import Finding, check_actions, check_compiled, check_interface, error, tried_envs, warning
from birl.envs.check.trials import check_play, check_resume, check_seeding
from birl.envs.compiled.interface import CompiledEnv
from birl.envs.make import MakeEnv, spare
from birl.envs.registration import newer_version
from birl.errors import EnvError, cut


def check_env(config: str | EnvConfig | MakeEnv) -> list[Finding]:
    """Findings from making, resetting, stepping, seeding and restoring the environment.

    `config` may be an environment's id, or a class or function that makes it. Everything runs in
    this process.
    """
    config = _config_of(config)
    config = spare(config, config.num_envs)
    try:
        tried_envs(replace(config, num_envs=1), 0).close()
    except ConfigError as problem:
        return [error("cannot be made", str(problem))]
    except Exception as problem:
        source = "it" if is_compiled(config) else "its constructor"
        return [error("cannot be made", f"{source} raised {type(problem).__name__}: {problem}")]
    newer = newer_version(config.id) if config.backend == "gymnasium" else None
    findings = [warning("old version", f"use {newer}")] if newer else []
    checks: list[Callable[[EnvConfig], list[Finding]]] = []
    if is_compiled(config):
        checks = [check_compiled]
    elif config.backend == "gymnasium":
        checks = [check_interface]
    checks += [check_actions, check_seeding, check_play, check_resume]
    for check in checks:
        found, broken = _run(check, config)
        findings += found
        if broken:  # the checks that follow would find the same fault again
            return [*findings, warning("not checked further", "fix the error above, then check again")]
    return findings


def _config_of(given: str | EnvConfig | MakeEnv) -> EnvConfig:
    """The settings of the environment to check."""
    if isinstance(given, EnvConfig):
        return given
    if isinstance(given, str):
        return EnvConfig(given)
    wrong = f"{cut(given)} is not an environment's id"
    require(callable(given), f"{wrong}; use 'my_module:MyEnv', an EnvConfig, or the class of the environment")
    return EnvConfig(name_of_function(given), backend="compiled" if _makes_compiled(given) else "gymnasium")


def _makes_compiled(make: MakeEnv) -> bool:
    """True if a class or function makes a compiled environment; if it raises, a check says so."""
    try:
        env = make()
    except Exception:
        return False
    return isinstance(env, CompiledEnv) and not isinstance(env, gym.Env)


def _run(check: Callable[[EnvConfig], list[Finding]], config: EnvConfig) -> tuple[list[Finding], bool]:
    """The findings of a check, and True if the environment is too broken for more checks.

    It is if the check raised, or if reset or step break Gymnasium's rules.
    """
    try:
        findings = check(config)
    except (EnvError, RuntimeError) as problem:  # they say what the environment did, and where
        return [error("reset and step", str(problem))], True
    except (Exception, SystemExit) as problem:
        title = check.__name__.removeprefix("check_")
        return [error(title, f"{type(problem).__name__}: {problem}")], True
    return findings, check is check_interface and any(finding.level == "error" for finding in findings)
