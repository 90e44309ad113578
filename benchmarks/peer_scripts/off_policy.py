"""DQN, DDPG, TD3 and SAC of Stable-Baselines3 or of SBX, measured: see measure.py."""

import importlib
from typing import Any

import numpy as np
import torch
from measure import read_settings
from sb3_run import learn_and_report, make_envs, policy_arguments
from stable_baselines3.common.noise import NormalActionNoise

LIBRARIES = {"sb3": ("stable_baselines3", ("torch",)), "sbx": ("sbx", ("sbx-rl", "jax", "flax"))}


def own_arguments(settings: dict[str, Any], actions: tuple[int, ...]) -> dict[str, Any]:
    """What only this algorithm has."""
    if settings["algorithm"] == "dqn":
        return {
            "target_update_interval": settings["peer_target_interval"],
            "exploration_fraction": settings["exploration"][2],
            "exploration_final_eps": settings["exploration"][1],
        }
    if settings["algorithm"] == "sac":
        return {"tau": settings["target_rate"]}
    noise = NormalActionNoise(np.zeros(actions), np.full(actions, settings["exploration_noise"]))
    return {"tau": settings["target_rate"], "action_noise": noise}


settings = read_settings()
torch.set_num_threads(settings["threads"])
envs = make_envs(settings)
module, packages = LIBRARIES[settings["library"]]
model = getattr(importlib.import_module(module), settings["algorithm"].upper())(
    env=envs,
    **policy_arguments(settings),
    learning_rate=settings["learning_rate"],
    buffer_size=settings["replay_size"],
    learning_starts=settings["learning_starts"],
    batch_size=settings["batch_size"],
    gamma=settings["discount"],
    train_freq=settings["rollout_length"],
    gradient_steps=round(settings["update_ratio"] * settings["rollout_length"] * settings["num_envs"]),
    seed=settings["seed"],
    device="cpu",
    **own_arguments(settings, envs.action_space.shape),
)
learn_and_report(model, settings, packages)
