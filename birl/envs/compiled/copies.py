"""Many copies of a compiled environment, stepped together in the one episode convention.

All of it is pure: a step takes the copies as they are and gives the copies as they are then.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from birl.config import ConfigError, EnvConfig, require
from birl.envs.compiled.interface import CompiledEnv, HasActionMask, HasEpisodeLimit
from birl.envs.outputs import ObservationLayout, layout_of
from birl.envs.registration import make_compiled
from birl.envs.spaces import at_path, is_composite, learnable_actions, mask_width, shown, walk
from birl.envs.wrappers import kept_space, positions
from birl.types import Array, PyTree, Step

KEY = jax.ShapeDtypeStruct((2,), jnp.uint32)


class Copies(NamedTuple):
    """B copies of an environment between two steps."""

    states: PyTree  # [B, ...] the environment's own
    observations: PyTree  # [B, ...] as networks see them
    masks: Array | None  # [B, A] true where an action is allowed; None: all are
    lengths: Array  # [B] steps in the episode so far
    ended: Array  # [B] the episode is over: the next step begins a new one
    key: Array


@dataclass(frozen=True, eq=False)
class CompiledCopies:
    """How B copies of a compiled environment are reset and stepped."""

    env: CompiledEnv
    num_envs: int
    limit: int | None  # steps after which an episode is truncated; None: no limit
    layout: ObservationLayout
    kept: tuple[int, ...] | None = None  # the entries of an observation that are no velocities; None: all

    @property
    def spaces(self) -> tuple[gym.Space, gym.Space]:
        """The observation space that networks see, and the action space."""
        space = self.layout.space
        return space if self.kept is None else kept_space(space, np.array(self.kept)), self.env.action_space

    @property
    def gives_masks(self) -> bool:
        """True if there are action masks: by a method, or in the observation."""
        return self._has_mask_method or self.layout.mask_path is not None

    @property
    def _has_mask_method(self) -> bool:
        return isinstance(self.env, HasActionMask) and mask_width(self.env.action_space) is not None

    def reset(self, key: Array) -> Copies:
        """All copies at the beginning of an episode."""
        key, reset_key = jax.random.split(key)
        states, observations = jax.vmap(self.env.reset)(jax.random.split(reset_key, self.num_envs))
        nobody = jnp.zeros(self.num_envs, bool)
        return Copies(
            states=states,
            observations=self._seen(observations),
            masks=self._masks(states, observations, nobody, nobody),
            lengths=jnp.zeros(self.num_envs, jnp.int32),
            ended=nobody,
            key=key,
        )

    def step(self, copies: Copies, actions: Array) -> tuple[Copies, Step]:
        """Step all copies.

        One whose episode is over begins a new one instead, and its row is not valid.
        """
        key, step_key, reset_key = jax.random.split(copies.key, 3)
        step_keys, reset_keys = (jax.random.split(each, self.num_envs) for each in (step_key, reset_key))
        stepped = jax.vmap(self.env.step)(copies.states, self._env_actions(actions), step_keys)
        states = jax.tree.map(lambda new, old: new.astype(old.dtype), stepped[0], copies.states)
        observations, rewards = stepped[1], stepped[2]
        begun = copies.ended
        lengths = jnp.where(begun, 0, copies.lengths + 1)
        terminated = stepped[3].astype(bool) & ~begun
        truncated = stepped[4].astype(bool) & ~begun
        if self.limit is not None:
            truncated = truncated | (lengths >= self.limit)
        truncated = truncated & ~terminated

        def with_resets() -> tuple[PyTree, PyTree]:
            fresh = jax.vmap(self.env.reset)(reset_keys)
            return jax.tree.map(
                lambda new, old: where_rows(begun, new.astype(old.dtype), old), fresh, (states, observations)
            )

        # Most steps reset nothing: on a CPU they are not even computed.
        states, observations = jax.lax.cond(begun.any(), with_resets, lambda: (states, observations))
        seen = self._seen(observations)
        masks = self._masks(states, observations, terminated, truncated)
        after = Copies(states, seen, masks, lengths, terminated | truncated, key)
        rewards = jnp.where(begun, 0.0, rewards.astype(jnp.float32))
        return after, Step(seen, rewards, terminated, truncated, valid=~begun, action_masks=masks)

    def _env_actions(self, actions: Array) -> Array:
        """A policy's actions as the environment takes them: within bounds, in its own numbers."""
        space = self.env.action_space
        actions = actions.reshape(self.num_envs, *(space.shape or ()))
        if isinstance(space, spaces.Box):
            return jnp.clip(actions, space.low, space.high)
        return actions + space.start if isinstance(space, spaces.Discrete | spaces.MultiDiscrete) else actions

    def _seen(self, observations: PyTree) -> PyTree:
        """Observations as networks see them: flat, in the layout's types."""
        parts = {
            name: at_path(observations, path).astype(jax.dtypes.canonicalize_dtype(self.layout.leaves[name].dtype))
            for name, path in self.layout.paths.items()
        }
        tree = self.layout.tree(parts)
        return tree if self.kept is None else tree[:, list(self.kept)]

    def _masks(self, states: PyTree, observations: PyTree, terminated: Array, truncated: Array) -> Array | None:
        """[B, A] which actions are allowed; where there is no next action, all are."""
        if self._has_mask_method:
            masks = jax.vmap(self.env.action_mask)(states)  # type: ignore[attr-defined]
        elif self.layout.mask_path is not None:
            masks = at_path(observations, self.layout.mask_path)
        else:
            return None
        masks = masks.reshape(self.num_envs, -1).astype(bool)
        free = terminated | (truncated & ~masks.any(axis=1))
        return masks | free[:, None]


def copies_of(config: EnvConfig) -> CompiledCopies:
    """The copies that these settings ask for; ConfigError if the environment cannot be compiled."""
    env = make_compiled(config)
    wrong = f"action space {shown(env.action_space)} of the compiled environment {config.id!r} has several parts"
    require(not is_composite(env.action_space), f"{wrong}; use a Box, Discrete, MultiDiscrete or MultiBinary")
    learnable_actions(env.action_space)
    require_compiles(env, config.id)
    layout = layout_of(env.observation_space, env.action_space, config.ignore_observations)
    kept = tuple(positions(config.id)) if config.hide_velocities else None
    return CompiledCopies(env, config.num_envs, limit_of(config, env), layout, kept)


def limit_of(config: EnvConfig, env: CompiledEnv) -> int | None:
    """The steps after which an episode is truncated: of the settings, or the environment's own."""
    if config.max_episode_steps is not None:
        return config.max_episode_steps
    return env.max_episode_steps if isinstance(env, HasEpisodeLimit) else None


def where_rows(rows: Array, yes: Array, no: Array) -> Any:
    """`yes` in the rows [B] that are true, `no` in the others."""
    return jnp.where(rows.reshape(-1, *[1] * (yes.ndim - 1)), yes, no)


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
