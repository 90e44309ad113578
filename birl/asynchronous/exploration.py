"""How actor-learners explore: each comes to an ε of its own (Mnih et al. 2016, section 5.1)."""

from math import isclose
from typing import Protocol

import numpy as np

from birl.config import RunConfig, require


class ExplorationSettings(Protocol):
    """The settings of an algorithm's Config that say how often its actor-learners act at random."""

    @property
    def run(self) -> RunConfig: ...
    @property
    def final_explorations(self) -> tuple[float, ...]: ...
    @property
    def exploration_chances(self) -> tuple[float, ...]: ...
    @property
    def exploration_fraction(self) -> float: ...


def validate_exploration(config: ExplorationSettings) -> None:
    """Raise ConfigError if these settings cannot work."""
    finals, probabilities, fraction = config.final_explorations, config.exploration_chances, config.exploration_fraction
    require(
        all(0 <= epsilon <= 1 for epsilon in finals),
        f"final_explorations {finals} must each lie in [0, 1]: they are chances",
    )
    same = (
        f"exploration_chances {probabilities} must be as many as final_explorations {finals}; for one ε alone, (1.0,)"
    )
    require(len(finals) == len(probabilities), same)
    sums = all(chance >= 0 for chance in probabilities) and isclose(sum(probabilities), 1, abs_tol=1e-6)
    require(
        sums, f"exploration_chances {probabilities} must not be negative and add up to 1, not {sum(probabilities):g}"
    )
    require(0 < fraction <= 1, f"exploration_fraction {fraction} must lie in (0, 1]; 0.5 is usual")


def final_exploration(config: ExplorationSettings, number: int) -> float:
    """The ε that actor-learner `number` comes to: drawn, and the same whenever it begins anew in a
    run with this seed.
    """
    rng = np.random.default_rng([config.run.seed, number])
    bounds = np.cumsum(config.exploration_chances)
    return config.final_explorations[int(np.searchsorted(bounds[:-1], rng.random(), side="right"))]


def exploration_at(config: ExplorationSettings, number: int, env_steps: int) -> np.float32:
    """ε of actor-learner `number` after so many steps of all: from 1 in a straight line to its own,
    reached at `exploration_fraction`.
    """
    share = min(env_steps / (config.exploration_fraction * config.run.total_steps), 1.0)
    return np.float32(1.0 + share * (final_exploration(config, number) - 1.0))
