"""How many gradient steps are due after a rollout, for algorithms that learn from a replay."""

import math
from typing import Protocol

import numpy as np

from birl.config import EnvConfig
from birl.rollouts.replay import Replay
from birl.types import Array, Rollout


class GradientStepSettings(Protocol):
    """The settings that say when and how often an algorithm learns from its replay."""

    @property
    def env(self) -> EnvConfig: ...
    @property
    def learning_starts(self) -> int: ...
    @property
    def rollout_length(self) -> int: ...
    @property
    def update_ratio(self) -> float: ...


class Counters(Protocol):
    """The part of an algorithm's State that counts steps."""

    @property
    def env_steps(self) -> Array: ...
    @property
    def owed(self) -> Array: ...


def gradient_steps(config: GradientStepSettings) -> int:
    """Gradient steps in one update: `update_ratio` for each environment step, rounded up."""
    return max(1, math.ceil(config.update_ratio * config.rollout_length * config.env.num_envs - 1e-3))


def gradient_steps_due(
    config: GradientStepSettings, state: Counters, replay: Replay, rollout: Rollout
) -> tuple[int, np.float32]:
    """Gradient steps to take after this rollout, and how many are still owed then.

    It is all of an update's steps or none, so that one program is compiled. The rest is owed: it is
    carried over to the next update. Before `learning_starts` nothing is due and nothing is owed.
    """
    if int(state.env_steps) < config.learning_starts or not replay.ready:
        return 0, np.float32(0)
    due, owed = due_steps(config, float(state.owed), int(rollout.valid.sum()))
    return due, np.float32(owed)


def due_steps(config: GradientStepSettings, owed: float, env_steps: int) -> tuple[int, float]:
    """Gradient steps to take after `env_steps` more steps, and how many are owed then."""
    owed += config.update_ratio * env_steps
    whole = gradient_steps(config)
    return (whole, owed - whole) if owed > whole - 1e-3 else (0, owed)  # 1e-3: ratios such as 1/3 are rounded
