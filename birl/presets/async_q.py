"""Tuned settings of asynchronous one-step Q-learning."""

from birl.algos.async_q import Config
from birl.config import EnvConfig, RunConfig
from birl.maths.schedules import linear
from birl.presets.entry import Preset

PRESETS = [
    Preset(
        "async-q",
        Config(
            env=EnvConfig("CartPole-v1", num_envs=8),
            run=RunConfig(total_steps=300_000),
            actor_learners=2,
            rollout_length=4,
            target_every=500,
            final_explorations=(0.1,),
            exploration_chances=(1.0,),
            learning_rate=linear(3e-3, 0.0),
            max_grad_norm=0.5,
            normalize_observations=True,
            normalize_rewards=True,
        ),
    ),
]
