"""Tuned settings for PPO."""

from birl.algos.ppo import Config
from birl.config import EnvConfig, RunConfig
from birl.maths.schedules import linear
from birl.presets.entry import Preset
from birl.settings import changed, made

RECURRENT_CARTPOLE = made(
    Config,
    env=EnvConfig("CartPole-v1", num_envs=8, hide_velocities=True),
    run=RunConfig(total_steps=150_000),
    rollout_length=128,
    epochs=10,
    minibatches=2,
    learning_rate=linear(1e-3, 0.0),
    normalize_observations=True,
    normalize_rewards=True,
    hidden_sizes=(64,),
    core="lstm",
    core_size=64,
)

LUNAR_LANDER = made(
    Config,
    env=EnvConfig("LunarLander-v3", num_envs=16),
    run=RunConfig(total_steps=1_000_000),
    rollout_length=1024,
    epochs=4,
    minibatches=256,
    discount=0.999,
    gae_lambda=0.98,
    entropy_weight=0.01,
)

PRESETS = [
    Preset(
        "ppo",
        made(
            Config,
            env=EnvConfig("CartPole-v1", num_envs=8),
            run=RunConfig(total_steps=50_000),
            rollout_length=32,
            epochs=20,
            minibatches=1,
            discount=0.99,
            gae_lambda=0.9,
            learning_rate=linear(1e-3, 0.0),
            clip_range=linear(0.2, 0.0),
        ),
    ),
    Preset("ppo", RECURRENT_CARTPOLE),
    Preset("ppo", changed(RECURRENT_CARTPOLE, core="gru")),
    Preset(
        "ppo",
        made(
            Config,
            env=EnvConfig("Acrobot-v1", num_envs=8),
            run=RunConfig(total_steps=400_000),
            rollout_length=128,
            epochs=10,
            minibatches=8,
            gae_lambda=0.98,
            learning_rate=linear(2e-3, 0.0),
            entropy_weight=linear(0.01, 0.0),
            normalize_observations=True,
        ),
    ),
    Preset(
        "ppo",
        made(
            Config,
            env=EnvConfig("MountainCarContinuous-v0", num_envs=8),
            run=RunConfig(total_steps=50_000),
            rollout_length=128,
            epochs=10,
            minibatches=4,
            discount=0.999,
            learning_rate=linear(1e-3, 0.0),
            normalize_observations=True,
            normalize_rewards=True,
        ),
    ),
    Preset(
        "ppo",
        made(
            Config,
            env=EnvConfig("Pendulum-v1", num_envs=8),
            run=RunConfig(total_steps=100_000),
            rollout_length=128,
            epochs=10,
            minibatches=16,
            discount=0.95,
            learning_rate=linear(1e-3, 0.0),
            normalize_rewards=True,
        ),
    ),
    Preset("ppo", LUNAR_LANDER),
    Preset(
        "ppo",
        changed(
            LUNAR_LANDER,
            env=EnvConfig("LunarLanderContinuous-v3", num_envs=16),
            rollout_length=512,
            epochs=6,
            minibatches=128,
            learning_rate=linear(5e-4, 0.0),
            entropy_weight=0.003,
        ),
    ),
]
