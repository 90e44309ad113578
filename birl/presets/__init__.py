"""Settings for (algorithm, environment), most with the score they were measured at by
benchmarks/learning.py.
"""

from typing import Any

from birl.config import require
from birl.presets import (
    a2c,
    a3c,
    acer,
    async_nstep_q,
    async_q,
    async_sarsa,
    atari,
    ddpg,
    dpg,
    dqn,
    mujoco,
    ppo,
    qac,
    reinforce,
    sac,
    td3,
    trpo,
)
from birl.presets.entry import Preset

MODULES = (
    reinforce,
    qac,
    a2c,
    ppo,
    trpo,
    dqn,
    dpg,
    ddpg,
    td3,
    sac,
    a3c,
    async_q,
    async_sarsa,
    async_nstep_q,
    acer,
    mujoco,
    atari,
)
PRESETS = [preset for module in MODULES for preset in module.PRESETS]


def find_preset(algorithm: str, env_id: str, hide_velocities: bool = False, core: str = "feedforward") -> Preset | None:
    """The preset for this task, if there is one."""
    wanted = algorithm, env_id, hide_velocities, core
    return next((preset for preset in PRESETS if preset.task == wanted), None)


def preset(algorithm: str, env_id: str, hide_velocities: bool = False, core: str = "feedforward") -> Any:
    """The Config that `birl train` starts from for this task; change it with
    dataclasses.replace.
    """
    found = find_preset(algorithm, env_id, hide_velocities, core)
    known = ", ".join(sorted({p.config.env.id for p in PRESETS if p.algorithm == algorithm})) or "none"
    require(
        found is not None,
        f"there is no preset for {algorithm} on {env_id} with core {core}; environments with one: {known}",
    )
    return found.config  # type: ignore[union-attr]
