"""Gymnasium's own vector environments stepped with random actions. See measure.py.

It runs in Birl's venv.
"""

import json

import gymnasium as gym
import numpy as np
from measure import Stopwatch, read_settings

settings = read_settings()
stopwatch = Stopwatch(settings)
length, num_envs = settings["rollout_length"], settings["num_envs"]
envs = gym.make_vec(settings["env"], num_envs, settings["vectorization"])
envs.single_action_space.seed(settings["seed"])
actions = np.stack([envs.single_action_space.sample() for _ in range(length * num_envs)])
actions = actions.reshape(length, num_envs, *envs.single_action_space.shape)  # sampled before the clock runs
envs.reset(seed=settings["seed"])
env_steps, ended = 0, np.zeros(num_envs, bool)
stopwatch.mark(env_steps)
while env_steps < settings["total_steps"]:
    for step_actions in actions:
        _, _, terminated, truncated, _ = envs.step(step_actions)
        env_steps += num_envs - int(np.count_nonzero(ended))  # an environment's own reset is not a step
        ended = terminated | truncated
    stopwatch.mark(env_steps)
envs.close()
print(json.dumps(stopwatch.report(("gymnasium", "numpy"))))
