"""Tuned settings for REINFORCE."""

from birl.algos.reinforce import Config
from birl.config import EnvConfig, RunConfig
from birl.maths.schedules import linear
from birl.presets.entry import Preset
from birl.settings import made

PRESETS = [
    Preset(
        "reinforce",
        made(
            Config,
            env=EnvConfig("CartPole-v1", num_envs=8),
            run=RunConfig(total_steps=500_000),
            rollout_length=512,
            learning_rate=linear(1e-2, 0.0),
        ),
    ),
    Preset(
        "reinforce",
        made(
            Config,
            env=EnvConfig("CartPole-v1", num_envs=8, hide_velocities=True),
            run=RunConfig(total_steps=300_000),
            rollout_length=128,
            learning_rate=linear(5e-3, 0.0),
            normalize_observations=True,
            normalize_rewards=True,
            hidden_sizes=(64,),
            core="lstm",
            core_size=64,
        ),
    ),
]
