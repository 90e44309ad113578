"""Tuned settings for ACER."""

from birl.algos.acer import Config
from birl.config import EnvConfig, RunConfig
from birl.maths.schedules import linear
from birl.presets.entry import Preset
from birl.settings import made

RECURRENT_CARTPOLE = made(
    Config,
    env=EnvConfig("CartPole-v1", num_envs=8, hide_velocities=True),
    run=RunConfig(total_steps=300_000),
    entropy_weight=0.001,
    learning_rate=linear(1e-3, 0.0),
    optimizer="adam",
    normalize_rewards=True,
    hidden_sizes=(64,),
    core="lstm",
    core_size=64,
)

PRESETS = [
    Preset(
        "acer",
        made(
            Config,
            env=EnvConfig("CartPole-v1", num_envs=8),
            run=RunConfig(total_steps=200_000),
            learning_rate=linear(7e-4, 0.0),
            normalize_rewards=True,
        ),
    ),
    Preset(
        "acer",
        made(
            Config,
            env=EnvConfig("LunarLander-v3", num_envs=16),
            run=RunConfig(total_steps=1_000_000),
            entropy_weight=0.001,
            batch_size=32,
            learning_rate=linear(5e-4, 0.0),
            optimizer="adam",
            normalize_observations=True,
            normalize_rewards=True,
            hidden_sizes=(128, 128),
            activation="relu",
        ),
    ),
    Preset(
        "acer",
        made(
            Config,
            env=EnvConfig("Acrobot-v1", num_envs=16),
            run=RunConfig(total_steps=500_000),
            learning_rate=linear(7e-4, 0.0),
            optimizer="adam",
            normalize_observations=True,
            normalize_rewards=True,
        ),
    ),
    Preset(
        "acer",
        made(
            Config,
            env=EnvConfig("Pendulum-v1", num_envs=8),
            run=RunConfig(total_steps=300_000),
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
    ),
    Preset("acer", RECURRENT_CARTPOLE),
]
