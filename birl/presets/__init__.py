"""Presets: settings for an algorithm on an environment, most with a measured score.

A preset is loaded when its algorithm is asked for: the presets of PPO import PPO and no other
algorithm. benchmarks/learning.py and benchmarks/evidence.py measure the scores.
"""

import importlib
import importlib.util
from typing import Any

from birl import ALGORITHMS
from birl.config import require
from birl.presets import atari, mujoco
from birl.presets.entry import Preset


def presets_of(algorithm: str) -> list[Preset]:
    """Every preset of this algorithm; none for a user's own algorithm."""
    return [*_tuned(algorithm), *mujoco.presets_of(algorithm), *atari.presets_of(algorithm)]


def all_presets() -> list[Preset]:
    """Every preset of every algorithm. This imports them all."""
    families = (_tuned, mujoco.presets_of, atari.presets_of)
    return [preset for presets in families for algorithm in ALGORITHMS for preset in presets(algorithm)]


def find_preset(algorithm: str, env_id: str, hide_velocities: bool = False, core: str = "feedforward") -> Preset | None:
    """The preset for this task; None if there is none."""
    wanted = algorithm, env_id, hide_velocities, core
    return next((preset for preset in presets_of(algorithm) if preset.task == wanted), None)


def preset(algorithm: str, env_id: str, hide_velocities: bool = False, core: str = "feedforward") -> Any:
    """The Config of the preset for this task; change it with dataclasses.replace."""
    found = find_preset(algorithm, env_id, hide_velocities, core)
    known = ", ".join(sorted({entry.config.env.id for entry in presets_of(algorithm)})) or "none"
    wrong = f"there is no preset for {algorithm} on {env_id} with core {core}"
    require(found is not None, f"{wrong}; environments with one: {known}")
    return found.config  # type: ignore[union-attr]


def _tuned(algorithm: str) -> list[Preset]:
    """The presets in the algorithm's own file in this folder, if it has one."""
    module = f"{__name__}.{algorithm.replace('-', '_')}"
    if algorithm not in ALGORITHMS or importlib.util.find_spec(module) is None:
        return []
    return importlib.import_module(module).PRESETS
