"""Tuned settings for C51."""

from birl.algos.dqn import c51
from birl.config import EnvConfig, RunConfig
from birl.maths.schedules import linear
from birl.presets.entry import Preset
from birl.settings import made

PRESETS = [
    Preset(
        "c51",
        made(
            c51.Config,
            env=EnvConfig("CartPole-v1", num_envs=4),
            run=RunConfig(total_steps=50_000),
            value_min=0.0,
            value_max=100.0,
            rollout_length=8,
            update_ratio=1.0,
            batch_size=128,
            n_step=10,
            exploration=linear(1.0, 0.02, 0.3),
            learning_rate=linear(1e-3, 0.0),
            normalize_observations=True,
        ),
    ),
    Preset(
        "c51",
        made(
            c51.Config,
            env=EnvConfig("LunarLander-v3", num_envs=8),
            run=RunConfig(total_steps=200_000),
            value_min=-200.0,
            value_max=300.0,
            rollout_length=8,
            learning_starts=4000,
            batch_size=256,
            n_step=3,
            exploration=linear(1.0, 0.01, 0.3),
            learning_rate=linear(1e-3, 0.0),
            hidden_sizes=(128, 128),
        ),
    ),
    Preset(
        "c51",
        made(
            c51.Config,
            env=EnvConfig("Acrobot-v1", num_envs=4),
            run=RunConfig(total_steps=100_000),
            value_min=-100.0,
            value_max=0.0,
            rollout_length=8,
            update_ratio=1.0,
            batch_size=128,
            exploration=linear(1.0, 0.05, 0.2),
            target_every=500,
            learning_rate=linear(6e-4, 0.0),
            hidden_sizes=(128, 128),
        ),
    ),
]
