"""Tuned settings of DQN."""

from birl.algos.dqn import Config
from birl.config import EnvConfig, RunConfig
from birl.maths.schedules import linear
from birl.presets.entry import Preset

PRESETS = [
    Preset(
        "dqn",
        Config(
            env=EnvConfig("CartPole-v1", num_envs=4),
            run=RunConfig(total_steps=50_000, log_every=25),
            rollout_length=8,
            update_ratio=1.0,
            batch_size=128,
            n_step=10,
            exploration=linear(1.0, 0.02, 0.3),
            learning_rate=linear(1e-3, 0.0),
            normalize_observations=True,
        ),
    ),
]
