"""Tuned settings for TRPO."""

from birl.algos.trpo import Config
from birl.config import EnvConfig, RunConfig
from birl.presets.entry import Preset
from birl.settings import made

RECURRENT_CARTPOLE = made(
    Config,
    env=EnvConfig("CartPole-v1", num_envs=8, hide_velocities=True),
    run=RunConfig(total_steps=150_000),
    rollout_length=128,
    max_kl=0.03,
    cg_damping=0.01,
    minibatches=4,
    normalize_observations=True,
    normalize_rewards=True,
    hidden_sizes=(64,),
    core="lstm",
    core_size=64,
)

PRESETS = [
    Preset(
        "trpo",
        made(
            Config,
            env=EnvConfig("CartPole-v1", num_envs=8),
            run=RunConfig(total_steps=60_000),
            rollout_length=128,
        ),
    ),
    Preset("trpo", RECURRENT_CARTPOLE),
    Preset(
        "trpo",
        made(
            Config,
            env=EnvConfig("Pendulum-v1", num_envs=16),
            run=RunConfig(total_steps=100_000),
            rollout_length=128,
            discount=0.95,
            gae_lambda=0.8,
            max_kl=0.02,
            cg_damping=0.01,
            minibatches=16,
            learning_rate=3e-3,
            normalize_observations=True,
            normalize_rewards=True,
        ),
    ),
    Preset(
        "trpo",
        made(
            Config,
            env=EnvConfig("LunarLander-v3", num_envs=16),
            run=RunConfig(total_steps=500_000),
            rollout_length=64,
            discount=0.995,
            gae_lambda=0.97,
            max_kl=0.015,
            cg_damping=0.01,
            minibatches=8,
            normalize_rewards=True,
        ),
    ),
]
