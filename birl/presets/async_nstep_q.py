"""Tuned settings of asynchronous n-step Q-learning."""

from birl.algos.async_nstep_q import Config
from birl.config import EnvConfig, RunConfig
from birl.maths.schedules import linear
from birl.presets.entry import Preset

PRESETS = [
    Preset(
        "async-nstep-q",
        Config(
            env=EnvConfig("CartPole-v1", num_envs=16),
            run=RunConfig(total_steps=200_000),
            actor_learners=2,
            rollout_length=16,
            target_every=2000,
            learning_rate=linear(2e-3, 0.0),
            normalize_observations=True,
            normalize_rewards=True,
        ),
    ),
]
