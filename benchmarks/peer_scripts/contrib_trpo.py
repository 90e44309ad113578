"""sb3-contrib's TRPO, measured: see measure.py."""

import json

import torch
from measure import Stopwatch, read_settings, sb3_schedule
from sb3_contrib import TRPO
from sb3_watch import Watch
from stable_baselines3.common.env_util import make_vec_env

settings = read_settings()
torch.set_num_threads(settings["threads"])
stopwatch = Stopwatch(settings["spawned_at"], settings["wanted_return"])
model = TRPO(
    "MlpPolicy",
    make_vec_env(settings["env"], settings["num_envs"], seed=settings["seed"]),
    n_steps=settings["rollout_length"],
    batch_size=settings["rollout_length"] * settings["num_envs"] // settings["minibatches"],
    n_critic_updates=settings["epochs"],
    gamma=settings["discount"],
    gae_lambda=settings["gae_lambda"],
    learning_rate=sb3_schedule(settings["learning_rate"]),
    target_kl=settings["max_kl"],
    cg_max_steps=settings["cg_steps"],
    cg_damping=settings["cg_damping"],
    line_search_shrinking_factor=settings["backtrack_factor"],
    line_search_max_iter=settings["backtrack_tries"],
    policy_kwargs={"net_arch": settings["hidden_sizes"]},
    seed=settings["seed"],
    device="cpu",
)
model.learn(settings["total_steps"], callback=Watch(stopwatch), log_interval=None)
stopwatch.mark(model.num_timesteps)
print(json.dumps(stopwatch.report(("sb3-contrib", "stable-baselines3", "torch", "gymnasium", "numpy"))))
