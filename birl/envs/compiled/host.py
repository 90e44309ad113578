"""Compiled environments stepped from Python: to evaluate, play and record, and for checks.

Training does not use these: there acting, stepping and learning are one program.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple, Self

import gymnasium as gym
import jax
import numpy as np
from gymnasium import spaces

from birl.config import EnvConfig, require
from birl.envs import snapshot as snapshots
from birl.envs.compiled.copies import CompiledCopies, Copies, copies_of
from birl.envs.compiled.interface import CompiledEnv, HasActionMask, HasFrameRate, HasRender
from birl.envs.registration import errors_explained, maker_of
from birl.envs.spaces import MASK, action_reader, mask_width
from birl.types import Array, PyTree, Snapshot, Step

TIER = "compiled"  # of a snapshot: the arrays of all copies
FRAMES_PER_SECOND = 30.0  # of a video, where the environment does not say
KEPT = 16  # programs that are kept in memory, so that each evaluation of a run uses the same one


class Programs(NamedTuple):
    """How copies, or one environment alone, are reset and stepped, each by a compiled call."""

    copies: CompiledCopies
    reset: Callable[[Array], Copies]
    step: Callable[[Copies, Array], tuple[Copies, Step]]
    reset_one: Callable[[Array], "One"]
    step_one: Callable[["One", Array], tuple["One", Array, Array, Array]]


class One(NamedTuple):
    """One environment between two steps."""

    state: PyTree
    observation: PyTree
    mask: Array | None  # [A]; None: all actions are allowed, or the observation holds the mask
    key: Array


def new_programs(config: EnvConfig) -> Programs:
    """Programs that are compiled when they are first called."""
    copies = copies_of(config)
    env = copies.env

    def reset_one(key: Array) -> One:
        key, reset_key = jax.random.split(key)
        state, observation = env.reset(reset_key)
        return One(state, observation, _mask(env, state), key)

    def step_one(one: One, action: Array) -> tuple[One, Array, Array, Array]:
        key, step_key = jax.random.split(one.key)
        state, observation, *outcome = env.step(one.state, action, step_key)
        return One(state, observation, _mask(env, state), key), *outcome

    return Programs(copies, jax.jit(copies.reset), jax.jit(copies.step), jax.jit(reset_one), jax.jit(step_one))


def programs_of(config: EnvConfig) -> Programs:
    """The programs of these settings, compiled once in a process."""
    # 1 equals True, and a module may be loaded again: neither may give another environment.
    with errors_explained(config):
        make, _ = maker_of(config.id)
    return _kept_programs(config, repr(config.kwargs), make)


@lru_cache(maxsize=KEPT)
def _kept_programs(config: EnvConfig, kwargs: str, make: Callable[..., Any]) -> Programs:
    return new_programs(config)


class CompiledEnvs:
    """B copies of a compiled environment, stepped by one compiled call. They are types.Envs.

    They can always be restored exactly: their state is a tree of arrays.
    """

    def __init__(self, programs: Programs) -> None:
        self.programs = programs
        self.num_envs = programs.copies.num_envs
        self.observation_space, self.action_space = programs.copies.spaces
        self.has_lives = False
        self.fresh = np.zeros(self.num_envs, bool)  # where the last restore had to begin a new episode
        self.restore_problem = ""  # why it had to
        self._read_actions = action_reader(self.action_space, self.num_envs)
        self._seed = 0
        self._now: Copies | None = None

    def reset(self, seed: int) -> tuple[PyTree, np.ndarray | None]:
        """First observations and action masks."""
        self._seed = seed
        snapshots.note_problems(self, [""] * self.num_envs)
        self._now = self.programs.reset(_key(seed))
        return self._on_host(self._now)

    def step(self, actions: PyTree) -> Step:
        """Step every copy; those whose episode ended in the last step begin a new one."""
        if self._now is None:
            raise RuntimeError("the environments have not been reset; call reset(seed) before step")
        self._now, step = self.programs.step(self._now, self._read_actions(actions))
        return jax.device_get(step)._replace(observations=_own(self.observation_space, step.observations))

    def snapshot(self) -> Snapshot:
        """The state of every copy."""
        if self._now is None:
            return Snapshot(exact=False, reason="the environments have not been reset yet")
        arrays = {name: np.array(array) for name, array in _named(self._now).items()}
        return Snapshot(arrays, {"tier": TIER, "seed": self._seed})

    def restore(self, snapshot: Snapshot) -> tuple[PyTree, np.ndarray | None]:
        """Observations and masks as in the snapshot; of other environments, those of a reset."""
        if snapshot.values.get("tier") != TIER:
            return snapshots.begin_new_episodes(self, snapshot)
        template = jax.eval_shape(self.programs.reset, _key(0))
        wanted = _named(template)
        snapshots.require_same_number(len(snapshot.arrays["copies.ended"]), self)
        if missing := wanted.keys() - snapshot.arrays.keys():
            raise ValueError(f"the snapshot has no {min(missing)}: it is of another environment")
        self._seed = snapshot.values["seed"]
        snapshots.note_problems(self, [""] * self.num_envs)
        leaves = [jax.numpy.asarray(snapshot.array_like(name, like)) for name, like in wanted.items()]
        self._now = now = jax.tree.unflatten(jax.tree.structure(template), leaves)
        return self._on_host(now)

    def close(self) -> None:
        """Nothing is open."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _on_host(self, copies: Copies) -> tuple[PyTree, np.ndarray | None]:
        return _own(self.observation_space, copies.observations), jax.device_get(copies.masks)


class CompiledGymEnv(gym.Env):
    """One compiled environment as an ordinary Gymnasium environment, in its own spaces."""

    def __init__(self, config: EnvConfig, render_mode: str | None = None) -> None:
        self.programs = programs_of(config)
        env = self.programs.copies.env
        can_draw = isinstance(env, HasRender)
        wrong = f"env.id {config.id!r} cannot be drawn: it has no render(state)"
        remedy = "let it return an image, an array [height, width, 3] of uint8"
        require(can_draw or render_mode is None, f"{wrong}; {remedy}")
        fps = env.render_fps if isinstance(env, HasFrameRate) else FRAMES_PER_SECOND
        self.metadata = {"render_modes": ["rgb_array"] if can_draw else [], "render_fps": fps}
        self.render_mode = render_mode
        self.observation_space = env.observation_space
        self.action_space = env.action_space
        self.steps = 0  # in this episode
        self._now: One | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """The first observation, and the action mask if there is one."""
        super().reset(seed=seed)
        goes_on = seed is None and self._now is not None
        key = self._now.key if goes_on else self.np_random.integers(2**32, size=2, dtype=np.uint32)  # type: ignore[union-attr]
        self._now = now = self.programs.reset_one(key)
        self.steps = 0
        return _own(self.observation_space, now.observation), self._info(now)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """One step; the limit of the settings, or else the environment's own, truncates it."""
        if self._now is None:
            raise RuntimeError("the environment has not been reset; call reset() before step")
        self._now, reward, terminated, truncated = self.programs.step_one(self._now, _narrow(action))
        self.steps += 1
        limit = self.programs.copies.limit
        is_cut = limit is not None and self.steps >= limit
        observation = _own(self.observation_space, self._now.observation)
        return observation, float(reward), bool(terminated), bool(truncated) or is_cut, self._info(self._now)

    def render(self) -> Any:
        """A picture of the state, [height, width, 3] uint8."""
        env = self.programs.copies.env
        can_draw = isinstance(env, HasRender) and self._now is not None
        return np.asarray(env.render(self._now.state)) if can_draw else None  # type: ignore[attr-defined, union-attr]

    def _info(self, now: One) -> dict[str, Any]:
        return {} if now.mask is None else {MASK: np.asarray(now.mask).astype(np.int8)}


def _key(seed: int) -> np.ndarray:
    return np.random.SeedSequence(seed).generate_state(2)


def _mask(env: CompiledEnv, state: PyTree) -> Array | None:
    """[A] the choices that are allowed; None: all are, or the observation says which."""
    maskable = isinstance(env, HasActionMask) and mask_width(env.action_space) is not None
    return env.action_mask(state) if maskable else None  # type: ignore[attr-defined]


def _narrow(action: Any) -> np.ndarray:
    """An action in the precision of JAX, so that each environment is compiled once."""
    array = np.asarray(action)
    return array.astype(np.float32 if array.dtype.kind == "f" else np.int32)


def _own(space: gym.Space, observation: PyTree) -> PyTree:
    """Observations as NumPy arrays, in the types of their space: JAX has no 64 bits."""
    if isinstance(space, spaces.Dict):
        return {key: _own(part, observation[key]) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_own(part, observation[index]) for index, part in enumerate(space.spaces))
    return np.asarray(observation, space.dtype)


def _named(copies: Copies) -> dict[str, Any]:
    """The arrays of the copies by name, in the order of the tree."""
    leaves = jax.tree_util.tree_leaves_with_path(copies)
    return {f"copies{jax.tree_util.keystr(path)}": leaf for path, leaf in leaves}
