"""Checks of what a compiled environment returns: the types of its arrays."""

from typing import Any

import gymnasium as gym
import jax
import numpy as np

from birl.config import EnvConfig
from birl.envs.compiled.check import KEY, example_action
from birl.envs.compiled.host import programs_of
from birl.envs.findings import Finding, ok, warning
from birl.envs.spaces import at_path, name_of, shown, walk


def check_compiled(config: EnvConfig) -> list[Finding]:
    """Whether reset and step return what the spaces say.

    Shapes are right, because an environment whose shapes are wrong cannot be made.
    """
    env = programs_of(config).copies.env
    state, observation = jax.eval_shape(env.reset, KEY)
    _, _, _, *flags = jax.eval_shape(env.step, state, example_action(env.action_space), KEY)
    text = "reset and step can be traced by JAX, and the state keeps its shapes and types"
    findings = [ok("compiles", text), *_check_types(env.observation_space, observation)]
    kinds = {name: flag.dtype for name, flag in zip(("terminated", "truncated"), flags, strict=True)}
    if others := [f"{name} is {kind}" for name, kind in kinds.items() if kind != np.bool_]:
        findings.append(warning("flags", f"{', '.join(others)}; return bools"))
    return findings


def _check_types(space: gym.Space, observation: Any) -> list[Finding]:
    """Warnings of fractions that would be cut off."""
    findings = []
    for path, leaf in walk(space, "observation"):
        given = np.dtype(at_path(observation, path).dtype)
        if given.kind == "f" and np.dtype(leaf.dtype).kind in "iu":
            wrong = f"its type is {given}, and {shown(leaf)} holds whole numbers"
            findings.append(
                warning(f"observation {name_of(path)}".strip(), f"{wrong}: fractions are cut off; correct one of them")
            )
    return findings
