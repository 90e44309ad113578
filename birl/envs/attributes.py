"""Attributes of environments that change during training: a curriculum's level, a goal, a length.

A new value takes effect when an environment begins its next episode, so that a running episode can
be replayed. Values are plain JSON, because they are saved with the environments.
"""

import copy
import json
from typing import Any

import gymnasium as gym

from birl.config import ConfigError, require
from birl.config_json import HasToList
from birl.errors import cut

Attributes = dict[str, Any]


def read_attribute(name: str, value: Any) -> Attributes:
    """The attribute with its value as JSON has it; ConfigError if it is not plain data."""
    value = value.tolist() if isinstance(value, HasToList) else value
    try:
        return {name: json.loads(json.dumps(value, allow_nan=False))}
    except (TypeError, ValueError) as problem:
        wrong = f"environment attribute {name!r} cannot be {cut(value)}: {problem}"
        raise ConfigError(f"{wrong}; use numbers, strings, True, False, None, and lists or dicts of these") from problem


def require_attributes(env: gym.Env, attributes: Attributes) -> None:
    """Raise ConfigError unless the environment or one of its wrappers has these attributes."""
    for name in attributes:
        remedy = "define it in the constructor of the environment or of one of its wrappers"
        require(env.has_wrapper_attr(name), f"{env} has no attribute {name!r} to set; {remedy}")
        is_method = callable(env.get_wrapper_attr(name))
        require(not is_method, f"attribute {name!r} of {env} is a method; set a number or text that the method reads")


def apply_attributes(env: gym.Env, attributes: Attributes) -> None:
    """Set these attributes where the environment or one of its wrappers has them.

    They may be from a snapshot: ConfigError if the environment has none of that name.
    """
    require_attributes(env, attributes)
    for name, value in attributes.items():
        env.set_wrapper_attr(name, copy.deepcopy(value), force=False)
