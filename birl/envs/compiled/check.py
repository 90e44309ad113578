"""Whether an environment in JAX does what its spaces say, found out without running it."""

from typing import Any

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from birl.config import ConfigError, require
from birl.envs.compiled.interface import CompiledEnv, HasActionMask
from birl.envs.spaces import at_path, mask_width, shown, walk
from birl.types import PyTree

KEY = jax.ShapeDtypeStruct((2,), jnp.uint32)


def require_compiles(env: CompiledEnv, name: str) -> None:
    """Raise ConfigError unless reset and step can be traced and return what they should."""
    begun = _traced(name, "reset", env.reset, KEY)
    require(_is_tuple(begun, 2), f"{name}: reset must return (state, observation), not {_kind(begun)}")
    state, observation = begun
    _require_observation(name, "reset", env.observation_space, observation)
    stepped = _traced(name, "step", env.step, state, example_action(env.action_space), KEY)
    parts = "(state, observation, reward, terminated, truncated)"
    require(_is_tuple(stepped, 5), f"{name}: step must return {parts}, not {_kind(stepped)}")
    _require_same_state(name, state, stepped[0])
    _require_observation(name, "step", env.observation_space, stepped[1])
    for part, value in zip(("reward", "terminated", "truncated"), stepped[2:], strict=True):
        single = isinstance(value, jax.ShapeDtypeStruct) and value.shape == ()
        require(single, f"{name}: step returned {part} {_text(value)}; return one number, an array of shape ()")
    if isinstance(env, HasActionMask):
        _require_mask(name, env, state)


def example_action(space: gym.Space) -> jax.ShapeDtypeStruct:
    """The shape and the type of an action."""
    whole = isinstance(space, spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary)
    return jax.ShapeDtypeStruct(space.shape or (), jnp.int32 if whole else jnp.float32)


def _traced(name: str, function: str, call: Any, *inputs: Any) -> Any:
    """The shapes that a function gives; ConfigError if JAX cannot trace it."""
    try:
        return jax.eval_shape(call, *inputs)
    except (jax.errors.JAXTypeError, TypeError, ValueError, IndexError, AttributeError) as problem:
        remedy = "it must be pure and use jax.numpy: no if on arrays, no NumPy of them"
        first = str(problem).strip().splitlines()[0] if str(problem).strip() else ""
        reason = f"{type(problem).__name__}: {first}"
        raise ConfigError(f"{name}: {function} cannot be compiled ({reason}); {remedy}") from problem


def _require_observation(name: str, function: str, space: gym.Space, observation: PyTree) -> None:
    for path, leaf in walk(space, "observation"):
        where = "observation" + "".join(f"[{part!r}]" for part in path)
        try:
            part = at_path(observation, path)
        except (KeyError, IndexError, TypeError) as problem:
            raise ConfigError(f"{name}: {function} returned no {where}; its space has it") from problem
        shape = part.shape if isinstance(part, jax.ShapeDtypeStruct) else None
        wrong = f"{name}: {function} returned {where} of shape {shape}"
        require(shape == (leaf.shape or ()), f"{wrong}; its space {shown(leaf)} says {leaf.shape or ()}")


def _require_mask(name: str, env: Any, state: PyTree) -> None:
    width = mask_width(env.action_space)
    mask = _traced(name, "action_mask", env.action_mask, state)
    wrong = f"{name}: action_mask returned {_text(mask)}"
    shape = mask.shape if isinstance(mask, jax.ShapeDtypeStruct) else None
    remedy = f"return an array of shape ({width},), true where a choice is allowed"
    require(width is None or shape == (width,), f"{wrong}; action space {shown(env.action_space)}: {remedy}")


def _require_same_state(name: str, before: PyTree, after: PyTree) -> None:
    structures: list[Any] = [jax.tree.structure(before), jax.tree.structure(after)]
    same = structures[0] == structures[1]
    require(same, f"{name}: step returned a state of another structure than reset; return the same pytree")
    for old, new in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
        is_key = jnp.issubdtype(old.dtype, jax.dtypes.prng_key)
        remedy = "keep jax.random.key_data of it, and wrap_key_data where it is used"
        require(not is_key, f"{name}: its state holds a random key of type {old.dtype}, which is no array; {remedy}")
        wrong = f"{name}: reset returned a state with an array {_text(old)}, and step one with {_text(new)}"
        kinds = np.dtype(old.dtype).kind, np.dtype(new.dtype).kind
        fits = old.shape == new.shape and kinds[0] == kinds[1]
        require(fits, f"{wrong}; keep shapes and types the same")


def _is_tuple(value: Any, size: int) -> bool:
    return isinstance(value, tuple) and len(value) == size


def _kind(value: Any) -> str:
    return f"{len(value)} values" if isinstance(value, tuple) else type(value).__name__


def _text(value: Any) -> str:
    return f"{value.dtype}{list(value.shape)}" if isinstance(value, jax.ShapeDtypeStruct) else type(value).__name__
