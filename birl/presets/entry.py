"""What a preset is, and the score that it was measured at."""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from birl.settings import flat_settings

SCORES = Path(__file__).with_name("scores.json")  # by task; benchmarks/readme.py writes it from RESULTS.md


class Measured(NamedTuple):
    """The interquartile mean over seeds of the final evaluation's mean return."""

    score: float
    interval: tuple[float, float] | None  # the 95 % confidence interval of the score; None with one seed
    seeds: int


@dataclass(frozen=True)
class Preset:
    """Settings for one task. Without a measured score they are published ones."""

    algorithm: str
    config: Any

    @property
    def task(self) -> tuple[str, str, bool, str]:
        """The key of a preset: algorithm, environment, hidden velocities, core."""
        return self.algorithm, self.config.env.id, self.config.env.hide_velocities, core_of(self.config)

    @property
    def measured(self) -> Measured | None:
        """What these settings reached; None if that was not measured."""
        return measured_scores().get(" ".join([self.algorithm, self.config.env.id, *self.switches]))

    @property
    def switches(self) -> list[str]:
        """The options of `birl train` that select this preset among those of its environment."""
        hidden = ["--hide-velocities"] if self.config.env.hide_velocities else []
        return hidden + ([f"--core {core_of(self.config)}"] if core_of(self.config) != "feedforward" else [])


def core_of(config: Any) -> str:
    """The core that a Config names; "feedforward" if its algorithm has no such option."""
    return str(flat_settings(config).get("core", "feedforward"))


@cache
def measured_scores() -> dict[str, Measured]:
    """Every measured score, by algorithm, environment and switches."""
    rows = json.loads(SCORES.read_text(encoding="utf-8"))
    return {
        task: Measured(row["score"], row["interval"] and tuple(row["interval"]), row["seeds"])
        for task, row in rows.items()
    }
