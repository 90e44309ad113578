"""Environments of Brax (Freeman et al. 2021) by their names: ant, hopper, inverted_pendulum, ..."""

from difflib import get_close_matches
from typing import Any

import numpy as np
from brax import envs

from birl.config import ConfigError
from birl.envs.compiled.robots import Robot, first_camera, make_robot

LIMIT = 1000  # steps, as brax.envs.create has it


def make_brax(name: str, **kwargs: Any) -> Robot:
    """The environment `brax/name`; `kwargs` go to its class: backend="spring", ..."""
    known = sorted(set(envs._envs) - {"fast"})  # which has no model: Brax tests its training with it
    if name not in known:
        near = get_close_matches(name, known) or known
        raise ConfigError(f"env.id 'brax/{name}' is not an environment of Brax; use one of {', '.join(near)}")
    try:
        env = envs.get_environment(name, **kwargs)
    except ValueError as problem:  # of a backend that Brax does not have
        raise ConfigError(f"env.kwargs {kwargs} do not fit env.id 'brax/{name}': {problem}") from problem
    camera = first_camera(env.sys.mj_model)

    def render(state: Any) -> np.ndarray:
        return np.asarray(env.render([state.pipeline_state], camera=camera)[0])

    return make_robot(env, LIMIT, render)
