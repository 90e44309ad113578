"""Tuned settings for SAC."""

from birl.algos.sac import Config
from birl.config import EnvConfig, RunConfig
from birl.presets.entry import Preset
from birl.settings import made

PRESETS = [
    Preset(
        "sac",
        made(
            Config,
            env=EnvConfig("Pendulum-v1", num_envs=1),
            run=RunConfig(total_steps=20_000),
            batch_size=128,
            discount=0.98,
            temperature_learning_rate=1e-3,
            actor_learning_rate=1e-3,
            critic_learning_rate=1e-3,
            hidden_sizes=(64, 64),
        ),
    ),
]
