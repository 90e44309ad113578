"""Environments of MuJoCo Playground (Zakka et al. 2025) by their names: CartpoleBalance, ...

Those of the DeepMind Control Suite are in the package. For the others, Playground clones the
models of MuJoCo's menagerie from the network when the first of them is made.
"""

import subprocess
from difflib import get_close_matches
from typing import Any

import numpy as np
from mujoco_playground import registry

from birl.config import ConfigError, require
from birl.envs.compiled.robots import Robot, first_camera, make_robot


def make_playground(name: str, **kwargs: Any) -> Robot:
    """The environment `playground/name`; `kwargs` are entries of its configuration.

    An entry inside of another has a dot in its name: {"noise_config.level": 0.5}. The physics is
    MJX in JAX; impl="warp" needs a GPU.
    """
    known = registry.ALL_ENVS
    if name not in known:
        near = get_close_matches(name, known) or known
        raise ConfigError(f"env.id 'playground/{name}' is not an environment of Playground; use {', '.join(near)}")
    config = registry.get_default_config(name)
    entries = _entries(config.to_dict())
    for unknown in kwargs.keys() - entries:
        near = get_close_matches(unknown, entries) or sorted(entries)
        raise ConfigError(f"env.kwargs {unknown!r} is no entry of 'playground/{name}'; use {', '.join(near)}")
    try:
        config.update_from_flattened_dict({"impl": "jax"} | kwargs)
        env = registry.load(name, config)
    except (KeyError, TypeError, ValueError) as problem:
        raise ConfigError(f"env.kwargs {kwargs} do not fit env.id 'playground/{name}': {problem}") from problem
    except (OSError, subprocess.CalledProcessError) as problem:
        wrong = f"env.id 'playground/{name}' needs MuJoCo's menagerie, which Playground cannot clone"
        raise ConfigError(f"{wrong}: {problem}; use one of the Control Suite, as CartpoleBalance") from problem
    repeats = config.get("action_repeat", 1)
    wrong = f"env.kwargs action_repeat {repeats} of env.id 'playground/{name}' is for Playground's wrappers"
    require(repeats == 1, f"{wrong}; leave it at 1, and set ctrl_dt for longer steps")
    camera = first_camera(env.mj_model)

    def render(state: Any) -> np.ndarray:
        return np.asarray(env.render([state], camera=camera)[0])

    return make_robot(env, int(config.episode_length), render)


def _entries(config: dict[str, Any]) -> set[str]:
    """The names of the entries; Playground itself ignores a name that is not among them."""
    inner = {f"{name}.{entry}" for name, part in config.items() if isinstance(part, dict) for entry in _entries(part)}
    return inner | {name for name, part in config.items() if not isinstance(part, dict)}
