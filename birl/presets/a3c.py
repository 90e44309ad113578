"""Tuned settings for A3C."""

from birl.algos.a3c import Config
from birl.config import EnvConfig, RunConfig
from birl.maths.schedules import linear
from birl.presets.entry import Preset
from birl.settings import made

PRESETS = [
    Preset(
        "a3c",
        made(
            Config,
            env=EnvConfig("CartPole-v1", num_envs=4),
            run=RunConfig(total_steps=500_000),
            actor_learners=2,
            report_every=5000,
            entropy_weight=0.0,
            optimizer="rmsprop-tf",
        ),
    ),
    Preset(
        "a3c",
        made(
            Config,
            env=EnvConfig("LunarLander-v3", num_envs=8),
            run=RunConfig(total_steps=2_000_000),
            actor_learners=2,
            report_every=20_000,
            rollout_length=32,
            entropy_weight=0.003,
            learning_rate=linear(2e-3, 0.0),
            normalize_observations=True,
            normalize_rewards=True,
        ),
    ),
]
