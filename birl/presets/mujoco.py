"""Presets for MuJoCo's robots, from published settings; those without a score are not measured.

PPO: CleanRL's ppo_continuous_action, its 2048 steps spread over 8 environments. A2C: RL Zoo's for
PyBullet, without gSDE. TRPO: γ and λ of Schulman et al. 2016. TD3, and DDPG with TD3's settings:
Fujimoto et al. 2018. SAC: Haarnoja et al. 2018b and RL Zoo's.
"""

from typing import Any

from birl.config import EnvConfig
from birl.maths.schedules import linear
from birl.presets.entry import Preset
from birl.registry import algorithm_named
from birl.settings import changed

ROBOTS = ("HalfCheetah-v5", "Hopper-v5", "Walker2d-v5", "Ant-v5", "Reacher-v5", "Swimmer-v5")
WITH_REPLAY: dict[str, Any] = {
    "env": EnvConfig(num_envs=1),
    "learning_starts": 10_000,
    "replay_size": 1_000_000,
}
FUJIMOTO: dict[str, Any] = {
    "batch_size": 100,
    "actor_learning_rate": 1e-3,
    "critic_learning_rate": 1e-3,
    "exploration_noise": 0.1,
}
NORMALIZED: dict[str, Any] = {"normalize_observations": True, "normalize_rewards": True}

SETTINGS: dict[str, dict[str, Any]] = {
    "ppo": {
        "rollout_length": 256,
        "epochs": 10,
        "minibatches": 32,
        "learning_rate": linear(3e-4, 0.0),
        **NORMALIZED,
    },
    "a2c": {
        "rollout_length": 8,
        "gae_lambda": 0.9,
        "entropy_weight": 0.0,
        "value_weight": 0.4,
        "learning_rate": linear(9.6e-4, 0.0),
        **NORMALIZED,
    },
    "trpo": {
        "env": EnvConfig(num_envs=2),
        "rollout_length": 1024,
        "discount": 0.995,
        "gae_lambda": 0.97,
        "minibatches": 16,
        **NORMALIZED,
    },
    "ddpg": {"noise": "gaussian", **WITH_REPLAY, **FUJIMOTO},
    "td3": {**WITH_REPLAY, **FUJIMOTO},
    "sac": {"batch_size": 256, **WITH_REPLAY},
}
OFF_POLICY = ("ddpg", "td3", "sac")
SHORTER: dict[tuple[str, str], int] = {(algorithm, "HalfCheetah-v5"): 150_000 for algorithm in OFF_POLICY}
CHANGES: dict[tuple[str, str], dict[str, Any]] = {
    ("trpo", "HalfCheetah-v5"): {"max_kl": 0.04},  # RL Zoo's
    ("ppo", "Reacher-v5"): {"discount": 0.9},  # RL Zoo's
}


def presets_of(algorithm: str) -> list[Preset]:
    """The presets of this algorithm for every robot; none if it has no settings here."""
    return [_preset(algorithm, robot) for robot in ROBOTS] if algorithm in SETTINGS else []


def _preset(algorithm: str, robot: str) -> Preset:
    config = algorithm_named(algorithm).Config(**SETTINGS[algorithm])
    changes = CHANGES.get((algorithm, robot), {})
    steps = SHORTER.get((algorithm, robot), 1_000_000)
    if robot == "Reacher-v5" and algorithm in OFF_POLICY:  # episodes have only 50 steps
        steps = 300_000
    if robot == "Swimmer-v5":  # its rewards come later than the 100 steps that a discount of 0.99 covers
        changes = changes | {"discount": 0.9999}
    config = changed(config, env=changed(config.env, id=robot), run=changed(config.run, total_steps=steps), **changes)
    return Preset(algorithm, config)
