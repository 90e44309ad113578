"""Birl's algorithm `algorithm` of the settings, measured: see measure.py. Runs in Birl's venv."""

import json
from functools import partial

from birl_settings import config_of
from measure import EPISODES, Stopwatch, read_settings

from birl.envs.make import make_env
from birl.envs.serial import SerialEnvs
from birl.registry import algorithm_named

settings = read_settings()
stopwatch = Stopwatch(settings)
config = config_of(settings)
# None: Birl chooses.
envs = SerialEnvs([partial(make_env, config.env)] * config.env.num_envs) if settings["one_by_one"] else None
stopwatch.mark(0)
for update in algorithm_named(settings["algorithm"]).train(config, envs):
    env_steps = int(update.state.env_steps)
    stopwatch.mark(env_steps)
    if update.metrics["episode/count"] >= EPISODES:
        stopwatch.see(update.metrics["episode/return"], env_steps)
    if stopwatch.reached is not None:
        break
print(json.dumps(stopwatch.report(("birl", "jax", "equinox", "optax", "gymnasium", "numpy"))))
