"""Birl: deep reinforcement learning you can read, resume bit for bit, and trust.

Every public name is imported when it is first used. Type checkers read __init__.pyi, which
scripts/stub.py writes.
"""

import importlib
from typing import Any

__version__ = "0.6.0"

# By name: a module, or an object in one (see types.Algorithm). `register` adds your own.
ALGORITHMS: dict[str, str] = {
    "reinforce": "birl.algos.reinforce",
    "qac": "birl.algos.qac",
    "a2c": "birl.algos.a2c",
    "ppo": "birl.algos.ppo",
    "trpo": "birl.algos.trpo",
    "dqn": "birl.algos.dqn",
    "dpg": "birl.algos.dpg",
    "ddpg": "birl.algos.ddpg",
    "td3": "birl.algos.td3",
    "sac": "birl.algos.sac",
    "a3c": "birl.algos.a3c",
    "async-q": "birl.algos.async_q",
    "async-sarsa": "birl.algos.async_q:async_sarsa",
    "async-nstep-q": "birl.algos.async_q:async_nstep_q",
    "acer": "birl.algos.acer",
    "qr-dqn": "birl.algos.dqn:qr_dqn",
    "c51": "birl.algos.dqn:c51",
}

_HOMES = {
    "AtariConfig": "birl.config",
    "CompiledEnv": "birl.envs.compiled.interface",
    "ConfigError": "birl.config",
    "EnvConfig": "birl.config",
    "RunConfig": "birl.config",
    "Wrapper": "birl.config",
    "card": "birl.lab.sharing.card",
    "check_env": "birl.envs.check.checking",
    "compare": "birl.lab.comparison",
    "configure": "birl.run.configure",
    "constant": "birl.maths.schedules",
    "diagnose": "birl.lab.diagnosis.diagnosing",
    "exponential": "birl.maths.schedules",
    "linear": "birl.maths.schedules",
    "piecewise": "birl.maths.schedules",
    "evaluate": "birl.run.evaluating",
    "export": "birl.lab.exporting.exporting",
    "fork": "birl.lab.forking",
    "Policy": "birl.run.policy",
    "load": "birl.run.loading",
    "open_fork": "birl.lab.forking",
    "play": "birl.run.record",
    "preset": "birl.presets",
    "prove": "birl.lab.diagnosis.proof",
    "pull": "birl.lab.sharing.pull",
    "push": "birl.lab.sharing.push",
    "record": "birl.run.record",
    "register": "birl.registry",
    "reopen": "birl.run.start",
    "report": "birl.lab.report.sections",
    "resume": "birl.run.start",
    "schedule": "birl.maths.schedules",
    "solve": "birl.lab.solving",
    "start": "birl.run.start",
    "train": "birl.run.start",
    "tune": "birl.lab.tuning.tuning",
}

__all__ = sorted(["ALGORITHMS", *(name.replace("-", "_") for name in ALGORITHMS), *_HOMES])


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])


def __getattr__(name: str) -> Any:
    algorithm = name.replace("_", "-")
    if algorithm in ALGORITHMS:
        return importlib.import_module("birl.registry").algorithm_named(algorithm)
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'birl' has no attribute {name!r}")
