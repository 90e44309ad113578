"""solve.json: what a search for an agent needs for its end."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from birl.config import EnvConfig, check_fields, from_json, require, to_json
from birl.run.evaluating import Evaluation
from birl.run.files import read_json, write_json

PLAN = "solve.json"


@dataclass(frozen=True)
class SolveRequest:
    """What the user asked for, beside the time; a search goes on only with the same."""

    env: EnvConfig
    algorithms: tuple[str, ...]
    total_steps: int | None
    episodes: int
    seed: int


@dataclass(frozen=True)
class SolvePlan:
    """How the best policy is scored, and what random actions scored."""

    episodes: int  # fresh ones, for the final score
    seed: int
    video: bool  # record an episode
    random_returns: tuple[float, ...]
    request: SolveRequest | None = None
    preparation: float = 0.0  # seconds before the search began
    ending: float = 0.0  # seconds that are kept for its end

    def __post_init__(self) -> None:
        check_fields(self)
        require(self.episodes >= 1, f"episodes {self.episodes} must be at least 1")
        require(len(self.random_returns) > 0, "random_returns are missing")

    def at_random(self) -> Evaluation:
        """The episodes of the random policy."""
        returns = np.array(self.random_returns)
        return Evaluation(returns, np.zeros(len(returns)))


def is_solving(directory: Path) -> bool:
    """Whether this directory holds a search for an agent."""
    return (directory / PLAN).is_file()


def write_solve_plan(directory: Path, plan: SolvePlan) -> None:
    """Write solve.json."""
    write_json(directory / PLAN, to_json(plan))


def read_solve_plan(directory: Path) -> SolvePlan:
    """The plan in solve.json; ConfigError if it is damaged."""
    path = directory / PLAN
    return from_json(SolvePlan, read_json(path), str(path))
