"""Check whether an environment is fit for training. A bad one gives findings, no exception."""

from collections.abc import Callable
from dataclasses import replace

from birl.config import ConfigError, EnvConfig, require
from birl.envs.check_interface import check_actions, check_interface
from birl.envs.check_play import check_play, check_seeding
from birl.envs.check_resume import check_resume
from birl.envs.findings import Finding, error, warning
from birl.envs.make import make_envs
from birl.envs.registration import newer_version


def check_env(config: str | EnvConfig) -> list[Finding]:
    """What making, resetting, stepping, seeding and restoring the environment showed.

    `config` may be an environment's id. Everything runs in this process.
    """
    wrong = f"{config!r} is not an environment's id"
    require(isinstance(config, str | EnvConfig), f"{wrong}; use 'my_module:MyEnv', or an EnvConfig")
    config = replace(EnvConfig(config) if isinstance(config, str) else config, workers=0)
    try:
        make_envs(replace(config, num_envs=1), 0).close()
    except ConfigError as problem:
        return [error("cannot be made", str(problem))]
    except Exception as problem:
        return [error("cannot be made", f"its constructor raised {type(problem).__name__}: {problem}")]
    newer = newer_version(config.id) if config.backend == "gymnasium" else None
    findings = [warning("old version", f"use {newer}")] if newer else []
    checks: list[Callable[[EnvConfig], list[Finding]]] = [check_interface] if config.backend == "gymnasium" else []
    checks += [check_actions, check_seeding, check_play, check_resume]
    for check in checks:
        found, broken = _run(check, config)
        findings += found
        if broken:  # the checks that follow would find the same fault again
            return [*findings, warning("not checked further", "fix the error above, then check again")]
    return findings


def _run(check: Callable[[EnvConfig], list[Finding]], config: EnvConfig) -> tuple[list[Finding], bool]:
    """What a check found, and whether the environment is too broken to go on.

    It is if the check raised, or if reset or step break Gymnasium's rules.
    """
    try:
        findings = check(config)
    except (Exception, SystemExit) as problem:
        title = check.__name__.removeprefix("check_")
        return [error(title, f"{type(problem).__name__}: {problem}")], True
    return findings, check is check_interface and any(finding.level == "error" for finding in findings)
