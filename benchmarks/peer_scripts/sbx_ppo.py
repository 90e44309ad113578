"""SBX's PPO (SB3 on JAX), measured: see measure.py."""

import json

import torch
from measure import Stopwatch, read_settings, sb3_schedule
from sb3_watch import Watch
from sbx import PPO
from stable_baselines3.common.env_util import make_vec_env

settings = read_settings()
torch.set_num_threads(settings["threads"])  # SBX keeps SB3's rollout buffer, which hands out torch tensors
stopwatch = Stopwatch(settings["spawned_at"], settings["wanted_return"])
model = PPO(
    "MlpPolicy",
    make_vec_env(settings["env"], settings["num_envs"], seed=settings["seed"]),
    n_steps=settings["rollout_length"],
    batch_size=settings["rollout_length"] * settings["num_envs"] // settings["minibatches"],
    n_epochs=settings["epochs"],
    gamma=settings["discount"],
    gae_lambda=settings["gae_lambda"],
    learning_rate=sb3_schedule(settings["learning_rate"]),
    clip_range=sb3_schedule(settings["clip_range"]),
    ent_coef=settings["entropy_weight"],
    policy_kwargs={"net_arch": settings["hidden_sizes"]},
    seed=settings["seed"],
    device="cpu",
)
model.learn(settings["total_steps"], callback=Watch(stopwatch), log_interval=None)
stopwatch.mark(model.num_timesteps)
print(json.dumps(stopwatch.report(("sbx-rl", "stable-baselines3", "jax", "flax", "gymnasium", "numpy"))))
