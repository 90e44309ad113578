"""What a preset is."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Preset:
    """Settings for one task, and what they reach: the interquartile mean over seeds of the final
    evaluation's mean return.

    Without a score they are published settings that were not measured here.
    """

    algorithm: str
    config: Any
    score: float | None = None
    interval: tuple[float, float] | None = None  # 95 %
    seeds: int = 5  # measured; of one there is no interval to speak of

    @property
    def task(self) -> tuple[str, str, bool, str]:
        """What a preset is found by: algorithm, environment, hidden velocities, core."""
        return self.algorithm, self.config.env.id, self.config.env.hide_velocities, core_of(self.config)

    @property
    def switches(self) -> list[str]:
        """The options of `birl train` that choose this preset among those of its environment."""
        hidden = ["--hide-velocities"] if self.config.env.hide_velocities else []
        return hidden + ([f"--core {core_of(self.config)}"] if core_of(self.config) != "feedforward" else [])


def core_of(config: Any) -> str:
    """The core of its network; an algorithm that takes none has no such setting."""
    return str(vars(config).get("core", "feedforward"))
