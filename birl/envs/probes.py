"""Probe environments: tiny, with known values, so that a wrong algorithm fails within seconds.

Each tests one part of an algorithm, and a failure names that part.
"""

from collections.abc import Callable
from typing import Any

import gymnasium as gym

from birl.envs.probes_episodes import (
    ActionMask,
    DelayedReward,
    Faulty,
    LinearQuadratic,
    MaskedMemory,
    Memory,
    Truncation,
)
from birl.envs.probes_one_step import ONE_STEP, ConstantReward, DictObservation, OneStep

PROBES: dict[str, tuple[Callable[..., gym.Env], dict[str, Any]]] = {
    "birl/ProbeConstant-v0": (ConstantReward, {}),
    "birl/ProbeDelayed-v0": (DelayedReward, {}),
    "birl/ProbeTruncation-v0": (Truncation, {}),
    "birl/ProbeMemory-v0": (Memory, {}),
    "birl/ProbeMask-v0": (ActionMask, {}),
    "birl/ProbeMaskedMemory-v0": (MaskedMemory, {}),
    "birl/ProbeDict-v0": (DictObservation, {}),
    "birl/ProbeLinearQuadratic-v0": (LinearQuadratic, {}),
    "birl/ProbeNaN-v0": (Faulty, {"fault": "nan observation"}),
    "birl/ProbeInfinite-v0": (Faulty, {"fault": "infinite reward"}),
    "birl/ProbeRaise-v0": (Faulty, {"fault": "raise"}),
} | {name: (OneStep, {"action_space": space, "reward": reward}) for name, (space, reward) in ONE_STEP.items()}


def register_probes() -> None:
    """Register the probes with Gymnasium; may be called again."""
    for env_id, (probe, kwargs) in PROBES.items():
        if env_id not in gym.registry:
            gym.register(env_id, entry_point=probe, kwargs=kwargs)
