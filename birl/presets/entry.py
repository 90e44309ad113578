"""What a preset is."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Preset:
    """Settings for one task, and the score they reached when they were measured.

    The score is the interquartile mean over seeds of the final evaluation's mean return. A preset
    without a score has published settings that were not measured.
    """

    algorithm: str
    config: Any
    score: float | None = None
    interval: tuple[float, float] | None = None  # 95 % confidence interval of the score; None with one seed
    seeds: int = 5  # how many were measured

    @property
    def task(self) -> tuple[str, str, bool, str]:
        """The key of a preset: algorithm, environment, hidden velocities, core."""
        return self.algorithm, self.config.env.id, self.config.env.hide_velocities, core_of(self.config)

    @property
    def switches(self) -> list[str]:
        """The options of `birl train` that select this preset among those of its environment."""
        hidden = ["--hide-velocities"] if self.config.env.hide_velocities else []
        return hidden + ([f"--core {core_of(self.config)}"] if core_of(self.config) != "feedforward" else [])


def core_of(config: Any) -> str:
    """The core that a Config names; "feedforward" if its algorithm has no such option."""
    return str(vars(config).get("core", "feedforward"))
