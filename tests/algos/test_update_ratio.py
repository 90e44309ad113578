"""update_ratio is gradient steps per environment step; resets do not count, fractions add up."""

import importlib
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from birl.config import EnvConfig, RunConfig
from birl.rollouts.learning import steps_per_update


class OneStep(gym.Env):
    """Ends after one step: every second row is a reset."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)

    def __init__(self, discrete: bool) -> None:
        self.action_space = spaces.Discrete(2) if discrete else spaces.Box(-1, 1, (1,), np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        return np.ones(2, np.float32), 1.0, True, False, {}


gym.register("tests/OneStep-v0", entry_point=OneStep, disable_env_checker=True)


@pytest.mark.parametrize(
    ("name", "ratio", "length"),
    [("dqn", 0.25, 4), ("dqn", 0.3, 4), ("dqn", 0.07, 3), ("ddpg", 1.0, 8), ("td3", 0.5, 5), ("sac", 1.0, 3)],
)
def test_gradient_steps_are_the_update_ratio_of_valid_steps_and_the_remainder_is_carried(name, ratio, length):
    algorithm = importlib.import_module(f"birl.algos.{name}")
    env = EnvConfig("tests/OneStep-v0", num_envs=1, kwargs={"discrete": name == "dqn"})
    settings = {
        "rollout_length": length,
        "update_ratio": ratio,
        "learning_starts": 10,
        "batch_size": 2,
        "hidden_sizes": (4,),
    }
    config = algorithm.Config(env=env, run=RunConfig(total_steps=150), **settings)
    steps = steps_per_update(config)
    due, before = 0.0, 0
    for update in algorithm.train(config):
        now = int(update.state.env_steps)
        if before >= 10:
            due += ratio * (now - before)
        before = now
        left = due - int(update.state.gradient_steps)
        assert -0.01 < left < steps
        assert float(update.state.owed) == pytest.approx(left, abs=1e-3)
        assert int(update.state.gradient_steps) % steps == 0  # one compiled program, whatever is owed
    assert int(update.state.gradient_steps) > 0
