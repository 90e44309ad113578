"""Tuned settings of A3C."""

from birl.algos.a3c import Config
from birl.config import EnvConfig, RunConfig
from birl.presets.entry import Preset

PRESETS = [
    Preset(
        "a3c",
        Config(
            env=EnvConfig("CartPole-v1", num_envs=4),
            run=RunConfig(total_steps=500_000),
            actor_learners=2,
            report_every=5000,
            entropy_weight=0.0,
        ),
        score=500.0,
        interval=(500.0, 500.0),
    ),
]
