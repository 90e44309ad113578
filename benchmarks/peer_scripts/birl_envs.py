"""Birl's vector environment stepped with random actions: the upper limit. See measure.py."""

import json

import numpy as np
from measure import Stopwatch, read_settings

import birl
from birl.envs.make import make_envs

settings = read_settings()
stopwatch = Stopwatch(settings)
config = birl.EnvConfig(
    id=settings["env"], num_envs=settings["num_envs"], backend=settings["backend"], workers=settings["workers"]
)
envs = make_envs(config, settings["seed"])
length = settings["rollout_length"]
envs.action_space.seed(settings["seed"])
actions = np.stack([envs.action_space.sample() for _ in range(length * settings["num_envs"])])
actions = actions.reshape(length, settings["num_envs"], *envs.action_space.shape)  # sampled before the clock runs
envs.reset(settings["seed"])
env_steps = 0
stopwatch.mark(env_steps)
while env_steps < settings["total_steps"]:
    for step_actions in actions:
        env_steps += int(np.count_nonzero(envs.step(step_actions).valid))  # an environment's own reset is not a step
    stopwatch.mark(env_steps)
envs.close()
print(json.dumps(stopwatch.report(("birl", "gymnasium", "numpy"))))
