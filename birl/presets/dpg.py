"""Tuned settings for DPG."""

from birl.algos.dpg import Config
from birl.config import EnvConfig, RunConfig
from birl.maths.schedules import linear
from birl.presets.entry import Preset
from birl.settings import made

PRESETS = [
    Preset(
        "dpg",
        made(
            Config,
            env=EnvConfig("birl/ProbeLinearQuadratic-v0", num_envs=4),
            run=RunConfig(total_steps=60_000),
            exploration_noise=0.1,
            actor_learning_rate=1e-3,
            critic_learning_rate=10.0,
            value_learning_rate=0.1,
            actor_features="linear",
            critic_features="quadratic",
        ),
    ),
    Preset(
        "dpg",
        made(
            Config,
            env=EnvConfig("Pendulum-v1", num_envs=4),
            run=RunConfig(total_steps=300_000),
            discount=0.95,
            exploration_noise=0.4,
            actor_learning_rate=linear(0.1, 0.0),
            critic_learning_rate=linear(3.0, 1.0),
            value_learning_rate=linear(0.4, 0.1),
            normalize_observations=True,
            normalize_rewards=True,
            feature_scale=0.6,
        ),
    ),
]
