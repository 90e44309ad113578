"""How actor-learners explore: each reaches a final ε of its own (Mnih et al. 2016, section 5.1)."""

from typing import Protocol

import numpy as np

from birl.checks import ExplorationSettings
from birl.config import RunConfig
from birl.maths.schedules import Schedule, number_at


class EpsilonSettings(ExplorationSettings, Protocol):
    """The settings of a Config that ε depends on: the run's length and seed, too."""

    @property
    def run(self) -> RunConfig: ...
    @property
    def exploration(self) -> float | Schedule | None: ...


def final_exploration(config: EpsilonSettings, number: int) -> float:
    """The final ε of actor-learner `number`. It is random, but fixed by the run's seed."""
    rng = np.random.default_rng([config.run.seed, number])
    bounds = np.cumsum(config.exploration_chances)
    return config.final_explorations[int(np.searchsorted(bounds[:-1], rng.random(), side="right"))]


def exploration_at(config: EpsilonSettings, number: int, env_steps: int) -> np.float32:
    """ε of actor-learner `number` after this many steps of all: linear from 1 to its final ε.

    The final ε is reached at the fraction `exploration_fraction` of the run. If `exploration` is
    set, all have that ε.
    """
    if config.exploration is not None:
        return np.float32(number_at(config.exploration, env_steps / config.run.total_steps))
    share = min(env_steps / (config.exploration_fraction * config.run.total_steps), 1.0)
    return np.float32(1.0 + share * (final_exploration(config, number) - 1.0))
