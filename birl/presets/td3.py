"""Tuned settings for TD3."""

from birl.algos.td3 import Config
from birl.config import EnvConfig, RunConfig
from birl.presets.entry import Preset
from birl.settings import made

PRESETS = [
    Preset(
        "td3",
        made(
            Config,
            env=EnvConfig("Pendulum-v1", num_envs=1),
            run=RunConfig(total_steps=20_000),
            batch_size=128,
            discount=0.98,
            target_rate=0.01,
            actor_learning_rate=1e-3,
            critic_learning_rate=2e-3,
            hidden_sizes=(64, 64),
        ),
    ),
]
