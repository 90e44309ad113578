"""Runs that each have one fault, made by bad settings or a broken environment."""

from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import birl
from birl.errors import NonFiniteError
from birl.maths.schedules import linear
from birl.registry import algorithm_named

ENVS = "tests.lab.broken_envs"


@dataclass(frozen=True)
class BrokenRun:
    """Settings that cannot work well, and the rule that must name the cause first."""

    cause: str
    algorithm: str
    env: str
    settings: dict[str, Any] = field(default_factory=dict)
    quick: bool = False  # a few seconds


BROKEN_RUNS = {
    "PPO with a learning rate of 0.1": BrokenRun(
        "steps-too-large", "ppo", "CartPole-v1", {"learning_rate": 0.1, "total_steps": 20_000}, quick=True
    ),
    "PPO with a learning rate of 1e-9": BrokenRun(
        "steps-too-small", "ppo", "CartPole-v1", {"learning_rate": 1e-9, "total_steps": 10_000}, quick=True
    ),
    "PPO whose gradients are cut to nothing": BrokenRun(
        "steps-too-small", "ppo", "CartPole-v1", {"max_grad_norm": 1e-9, "total_steps": 10_000}
    ),
    "PPO with rewards of a million": BrokenRun(
        "rewards-too-large", "ppo", f"{ENVS}:rich_cartpole", {"total_steps": 10_000}
    ),
    "DQN whose target network never moves": BrokenRun(
        "target-frozen", "dqn", "CartPole-v1", {"target_every": 10**9, "total_steps": 8_000}
    ),
    "SAC whose target networks never move": BrokenRun(
        "target-frozen", "sac", "Pendulum-v1",
        {"target_rate": 1e-8, "hidden_sizes": (32, 32), "batch_size": 32, "total_steps": 8_000},
    ),
    "PPO with a discount of 0": BrokenRun(
        "discount-too-small", "ppo", "CartPole-v1", {"discount": 0.0, "total_steps": 10_000}, quick=True
    ),
    "compiled DQN with a learning rate of 1": BrokenRun(
        "weights-too-large", "dqn", "CartPole-v1", {"backend": "compiled", "learning_rate": 1.0, "total_steps": 10_000}
    ),
    "A2C whose policy is certain at once": BrokenRun(
        "policy-collapsed", "a2c", "CartPole-v1",
        {"learning_rate": 0.2, "entropy_weight": 0.0, "max_grad_norm": None, "total_steps": 30_000},
    ),
    "DQN without a target network, with large steps": BrokenRun(
        "values-too-large", "dqn", "CartPole-v1",
        {"learning_rate": 0.1, "target_every": 1, "double": False, "max_grad_norm": None, "total_steps": 8_000},
    ),
    "DQN with a discount of 1 where nothing terminates": BrokenRun(
        "values-too-large", "dqn", f"{ENVS}:endless",
        {"discount": 1.0, "total_steps": 20_000, "target_every": 20, "update_ratio": 0.5},
    ),
    "PPO without rewards": BrokenRun(
        "rewards-not-seen", "ppo", f"{ENVS}:unrewarded", {"total_steps": 20_000}, quick=True
    ),
    "PPO with observations of a million": BrokenRun(
        "observations-badly-scaled", "ppo", f"{ENVS}:huge_cartpole", {"total_steps": 20_000}, quick=True
    ),
    "PPO that sees nothing": BrokenRun(
        "observations-constant", "ppo", f"{ENVS}:blind_cartpole", {"total_steps": 20_000}, quick=True
    ),
    "DQN that stops exploring before it learns": BrokenRun(
        "exploration-ended", "dqn", "MountainCar-v0",
        {"exploration": linear(1.0, 0.0, 0.01), "learning_starts": 4_000, "total_steps": 20_000, "update_ratio": 0.1},
    ),
    "PPO in episodes that are cut too early": BrokenRun(
        "time-limit-only", "ppo", "Acrobot-v1", {"max_episode_steps": 30, "total_steps": 20_000}, quick=True
    ),
    "PPO with a policy that only works by chance": BrokenRun(
        "evaluation-below-training", "ppo", f"{ENVS}:guess", {"total_steps": 20_000}, quick=True
    ),
    "DQN with a replay of one episode": BrokenRun(
        "replay-forgets", "dqn", "CartPole-v1",
        {"replay_size": 64, "learning_starts": 64, "total_steps": 12_000, "update_ratio": 0.5},
    ),
    "DQN that hardly learns": BrokenRun(
        "too-few-updates", "dqn", "CartPole-v1", {"update_ratio": 0.002, "total_steps": 15_000}
    ),
    "DQN whose units are dead": BrokenRun(
        "dead-units", "dqn", "CartPole-v1", {"learning_rate": 1.0, "total_steps": 10_000}
    ),
    "A2C that waits for its environment": BrokenRun(
        "time-in-environment", "a2c", f"{ENVS}:slow", {"total_steps": 800, "num_envs": 4}
    ),
}  # fmt: skip


def make_run(broken: BrokenRun, run_dir: Path, seed: int = 1) -> Path:
    """Train it; its directory. A run that ends by a NaN is a broken one, too."""
    kept = {"eval_episodes": 10, "run_dir": str(run_dir), "seed": seed, "quiet": True}
    config = algorithm_named(broken.algorithm).Config()  # without a preset
    with suppress(NonFiniteError):
        birl.train(config, broken.env, **kept, **broken.settings)
    return run_dir
