"""Tuned settings for asynchronous one-step Q-learning."""

from birl.algos.async_q import Config
from birl.config import EnvConfig, RunConfig
from birl.maths.schedules import linear
from birl.presets.entry import Preset
from birl.settings import made

PRESETS = [
    Preset(
        "async-q",
        made(
            Config,
            env=EnvConfig("CartPole-v1", num_envs=8),
            run=RunConfig(total_steps=500_000),
            actor_learners=2,
            final_explorations=(0.1,),  # with two actor-learners, both might draw 0.5
            exploration_chances=(1.0,),
            rollout_length=4,
            target_every=500,
            learning_rate=linear(5e-4, 0.0),
            normalize_observations=True,
            normalize_rewards=True,
            hidden_sizes=(128, 128),
        ),
    ),
]
