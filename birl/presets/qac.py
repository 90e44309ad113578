"""Tuned settings for QAC."""

from birl.algos.qac import Config
from birl.config import EnvConfig, RunConfig
from birl.maths.schedules import linear
from birl.presets.entry import Preset
from birl.settings import made

PRESETS = [
    Preset(
        "qac",
        made(
            Config,
            env=EnvConfig("CartPole-v1", num_envs=8),
            run=RunConfig(total_steps=500_000),
            rollout_length=16,
            baseline=True,
            entropy_weight=linear(3e-3, 0.0),
            learning_rate=linear(5e-4, 0.0),
            critic_learning_rate=linear(5e-3, 0.0),
            normalize_rewards=True,
        ),
    ),
]
