"""Any Gymnasium vector environment in Birl's one episode convention, whichever way it resets
itself.
"""

import warnings
from collections.abc import Callable
from typing import Any, Self

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode

from birl.config import ConfigError
from birl.envs import snapshot as snapshots
from birl.envs.observations import Arrays, layout_of, read_flags
from birl.envs.spaces import (
    GAME_OVER,
    HAS_LIVES,
    MASK,
    action_reader,
    derived_seeds,
    first_value,
    is_composite,
    learnable_actions,
    mask_width,
)
from birl.envs.trees import action_tree, flat_mask, mask_of
from birl.envs.wrappers import kept_space
from birl.errors import EnvError, InexactResume
from birl.types import PyTree, Snapshot, Step


class VectorAdapter:
    """B environments in NEXT_STEP order, made of a vector environment in NEXT_STEP, SAME_STEP or
    DISABLED mode.
    """

    def __init__(
        self,
        vector_env: gym.vector.VectorEnv,
        observation_space: gym.Space | None = None,  # instead of the environment's own, where that one is wrong
        keep: np.ndarray | None = None,  # only these features of a flat observation
        rebuild: Callable[[int], gym.vector.VectorEnv]
        | None = None,  # for environments that take a seed only when built
    ) -> None:
        self.vector_env = vector_env
        self.num_envs = vector_env.num_envs
        self.layout = layout_of(
            observation_space or vector_env.single_observation_space, vector_env.single_action_space
        )
        self.observation_space = self.layout.space if keep is None else kept_space(self.layout.space, keep)
        self.action_space = learnable_actions(vector_env.single_action_space)
        self.has_lives = bool(vector_env.metadata.get(HAS_LIVES))
        self.fresh = np.zeros(self.num_envs, bool)  # where the last restore had to begin a new episode
        self.restore_problem = ""  # why it had to
        self._keep = keep
        self._rebuild = rebuild
        self._mode = _autoreset_mode(vector_env)
        self._read_actions = action_reader(self.action_space, self.num_envs)
        self._has_tree_actions = is_composite(self.action_space)
        self._first_action = first_value(vector_env.single_action_space)
        self._mask_width = mask_width(self.action_space)
        self._seed = 0
        self._clock = 0
        self._ended = np.zeros(self.num_envs, bool)
        self._arrays: Arrays = {}
        self._masks: np.ndarray | None = None
        self._game_over: np.ndarray | None = None

    def reset(self, seed: int) -> tuple[PyTree, np.ndarray | None]:
        """First observations and action masks."""
        if self._rebuild is None:
            observations, infos = self._reset(seed=derived_seeds(seed, 1)[0])
        else:
            self.vector_env.close()
            self.vector_env = self._rebuild(seed)
            observations, infos = self._reset()
        self._seed, self._clock = seed, 0
        self._ended = np.zeros(self.num_envs, bool)
        self.fresh, self.restore_problem = np.zeros(self.num_envs, bool), ""
        self._arrays = self.layout.batch(observations, self.num_envs)
        masked = self._mask_width is not None and (self.layout.mask_path is not None or MASK in infos)
        self._masks = (
            self._read_masks(np.ones((self.num_envs, self._mask_width or 0), bool), observations, infos)
            if masked
            else None
        )
        return self._tree(), self._masks

    def step(self, actions: PyTree) -> Step:
        if not self._arrays:
            raise RuntimeError("the environments have not been reset; call reset(seed) before step")
        own_actions = self._own_actions(self._read_actions(actions))
        valid = ~self._ended
        own_rewards, own_terminated, own_truncated = self._advance(own_actions)
        rewards = np.array(own_rewards, np.float32)  # copies: some environments go on writing in theirs
        terminated = np.array(own_terminated, bool)
        truncated = np.greater(np.asarray(own_truncated, bool), terminated)  # where not terminated too
        if not valid.all():
            terminated &= valid
            truncated &= valid
            rewards[self._ended] = 0
        self._ended = terminated | truncated
        self._clock += 1
        if self._masks is not None:
            # After a termination nothing follows, and a finished game may allow nothing, also where
            # it was truncated.
            self._masks[terminated | (truncated & ~self._masks.any(axis=1))] = True
        return Step(self._tree(), rewards, terminated, truncated, valid, self._masks, self._game_over)

    def snapshot(self) -> Snapshot:
        """The state itself where it can be read; else only what the environments showed last, and
        not exact.
        """
        if not self._arrays:
            return Snapshot(exact=False, reason="the environments have not been reset yet")
        arrays = {f"observations/{name}": array.copy() for name, array in self._arrays.items()} | {
            "ended": self._ended.copy()
        }
        if self._masks is not None:
            arrays["masks"] = self._masks.copy()
        values = {"seed": self._seed, "clock": self._clock}
        if snapshots.is_native(self.vector_env):
            native = snapshots.save_native(self.vector_env)
            return Snapshot(arrays | native.arrays, values | native.values)
        reason = f"{type(self.vector_env.unwrapped).__name__} cannot save its state"
        return Snapshot(arrays, values | {"tier": "fresh"}, exact=False, reason=reason)

    def restore(self, snapshot: Snapshot) -> tuple[PyTree, np.ndarray | None]:
        """Observations and masks as at the snapshot; or, where that cannot be, of new episodes,
        marked in `fresh`.
        """
        if "ended" in snapshot.arrays and len(snapshot.arrays["ended"]) != self.num_envs:
            raise ValueError(
                f"the snapshot has {len(snapshot.arrays['ended'])} environments, not {self.num_envs}; use its num_envs"
            )
        if snapshot.values.get("tier") != "native" or not snapshots.is_native(self.vector_env):
            return self._start_anew(snapshot)
        snapshots.load_native(self.vector_env, snapshot)
        self._seed, self._clock = snapshot.values["seed"], snapshot.values["clock"]
        self._ended = snapshot.array_like("ended", self._ended)
        self._arrays = {name: snapshot.arrays[f"observations/{name}"].copy() for name in self.layout.paths}
        self._masks = snapshot.arrays["masks"].copy() if "masks" in snapshot.arrays else None
        self.fresh, self.restore_problem = np.zeros(self.num_envs, bool), ""
        return self._tree(), self._masks

    def close(self) -> None:
        self.vector_env.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _tree(self) -> PyTree:
        tree = self.layout.tree(self._arrays)
        return tree if self._keep is None else tree[:, self._keep]

    def _own_actions(self, actions: np.ndarray) -> PyTree:
        """The actions as the vector environment has them: of a Dict or Tuple, a tree of arrays."""
        if self._has_tree_actions:
            return action_tree(self.action_space, actions)
        return actions if self._first_action is None else actions + self._first_action

    def _advance(self, actions: PyTree) -> tuple[Any, Any, Any]:
        """Rewards and flags of one step of the vector environment; its observations and masks are
        ours then.
        """
        match self._mode:
            case AutoresetMode.NEXT_STEP:
                return self._next_step(actions)
            case AutoresetMode.SAME_STEP:
                return self._same_step(actions)
            case AutoresetMode.DISABLED:
                return self._disabled(actions)

    def _step(self, actions: PyTree) -> tuple[Any, Any, np.ndarray, np.ndarray, dict[str, Any]]:
        """What the vector environment answers, its flags looked at."""
        try:
            observations, rewards, terminated, truncated, infos = self.vector_env.step(actions)
        except SystemExit as error:
            raise RuntimeError(f"{self.vector_env} raised in step: SystemExit: {error}") from error
        if np.shape(rewards) != (self.num_envs,):
            raise EnvError(
                f"the vector environment returned rewards of shape {np.shape(rewards)}; return ({self.num_envs},)"
            )
        flags = read_flags(terminated, "terminated", self.num_envs), read_flags(truncated, "truncated", self.num_envs)
        return observations, rewards, *flags, infos

    def _reset(self, **arguments: Any) -> tuple[Any, dict[str, Any]]:
        try:
            return self.vector_env.reset(**arguments)
        except SystemExit as error:
            raise RuntimeError(f"{self.vector_env} raised in reset: SystemExit: {error}") from error

    def _next_step(self, actions: PyTree) -> tuple[Any, Any, Any]:
        observations, rewards, terminated, truncated, infos = self._step(actions)
        self._take(observations, infos)
        self._game_over = infos[GAME_OVER] if self.has_lives else None
        return rewards, terminated, truncated

    def _same_step(self, actions: PyTree) -> tuple[Any, Any, Any]:
        """The environment has reset itself at the end and steps on: show the end first, then reset
        it again for the next row.
        """
        observations, rewards, terminated, truncated, infos = self._step(actions)
        self._take(observations, infos)
        if self._ended.any():
            self._reset_ended()
        ending = np.flatnonzero((np.asarray(terminated) | np.asarray(truncated)) & ~self._ended)
        if ending.size:
            self._show_final(ending, infos)
        return rewards, terminated, truncated

    def _disabled(self, actions: PyTree) -> tuple[Any, Any, Any]:
        """All environments step together, so one that must be reset steps too: before, to be able
        to; after, to undo it.
        """
        if self._ended.any():
            self._reset_ended()
        observations, rewards, terminated, truncated, infos = self._step(actions)
        self._take(observations, infos)
        if self._ended.any():
            self._reset_ended()
        return rewards, terminated, truncated

    def _take(self, observations: Any, infos: dict[str, Any]) -> None:
        self._arrays = self.layout.batch(observations, self.num_envs)
        masks = None if self._masks is None else np.ones_like(self._masks)
        self._masks = self._read_masks(masks, observations, infos)

    def _reset_ended(self) -> None:
        observations, infos = self._reset(options={"reset_mask": self._ended.copy()})
        arrays = self.layout.batch(observations, self.num_envs)
        if not snapshots.same_bits(arrays, self._arrays, ~self._ended):
            raise RuntimeError(
                f"{self.vector_env} was asked to reset some environments and changed others: it ignores options['reset_mask']; "
                "build it with autoreset_mode=AutoresetMode.NEXT_STEP"
            )
        self._arrays = arrays
        self._masks = self._read_masks(None if self._masks is None else self._masks.copy(), observations, infos)

    def _show_final(self, ending: np.ndarray, infos: dict[str, Any]) -> None:
        """Replace the first observation of the next episode by the last of this one, the true
        successor.
        """
        final = infos.get("final_obs")
        if final is None:
            raise RuntimeError(
                f"{self.vector_env} resets in the same step without infos['final_obs']; use AutoresetMode.NEXT_STEP"
            )
        final_infos = infos.get("final_info", {})
        for index in ending.tolist():
            self.layout.write(self._arrays, index, final[index], index)
            if self._masks is not None:
                self._masks[index] = self._final_mask(index, final[index], final_infos)

    def _final_mask(self, index: int, observation: Any, infos: dict[str, Any]) -> np.ndarray | bool:
        """What is allowed after an episode's last observation; everything if nothing is said of
        it.
        """
        if self.layout.mask_path is not None:
            return flat_mask(observation[MASK], self.action_space)
        if MASK not in infos or not infos.get(f"_{MASK}", np.ones(self.num_envs, bool))[index]:
            return True
        return flat_mask(mask_of(infos[MASK], index), self.action_space)

    def _read_masks(self, masks: np.ndarray | None, observations: Any, infos: dict[str, Any]) -> np.ndarray | None:
        """The masks with the rows that were given now."""
        if self._mask_width is None:
            return None
        if self.layout.mask_path is not None:
            given = observations[MASK]
            return np.array([flat_mask(mask_of(given, index), self.action_space) for index in range(self.num_envs)])
        if MASK not in infos:
            return masks
        if masks is None:
            raise RuntimeError(f"{self.vector_env} gave an action_mask in step but none in reset; give it in both")
        for index in np.flatnonzero(infos.get(f"_{MASK}", np.ones(self.num_envs, bool))):
            masks[index] = flat_mask(mask_of(infos[MASK], int(index)), self.action_space)
        return masks

    def _start_anew(self, snapshot: Snapshot) -> tuple[PyTree, np.ndarray | None]:
        seed, reason = snapshots.fresh_start(snapshot)
        start = self.reset(seed)
        self.fresh, self.restore_problem = snapshots.describe([reason] * self.num_envs)
        warnings.warn(self.restore_problem, InexactResume, stacklevel=2)
        return start


def _autoreset_mode(vector_env: gym.vector.VectorEnv) -> AutoresetMode:
    """How it resets itself at an episode's end, which only it can say: to take one mode for another
    would learn from wrong rows.
    """
    declared = vector_env.metadata.get("autoreset_mode")
    try:
        return AutoresetMode(declared)
    except ValueError:
        said = (
            "does not say how it resets itself" if declared is None else f"says that it resets itself by {declared!r}"
        )
        remedy = f"set its metadata['autoreset_mode'] to one of {', '.join(f'AutoresetMode.{mode.name}' for mode in AutoresetMode)}"
        raise ConfigError(f"the vector environment {vector_env} {said}; {remedy} (of gymnasium.vector)") from None
