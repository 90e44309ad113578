"""Birl's algorithm `algorithm` of the settings, measured: see measure.py. Runs in Birl's venv."""

import dataclasses
import json
from functools import partial
from typing import Any

from measure import EPISODES, Stopwatch, read_settings

import birl
from birl.envs.make import make_env
from birl.envs.serial import SerialEnvs
from birl.registry import algorithm_named

SCHEDULES = ("learning_rate", "clip_range", "exploration")


def birl_value(name: str, value: Any) -> Any:
    """A setting as Birl takes it: a pair for a schedule is a line, any other list is a tuple."""
    if not isinstance(value, list):
        return value
    return birl.linear(*value) if name in SCHEDULES else tuple(value)


settings = read_settings()
stopwatch = Stopwatch(settings)
algorithm = algorithm_named(settings["algorithm"])
known = {field.name for field in dataclasses.fields(algorithm.Config)}
env = birl.EnvConfig(
    id=settings["env"], num_envs=settings["num_envs"], backend=settings["backend"], workers=settings["workers"]
)
own = {name: birl_value(name, value) for name, value in settings.items() if name in known - {"env"}}
config = algorithm.Config(
    env=env, run=birl.RunConfig(total_steps=settings["total_steps"], seed=settings["seed"]), **own
)
# None: Birl chooses.
envs = SerialEnvs([partial(make_env, env)] * env.num_envs) if settings["one_by_one"] else None
stopwatch.mark(0)
for update in algorithm.train(config, envs):
    env_steps = int(update.state.env_steps)
    stopwatch.mark(env_steps)
    if update.metrics["episode/count"] >= EPISODES:
        stopwatch.see(update.metrics["episode/return"], env_steps)
    if stopwatch.reached is not None:
        break
print(json.dumps(stopwatch.report(("birl", "jax", "equinox", "optax", "gymnasium", "numpy"))))
