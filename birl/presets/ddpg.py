"""Tuned settings for DDPG."""

from birl.algos.ddpg import Config
from birl.config import EnvConfig, RunConfig
from birl.presets.entry import Preset
from birl.settings import made

PRESETS = [
    Preset(
        "ddpg",
        made(
            Config,
            env=EnvConfig("Pendulum-v1", num_envs=4),
            run=RunConfig(total_steps=20_000),
            rollout_length=16,
            update_ratio=0.5,
            batch_size=128,
            noise="gaussian",
            hidden_sizes=(64, 64),
        ),
    ),
    Preset(
        "ddpg",
        made(
            Config,
            env=EnvConfig("LunarLanderContinuous-v3", num_envs=8),
            run=RunConfig(total_steps=300_000),
            update_ratio=0.5,
            learning_starts=10_000,
            batch_size=128,
            replay_size=300_000,
            discount=0.98,
            n_step=3,
            noise="gaussian",
            exploration_noise=0.1,
            hidden_sizes=(128, 128),
        ),
    ),
]
