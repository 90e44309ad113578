"""Attributes and action masks of the environments inside a vector environment."""

from typing import Any, Protocol, runtime_checkable

import gymnasium as gym

from birl.config import require
from birl.envs.attributes import Attributes
from birl.envs.native_vector import is_native
from birl.envs.wrappers import MASK_METHOD


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
    remedy = "use backend gymnasium and env.id, or a vector environment with set_attr"
    can_set = isinstance(vector_env, SetsAttributes)
    require(can_set, f"the attributes {sorted(attributes)} cannot be set in {vector_env}; {remedy}")
    assert isinstance(vector_env, SetsAttributes)
    for name, value in attributes.items():
        known = all(vector_env.call("has_wrapper_attr", name))
        require(known, f"the environments of {vector_env} have no attribute {name!r} to set")
        vector_env.set_attr(name, [value] * vector_env.num_envs)  # a single list would be divided among them


def has_mask_method(vector_env: gym.vector.VectorEnv) -> bool:
    """Whether every environment in it has the method `action_masks`."""
    inner = vector_env.unwrapped
    return isinstance(inner, Calls) and all(inner.call("has_wrapper_attr", MASK_METHOD))


def method_masks(vector_env: gym.vector.VectorEnv) -> list[Any]:
    """The masks that this method gives now, one for each environment."""
    inner = vector_env.unwrapped
    assert isinstance(inner, Calls)
    return list(inner.call(MASK_METHOD))
