"""Settings for seven Atari games, by algorithm: published ones in Birl's words. A preset without a
score was not measured.

PPO: RL Zoo's; on Pong with a smaller network, a higher learning rate and fewer steps, for a machine
without a GPU. A2C and ACER: OpenAI Baselines'. A3C: Mnih et al. 2016. DQN: RL Zoo's.
"""

from dataclasses import replace
from typing import Any

from birl.algos import a2c, a3c, acer, dqn, ppo
from birl.config import AtariConfig, EnvConfig, RunConfig
from birl.maths.schedules import linear
from birl.presets.entry import Preset

GAMES = ("Pong", "Breakout", "SpaceInvaders", "Qbert", "BeamRider", "Seaquest", "Enduro")
IMAGES: dict[str, Any] = {"clip_rewards": True, "encoder": "cnn", "hidden_sizes": ()}  # the network of Mnih et al. 2015
SHARED = IMAGES | {"activation": "relu", "share_trunk": True}
ONE_LIFE = AtariConfig(episodic_life=True)
STEPS = 10_000_000  # 40 million frames

BASES: dict[str, Any] = {
    "ppo": ppo.Config(
        env=EnvConfig(atari=ONE_LIFE),
        learning_rate=linear(2.5e-4, 0.0),
        clip_range=linear(0.1, 0.0),
        entropy_weight=0.01,
        **SHARED,
    ),
    "a2c": a2c.Config(env=EnvConfig(num_envs=16, atari=ONE_LIFE), **SHARED),
    "a3c": a3c.Config(env=EnvConfig(num_envs=1, atari=ONE_LIFE), actor_learners=16, **SHARED | {"encoder": "cnn_2013"}),
    "dqn": dqn.Config(
        env=EnvConfig(num_envs=1, atari=ONE_LIFE),
        learning_starts=100_000,
        batch_size=32,
        replay_size=100_000,
        frame_stack=4,
        double=False,
        exploration=linear(1.0, 0.01, 0.1),
        target_every=250,
        learning_rate=1e-4,
        **IMAGES,
    ),
    "acer": acer.Config(
        env=EnvConfig(num_envs=16, atari=ONE_LIFE),
        replay_size=50_000,
        learning_starts=10_000,
        frame_stack=4,
        learning_rate=linear(7e-4, 0.0),
        **SHARED,
    ),
}


# Pong has no lives to lose.
QUICK_PONG: dict[str, Any] = {
    "env": EnvConfig("ALE/Pong-v5"),
    "encoder": "cnn_2013",
    "learning_rate": linear(8e-4, 0.0),
    "clip_range": 0.1,
}


def made(algorithm: str, game: str) -> Preset:
    """This algorithm's settings for this game."""
    config = BASES[algorithm]
    return Preset(
        algorithm,
        replace(config, env=replace(config.env, id=f"ALE/{game}-v5"), run=replace(config.run, total_steps=STEPS)),
    )


PRESETS = [made(algorithm, game) for algorithm in BASES for game in GAMES if (algorithm, game) != ("ppo", "Pong")]
PONG = replace(
    BASES["ppo"], run=RunConfig(total_steps=4_000_000, eval_every=250_000, stop_at_return=18.5), **QUICK_PONG
)
PRESETS.insert(0, Preset("ppo", PONG, score=20.4, interval=(20.4, 20.4), seeds=1))
