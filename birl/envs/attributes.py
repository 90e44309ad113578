"""Attributes of environments that change during training: a curriculum's level, a goal, a length.

A new value takes effect when an environment begins its next episode, so that a running episode can
be replayed. Values are plain JSON, because they are saved with the environments.
"""

import copy
import json
from typing import Any, Protocol, runtime_checkable

import gymnasium as gym

from birl.config import ConfigError, HasToList, require
from birl.envs.native import is_native
from birl.envs.wrappers import MASK_METHOD
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


@runtime_checkable
class Calls(Protocol):
    """A vector environment that calls methods of its environments, as Gymnasium's own do."""

    def call(self, name: str, *args: Any) -> tuple[Any, ...]: ...


@runtime_checkable
class SetsAttributes(Protocol):
    """A vector environment that reaches its environments, as Gymnasium's own do."""

    def call(self, name: str, *args: Any) -> tuple[Any, ...]: ...

    def set_attr(self, name: str, values: Any) -> None: ...


def set_vector_attributes(vector_env: gym.vector.VectorEnv, attributes: Attributes) -> None:
    """Set these attributes in every environment; ConfigError if it has none of that name."""
    if is_native(vector_env):  # one object for all environments
        for name, value in attributes.items():
            known = name in vars(vector_env) and not callable(vars(vector_env)[name])
            require(known, f"{vector_env} has no attribute {name!r} to set")
            vars(vector_env)[name] = value
        return
    if not isinstance(vector_env, SetsAttributes):
        remedy = "use backend gymnasium and env.id, or a vector environment with set_attr"
        raise ConfigError(f"the attributes {sorted(attributes)} cannot be set in {vector_env}; {remedy}")
    for name, value in attributes.items():
        known = all(vector_env.call("has_wrapper_attr", name))
        require(known, f"the environments of {vector_env} have no attribute {name!r} to set")
        vector_env.set_attr(name, [value] * vector_env.num_envs)  # a single list would be divided among them


def has_mask_method(vector_env: gym.vector.VectorEnv) -> bool:
    """True if every environment in it has the method `action_masks`."""
    inner = vector_env.unwrapped
    return isinstance(inner, Calls) and all(inner.call("has_wrapper_attr", MASK_METHOD))


def method_masks(vector_env: gym.vector.VectorEnv) -> list[Any]:
    """The masks that this method gives now, one for each environment."""
    inner = vector_env.unwrapped
    assert isinstance(inner, Calls)
    return list(inner.call(MASK_METHOD))
