"""Presets for seven Atari games, from published settings; those without a score are not measured.

PPO: RL Zoo's; on Pong with a smaller network, a higher learning rate and fewer steps, for a machine
without a GPU. A2C and ACER: OpenAI Baselines'. A3C: Mnih et al. 2016. DQN: RL Zoo's.
"""

from typing import Any

from birl.config import AtariConfig, EnvConfig, RunConfig
from birl.maths.schedules import linear
from birl.presets.entry import Preset
from birl.registry import algorithm_named
from birl.settings import changed

GAMES = ("Pong", "Breakout", "SpaceInvaders", "Qbert", "BeamRider", "Seaquest", "Enduro")
IMAGES: dict[str, Any] = {"clip_rewards": True, "encoder": "cnn", "hidden_sizes": ()}  # the network of Mnih et al. 2015
SHARED = IMAGES | {"activation": "relu", "share_trunk": True}
ONE_LIFE = AtariConfig(episodic_life=True)
STEPS = 10_000_000  # 40 million frames

SETTINGS: dict[str, dict[str, Any]] = {
    "ppo": {
        "env": EnvConfig(atari=ONE_LIFE),
        "learning_rate": linear(2.5e-4, 0.0),
        "clip_range": linear(0.1, 0.0),
        "entropy_weight": 0.01,
        **SHARED,
    },
    "a2c": {"env": EnvConfig(num_envs=16, atari=ONE_LIFE), **SHARED},
    "a3c": {
        "env": EnvConfig(num_envs=1, atari=ONE_LIFE),
        "actor_learners": 16,
        **SHARED,
        "encoder": "cnn_2013",
    },
    "dqn": {
        "env": EnvConfig(num_envs=1, atari=ONE_LIFE),
        "learning_starts": 100_000,
        "batch_size": 32,
        "replay_size": 100_000,
        "frame_stack": 4,
        "double": False,
        "exploration": linear(1.0, 0.01, 0.1),
        "target_every": 250,
        "learning_rate": 1e-4,
        **IMAGES,
    },
    "acer": {
        "env": EnvConfig(num_envs=16, atari=ONE_LIFE),
        "replay_size": 50_000,
        "learning_starts": 10_000,
        "frame_stack": 4,
        "learning_rate": linear(7e-4, 0.0),
        **SHARED,
    },
}
QUICK_PONG: dict[str, Any] = {
    "env": EnvConfig("ALE/Pong-v5"),  # Pong has no lives
    "run": RunConfig(total_steps=4_000_000, eval_every=250_000, stop_at_return=18.5),
    "encoder": "cnn_2013",
    "learning_rate": linear(8e-4, 0.0),
    "clip_range": 0.1,
}


def presets_of(algorithm: str) -> list[Preset]:
    """The presets of this algorithm for every game; none if it has no settings here."""
    return [_preset(algorithm, game) for game in GAMES] if algorithm in SETTINGS else []


def _preset(algorithm: str, game: str) -> Preset:
    config = algorithm_named(algorithm).Config(**SETTINGS[algorithm])
    if (algorithm, game) == ("ppo", "Pong"):
        return Preset("ppo", changed(config, **QUICK_PONG))
    env = changed(config.env, id=f"ALE/{game}-v5")
    return Preset(algorithm, changed(config, env=env, run=changed(config.run, total_steps=STEPS)))
