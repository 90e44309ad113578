"""Tuned settings for (algorithm, environment), with the score each was measured at by benchmarks/learning.py."""

from dataclasses import dataclass, replace
from typing import Any

from birl.algos import ppo, trpo
from birl.config import EnvConfig, RunConfig, require
from birl.maths.schedules import linear


@dataclass(frozen=True)
class Preset:
    """Settings for one task, and what they reach: the interquartile mean over seeds of the final evaluation's mean return."""

    algorithm: str
    config: Any
    score: float | None = None
    interval: tuple[float, float] | None = None  # 95 %, over 5 seeds

    @property
    def task(self) -> tuple[str, str, bool, str]:
        """What a preset is found by: algorithm, environment, hidden velocities, core."""
        return self.algorithm, self.config.env.id, self.config.env.hide_velocities, self.config.core

    @property
    def switches(self) -> list[str]:
        """The options of `birl train` that choose this preset among those of its environment."""
        hidden = ["--hide-velocities"] if self.config.env.hide_velocities else []
        return hidden + ([f"--core {self.config.core}"] if self.config.core != "feedforward" else [])


RECURRENT_CARTPOLE = ppo.Config(
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
LUNAR_LANDER = ppo.Config(
    env=EnvConfig("LunarLander-v3", num_envs=16),
    run=RunConfig(total_steps=1_000_000),
    rollout_length=1024,
    epochs=4,
    minibatches=256,
    discount=0.999,
    gae_lambda=0.98,
    entropy_weight=0.01,
)
TRPO_RECURRENT_CARTPOLE = trpo.Config(
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
        "ppo",
        ppo.Config(
            env=EnvConfig("CartPole-v1", num_envs=8),
            run=RunConfig(total_steps=50_000),
            rollout_length=32,
            epochs=20,
            minibatches=1,
            discount=0.98,
            gae_lambda=0.8,
            learning_rate=linear(1e-3, 0.0),
            clip_range=linear(0.2, 0.0),
        ),
        score=500.0,
        interval=(500.0, 500.0),
    ),
    Preset("ppo", RECURRENT_CARTPOLE, score=500.0, interval=(500.0, 500.0)),
    Preset("ppo", replace(RECURRENT_CARTPOLE, core="gru"), score=500.0, interval=(486.5, 500.0)),
    Preset(
        "ppo",
        ppo.Config(
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
        score=-76.2,
        interval=(-83.9, -70.8),
    ),
    Preset(
        "ppo",
        ppo.Config(
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
        score=92.9,
        interval=(92.7, 93.5),
    ),
    Preset(
        "ppo",
        ppo.Config(
            env=EnvConfig("Pendulum-v1", num_envs=8),
            run=RunConfig(total_steps=100_000),
            rollout_length=128,
            epochs=10,
            minibatches=16,
            discount=0.95,
            learning_rate=linear(1e-3, 0.0),
            normalize_rewards=True,
        ),
        score=-166.8,
        interval=(-178.5, -145.5),
    ),
    Preset("ppo", LUNAR_LANDER, score=250.4, interval=(242.6, 263.3)),
    Preset(
        "ppo",
        replace(
            LUNAR_LANDER,
            env=EnvConfig("LunarLanderContinuous-v3", num_envs=16),
            rollout_length=512,
            epochs=6,
            minibatches=128,
            learning_rate=linear(5e-4, 0.0),
            entropy_weight=0.003,
        ),
        score=268.0,
        interval=(255.8, 272.8),
    ),
    Preset(
        "trpo",
        trpo.Config(
            env=EnvConfig("CartPole-v1", num_envs=8),
            run=RunConfig(total_steps=60_000),
            rollout_length=128,
        ),
    ),
    Preset("trpo", TRPO_RECURRENT_CARTPOLE),
    Preset("trpo", replace(TRPO_RECURRENT_CARTPOLE, core="gru")),
    Preset(
        "trpo",
        trpo.Config(
            env=EnvConfig("Pendulum-v1", num_envs=8),
            run=RunConfig(total_steps=100_000),
            rollout_length=128,
            discount=0.9,
            max_kl=0.03,
            cg_damping=0.01,
            epochs=15,
            minibatches=8,
            normalize_rewards=True,
        ),
    ),
    Preset(
        "trpo",
        trpo.Config(
            env=EnvConfig("LunarLander-v3", num_envs=8),
            run=RunConfig(total_steps=500_000),
            rollout_length=256,
            discount=0.99,
            gae_lambda=0.98,
            max_kl=0.02,
            cg_damping=0.01,
            epochs=20,
            minibatches=16,
        ),
    ),
]


def find_preset(algorithm: str, env_id: str, hide_velocities: bool = False, core: str = "feedforward") -> Preset | None:
    """The preset for this task, if there is one."""
    wanted = algorithm, env_id, hide_velocities, core
    return next((preset for preset in PRESETS if preset.task == wanted), None)


def preset(algorithm: str, env_id: str, hide_velocities: bool = False, core: str = "feedforward") -> Any:
    """The Config that `birl train` starts from for this task; change it with dataclasses.replace."""
    found = find_preset(algorithm, env_id, hide_velocities, core)
    known = ", ".join(sorted({p.config.env.id for p in PRESETS if p.algorithm == algorithm})) or "none"
    require(found is not None, f"there is no preset for {algorithm} on {env_id} with core {core}; environments with one: {known}")
    return found.config  # type: ignore[union-attr]
