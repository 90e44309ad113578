"""Birl: deep reinforcement learning you can read, resume bit for bit, and trust.

Every public name is imported when it is first used. Type checkers read __init__.pyi, which
scripts/stub.py writes.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from birl.algos import (
        a2c,
        a3c,
        acer,
        async_q,
        ddpg,
        dpg,
        dqn,
        ppo,
        qac,
        reinforce,
        sac,
        td3,
        trpo,
    )
    from birl.algos.async_q import async_nstep_q, async_sarsa
    from birl.config import AtariConfig, ConfigError, EnvConfig, RunConfig, Wrapper
    from birl.envs.check import check_env
    from birl.envs.compiled.interface import CompiledEnv
    from birl.experiments.compare import compare
    from birl.experiments.diagnose import diagnose
    from birl.experiments.diagnosis.proof import prove
    from birl.experiments.fork import fork, open_fork
    from birl.experiments.report.making import report
    from birl.experiments.solve import solve
    from birl.experiments.tune import tune
    from birl.exporting.export import export
    from birl.maths.schedules import constant, exponential, linear, piecewise, schedule
    from birl.presets import preset
    from birl.run.configure import configure
    from birl.run.driver import resume, train
    from birl.run.evaluate import evaluate
    from birl.run.loading import load
    from birl.run.policy import Policy
    from birl.run.record import play, record
    from birl.run.starting import reopen, start
    from birl.sharing.card import card
    from birl.sharing.pull import pull
    from birl.sharing.push import push

__version__ = "0.6.0"

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
}

_HOMES = {
    "AtariConfig": "birl.config",
    "CompiledEnv": "birl.envs.compiled.interface",
    "ConfigError": "birl.config",
    "EnvConfig": "birl.config",
    "RunConfig": "birl.config",
    "Wrapper": "birl.config",
    "card": "birl.sharing.card",
    "check_env": "birl.envs.check",
    "compare": "birl.experiments.compare",
    "configure": "birl.run.configure",
    "constant": "birl.maths.schedules",
    "diagnose": "birl.experiments.diagnose",
    "exponential": "birl.maths.schedules",
    "linear": "birl.maths.schedules",
    "piecewise": "birl.maths.schedules",
    "evaluate": "birl.run.evaluate",
    "export": "birl.exporting.export",
    "fork": "birl.experiments.fork",
    "Policy": "birl.run.policy",
    "load": "birl.run.loading",
    "open_fork": "birl.experiments.fork",
    "play": "birl.run.record",
    "preset": "birl.presets",
    "prove": "birl.experiments.diagnosis.proof",
    "pull": "birl.sharing.pull",
    "push": "birl.sharing.push",
    "record": "birl.run.record",
    "reopen": "birl.run.starting",
    "report": "birl.experiments.report.making",
    "resume": "birl.run.driver",
    "schedule": "birl.maths.schedules",
    "solve": "birl.experiments.solve",
    "start": "birl.run.starting",
    "train": "birl.run.driver",
    "tune": "birl.experiments.tune",
}

__all__ = [
    "ALGORITHMS",
    "AtariConfig",
    "CompiledEnv",
    "ConfigError",
    "EnvConfig",
    "Policy",
    "RunConfig",
    "Wrapper",
    "a2c",
    "a3c",
    "acer",
    "async_nstep_q",
    "async_q",
    "async_sarsa",
    "card",
    "check_env",
    "compare",
    "configure",
    "constant",
    "ddpg",
    "diagnose",
    "dpg",
    "dqn",
    "evaluate",
    "exponential",
    "export",
    "fork",
    "linear",
    "load",
    "open_fork",
    "piecewise",
    "play",
    "ppo",
    "preset",
    "prove",
    "pull",
    "push",
    "qac",
    "record",
    "reinforce",
    "reopen",
    "report",
    "resume",
    "sac",
    "schedule",
    "solve",
    "start",
    "td3",
    "train",
    "trpo",
    "tune",
]


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])


def __getattr__(name: str) -> Any:
    algorithm = name.replace("_", "-")
    if algorithm in ALGORITHMS:
        return importlib.import_module("birl.registry").algorithm_named(algorithm)
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'birl' has no attribute {name!r}")
