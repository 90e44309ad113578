"""Settings for MuJoCo's robots, by algorithm: published ones in Birl's words. A preset without a
score was not measured.

PPO: CleanRL's ppo_continuous_action, its 2048 steps spread over 8 environments. A2C: RL Zoo's for
PyBullet, without gSDE. TRPO: γ and λ of Schulman et al. 2016. TD3 and DDPG, with the former's
settings: Fujimoto et al. 2018. SAC: Haarnoja et al. 2018b and RL Zoo's.
"""

from dataclasses import replace
from typing import Any

from birl.algos import a2c, ddpg, ppo, sac, td3, trpo
from birl.config import EnvConfig
from birl.maths.schedules import linear
from birl.presets.entry import Preset

ROBOTS = ("HalfCheetah-v5", "Hopper-v5", "Walker2d-v5", "Ant-v5", "Reacher-v5", "Swimmer-v5")
REPLAYED: dict[str, Any] = {
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

BASES: dict[str, Any] = {
    "ppo": ppo.Config(rollout_length=256, epochs=10, minibatches=32, learning_rate=linear(3e-4, 0.0), **NORMALIZED),
    "a2c": a2c.Config(
        rollout_length=8,
        gae_lambda=0.9,
        entropy_weight=0.0,
        value_weight=0.4,
        learning_rate=linear(9.6e-4, 0.0),
        **NORMALIZED,
    ),
    "trpo": trpo.Config(
        env=EnvConfig(num_envs=2),
        rollout_length=1024,
        discount=0.995,
        gae_lambda=0.97,
        minibatches=16,
        **NORMALIZED,
    ),
    "ddpg": ddpg.Config(noise="gaussian", **REPLAYED, **FUJIMOTO),
    "td3": td3.Config(**REPLAYED, **FUJIMOTO),
    "sac": sac.Config(batch_size=256, **REPLAYED),
}
SHORTER: dict[tuple[str, str], int] = {(algorithm, "HalfCheetah-v5"): 150_000 for algorithm in ("ddpg", "td3", "sac")}
OWN: dict[tuple[str, str], dict[str, Any]] = {
    ("trpo", "HalfCheetah-v5"): {"max_kl": 0.04},  # RL Zoo's
    ("ppo", "Reacher-v5"): {"discount": 0.9},  # RL Zoo's
}
SCORES: dict[tuple[str, str], tuple[float, tuple[float, float], int]] = {  # with interval and seeds
    ("trpo", "Hopper-v5"): (3525.9, (3433.1, 3700.3), 3),
    ("ddpg", "HalfCheetah-v5"): (5986.8, (5986.8, 5986.8), 1),
    ("td3", "HalfCheetah-v5"): (6051.5, (6051.5, 6051.5), 1),
    ("sac", "HalfCheetah-v5"): (6433.5, (6433.5, 6433.5), 1),
}


def made(algorithm: str, robot: str) -> Preset:
    """This algorithm's settings for this robot."""
    config = BASES[algorithm]
    changes = OWN.get((algorithm, robot), {})
    steps = SHORTER.get((algorithm, robot), 1_000_000)
    if robot == "Reacher-v5":  # episodes of 50 steps: less is to be learned
        steps = 300_000
    if robot == "Swimmer-v5":  # its reward lies beyond the 100 steps that 0.99 sees
        changes = changes | {"discount": 0.9999}
    config = replace(config, env=replace(config.env, id=robot), run=replace(config.run, total_steps=steps), **changes)
    return Preset(algorithm, config, *SCORES.get((algorithm, robot), ()))


PRESETS = [made(algorithm, robot) for algorithm in BASES for robot in ROBOTS]
