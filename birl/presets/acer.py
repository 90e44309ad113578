"""Tuned settings of ACER."""

from birl.algos.acer import Config
from birl.config import EnvConfig, RunConfig
from birl.maths.schedules import linear
from birl.presets.entry import Preset

PRESETS = [
    Preset(
        "acer",
        Config(
            env=EnvConfig("CartPole-v1", num_envs=8),
            run=RunConfig(total_steps=200_000, log_every=10),
            learning_rate=linear(7e-4, 0.0),
            normalize_rewards=True,
        ),
        score=500.0,
        interval=(500.0, 500.0),
    ),
    Preset(
        "acer",
        Config(
            env=EnvConfig("Pendulum-v1", num_envs=8),
            run=RunConfig(total_steps=300_000, log_every=25),
            discount=0.9,
            entropy_weight=0.0,
            importance_truncation=5.0,
            batch_size=32,
            learning_rate=linear(5e-4, 0.0),
            optimizer="adam",
            normalize_observations=True,
            normalize_rewards=True,
            hidden_sizes=(128, 128),
            activation="relu",
        ),
        score=-171.3,
        interval=(-199.3, -156.1),
    ),
]
