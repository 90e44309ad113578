"""Any Gymnasium vector environment in Birl's episode convention, whatever its autoreset mode."""

from collections.abc import Callable, Sequence
from typing import Any, Self

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode

from birl.config import ConfigError
from birl.envs import snapshot as snapshots
from birl.envs.actions import action_tree, mask_of, read_mask
from birl.envs.attributes import Attributes, has_mask_method, method_masks, read_attribute, set_vector_attributes
from birl.envs.native import is_native, load_native, save_native
from birl.envs.outputs import Arrays, ErrorSource, ObservationLayout, layout_of, read_flag, read_flags, read_rewards
from birl.envs.spaces import (
    GAME_OVER,
    HAS_LIVES,
    MASK,
    SUCCESS,
    action_reader,
    derived_seeds,
    first_value,
    is_composite,
    learnable_actions,
    mask_width,
)
from birl.envs.wrappers import kept_space
from birl.types import NOT_SAID, PyTree, Snapshot, Step

Outcome = tuple[Any, Any, Any]  # rewards, terminated, truncated


class VectorAdapter:
    """B environments in NEXT_STEP order, from a vector environment of any autoreset mode."""

    def __init__(
        self,
        vector_env: gym.vector.VectorEnv,
        observation_space: gym.Space | None = None,  # if the environment's own is wrong
        keep: np.ndarray | None = None,  # only these features of a flat observation
        rebuild: Callable[[int], gym.vector.VectorEnv] | None = None,  # if it takes a seed only when it is built
        ignored: Sequence[str] = (),  # parts of an observation to leave out
    ) -> None:
        self.vector_env = vector_env
        self.num_envs = vector_env.num_envs
        own_space = observation_space or vector_env.single_observation_space
        self.layout = layout_of(own_space, vector_env.single_action_space, ignored)
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
        maskable = mask_width(self.action_space) is not None and self.layout.mask_path is None
        self._has_mask_method = maskable and has_mask_method(vector_env)
        self._attributes: Attributes = {}  # that were set
        self._seed = 0
        self._clock = 0  # steps since the last reset
        self._ended = np.zeros(self.num_envs, bool)
        self._source = ErrorSource("the vector environment", vector_env)
        self._latest = VectorObservations(self.layout, self.action_space, self.num_envs, self._source)
        self._game_over: np.ndarray | None = None
        self._last_infos: dict[str, Any] = {}  # of the last step of episodes

    def reset(self, seed: int) -> tuple[PyTree, np.ndarray | None]:
        """First observations and action masks."""
        if self._rebuild is None:
            observations, infos = self._reset_env(seed=derived_seeds(seed, 1)[0])
        else:
            self.vector_env.close()
            self.vector_env = self._rebuild(seed)
            observations, infos = self._reset_env()
        self._seed = seed
        self._clock = 0
        self._ended = np.zeros(self.num_envs, bool)
        snapshots.note_problems(self, [""] * self.num_envs)
        self._latest.first(observations, infos)
        return self._tree(), self._latest.masks

    def step(self, actions: PyTree) -> Step:
        """Step every environment; reset those whose episode ended in the last step."""
        if not self._latest.arrays:
            raise RuntimeError("the environments have not been reset; call reset(seed) before step")
        own_actions = self._own_actions(self._read_actions(actions))
        valid = ~self._ended
        own_rewards, own_terminated, own_truncated = self._advance(own_actions)
        rewards = np.array(own_rewards, np.float32)  # copies: some environments write into theirs again
        terminated = np.array(own_terminated, bool)
        truncated = np.greater(np.asarray(own_truncated, bool), terminated)  # if both are set, terminated wins
        if not valid.all():
            terminated &= valid
            truncated &= valid
            rewards[self._ended] = 0
        self._ended = terminated | truncated
        self._clock += 1
        self._latest.allow_all_after(terminated, truncated)
        successes = self._successes() if SUCCESS in self._last_infos else None
        return Step(self._tree(), rewards, terminated, truncated, valid, self._latest.masks, self._game_over, successes)

    def set_attribute(self, name: str, value: Any) -> None:
        """Set an attribute of every environment at once: it cannot wait for an episode's end."""
        attribute = read_attribute(name, value)
        set_vector_attributes(self.vector_env, attribute)
        self._attributes |= attribute

    def snapshot(self) -> Snapshot:
        """The state if it can be read; else only the latest observations, which is not exact."""
        if not self._latest.arrays:
            return Snapshot(exact=False, reason="the environments have not been reset yet")
        arrays = self._latest.saved() | {"ended": self._ended.copy()}
        values: dict[str, Any] = {"seed": self._seed, "clock": self._clock}
        values |= {snapshots.ATTRIBUTES: dict(self._attributes)} if self._attributes else {}
        if is_native(self.vector_env):
            native = save_native(self.vector_env)
            return Snapshot(arrays | native.arrays, values | native.values)
        reason = f"{type(self.vector_env.unwrapped).__name__} cannot save its state"
        return Snapshot(arrays, values | {"tier": "fresh"}, exact=False, reason=reason)

    def restore(self, snapshot: Snapshot) -> tuple[PyTree, np.ndarray | None]:
        """Observations and masks as in the snapshot.

        If they cannot be restored, all environments begin new episodes and are marked in `fresh`.
        """
        snapshots.require_same_number(len(snapshot.arrays.get("ended", self._ended)), self)
        self._attributes = dict(snapshot.values.get(snapshots.ATTRIBUTES, {}))
        if self._attributes:
            set_vector_attributes(self.vector_env, self._attributes)
        if snapshot.values.get("tier") != "native" or not is_native(self.vector_env):
            return snapshots.begin_new_episodes(self, snapshot)
        load_native(self.vector_env, snapshot)
        self._seed = snapshot.values["seed"]
        self._clock = snapshot.values["clock"]
        self._ended = snapshot.array_like("ended", self._ended)
        self._latest.load(snapshot.arrays)
        snapshots.note_problems(self, [""] * self.num_envs)
        return self._tree(), self._latest.masks

    def close(self) -> None:
        """Close the vector environment."""
        self.vector_env.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _tree(self) -> PyTree:
        tree = self._latest.tree()
        return tree if self._keep is None else tree[:, self._keep]

    def _own_actions(self, actions: np.ndarray) -> PyTree:
        """The actions as the vector environment takes them, for a Dict or Tuple a tree."""
        if self._has_tree_actions:
            return action_tree(self.action_space, actions)
        return actions if self._first_action is None else actions + self._first_action

    def _advance(self, actions: PyTree) -> Outcome:
        """Rewards and flags of one step, in NEXT_STEP order."""
        match self._mode:
            case AutoresetMode.NEXT_STEP:
                return self._next_step(actions)
            case AutoresetMode.SAME_STEP:
                return self._same_step(actions)
            case AutoresetMode.DISABLED:
                return self._disabled(actions)

    def _next_step(self, actions: PyTree) -> Outcome:
        rewards, terminated, truncated, infos = self._step_env(actions)
        self._game_over = infos[GAME_OVER] if self.has_lives else None
        return rewards, terminated, truncated

    def _same_step(self, actions: PyTree) -> Outcome:
        """Show the last observation of an episode first, and reset for the next row.

        The environment itself has already begun the next episode and stepped on.
        """
        rewards, terminated, truncated, infos = self._step_env(actions)
        if self._ended.any():
            self._reset_ended()
        ending = np.flatnonzero((np.asarray(terminated) | np.asarray(truncated)) & ~self._ended)
        self._last_infos = infos.get("final_info", {})
        if ending.size:
            self._show_last(ending, infos)
        return rewards, terminated, truncated

    def _disabled(self, actions: PyTree) -> Outcome:
        """Reset ended environments before the step, which they need, and again to undo the step."""
        if self._ended.any():
            self._reset_ended()
        rewards, terminated, truncated, _ = self._step_env(actions)
        if self._ended.any():
            self._reset_ended()
        return rewards, terminated, truncated

    def _step_env(self, actions: PyTree) -> tuple[Any, np.ndarray, np.ndarray, dict[str, Any]]:
        """Rewards, checked flags and infos of one step; keeps the observations and masks."""
        try:
            observations, rewards, terminated, truncated, infos = self.vector_env.step(actions)
        except SystemExit as error:
            raise RuntimeError(f"{self.vector_env} raised in step: SystemExit: {error}") from error
        rewards = read_rewards(rewards, self.num_envs, self._source)
        terminated = read_flags(terminated, "terminated", self.num_envs, self._source)
        truncated = read_flags(truncated, "truncated", self.num_envs, self._source)
        infos = self._with_masks(infos)
        self._latest.after_step(observations, infos)
        self._last_infos = infos
        return rewards, terminated, truncated, infos

    def _successes(self) -> np.ndarray | None:
        """[B] whether the episodes that end in this step succeeded; None if none of them says."""
        given = self._last_infos[SUCCESS]
        said = self._ended & np.asarray(self._last_infos.get(f"_{SUCCESS}", True), bool)
        successes = np.full(self.num_envs, NOT_SAID, np.int8)
        for index in np.flatnonzero(said).tolist():
            if given[index] is not None:
                successes[index] = read_flag(given[index], SUCCESS, self._source.single(index))
        return successes if (successes != NOT_SAID).any() else None

    def _reset_env(self, **arguments: Any) -> tuple[Any, dict[str, Any]]:
        try:
            observations, infos = self.vector_env.reset(**arguments)
        except SystemExit as error:
            raise RuntimeError(f"{self.vector_env} raised in reset: SystemExit: {error}") from error
        return observations, self._with_masks(infos)

    def _with_masks(self, infos: dict[str, Any]) -> dict[str, Any]:
        """The infos with the masks of the environments' method, where they give none themselves."""
        return {MASK: method_masks(self.vector_env)} | infos if self._has_mask_method else infos

    def _reset_ended(self) -> None:
        """Reset the environments whose episodes have ended, and no others."""
        observations, infos = self._reset_env(options={"reset_mask": self._ended.copy()})
        arrays = self.layout.batch(observations, self.num_envs, self._source)
        if not snapshots.same_bits(arrays, self._latest.arrays, ~self._ended):
            wrong = f"{self.vector_env} ignores options['reset_mask']: it reset more environments than it should"
            raise RuntimeError(f"{wrong}; build it with autoreset_mode=AutoresetMode.NEXT_STEP")
        self._latest.after_reset(arrays, observations, infos)

    def _show_last(self, ending: np.ndarray, infos: dict[str, Any]) -> None:
        """Replace the first observation of the next episode by the last one of this episode."""
        last = infos.get("final_obs")
        if last is None:
            wrong = f"{self.vector_env} resets in the same step without infos['final_obs']"
            raise RuntimeError(f"{wrong}; use AutoresetMode.NEXT_STEP")
        for index in ending.tolist():
            self._latest.show_last(index, last[index], infos.get("final_info", {}))


def _autoreset_mode(vector_env: gym.vector.VectorEnv) -> AutoresetMode:
    """The autoreset mode that the vector environment declares; raises ConfigError if there is none.

    It cannot be guessed: with the wrong mode an algorithm would learn from wrong rows.
    """
    declared = vector_env.metadata.get("autoreset_mode")
    try:
        return AutoresetMode(declared)
    except ValueError:
        modes = ", ".join(f"AutoresetMode.{mode.name}" for mode in AutoresetMode)
        wrong = "does not declare its autoreset mode" if declared is None else f"declares autoreset mode {declared!r}"
        remedy = f"set its metadata['autoreset_mode'] to one of {modes} (of gymnasium.vector)"
        raise ConfigError(f"the vector environment {vector_env} {wrong}; {remedy}") from None


class VectorObservations:
    """Observations and masks as copies, which the environment cannot write into later."""

    def __init__(self, layout: ObservationLayout, action_space: gym.Space, num_envs: int, source: ErrorSource) -> None:
        self.layout = layout
        self.source = source
        self.arrays: Arrays = {}
        self.masks: np.ndarray | None = None
        self._action_space = action_space
        self._mask_width = mask_width(action_space)
        self._num_envs = num_envs

    def first(self, observations: Any, infos: dict[str, Any]) -> None:
        """Take what a reset of all environments returned; decides whether there are masks."""
        self.arrays = self.layout.batch(observations, self._num_envs, self.source)
        self.masks = None
        if self._mask_width is not None and (self.layout.mask_path is not None or MASK in infos):
            masks = np.ones((self._num_envs, self._mask_width), bool)
            self.masks = self._read_masks(masks, observations, infos)

    def after_step(self, observations: Any, infos: dict[str, Any]) -> None:
        """Take what a step returned. An environment without a mask allows every action."""
        self.arrays = self.layout.batch(observations, self._num_envs, self.source)
        masks = None if self.masks is None else np.ones_like(self.masks)
        self.masks = self._read_masks(masks, observations, infos)

    def after_reset(self, arrays: Arrays, observations: Any, infos: dict[str, Any]) -> None:
        """Take what a reset of some environments returned; the masks of the others stay."""
        self.arrays = arrays
        self.masks = self._read_masks(None if self.masks is None else self.masks.copy(), observations, infos)

    def show_last(self, index: int, observation: Any, infos: dict[str, Any]) -> None:
        """Replace one environment's observation and mask by the last ones of its episode."""
        self.layout.write(self.arrays, index, observation, self.source.single(index))
        if self.masks is not None:
            self.masks[index] = self._last_mask(index, observation, infos)

    def allow_all_after(self, terminated: np.ndarray, truncated: np.ndarray) -> None:
        """Allow every action where an episode terminated, or was truncated and allowed nothing."""
        if self.masks is not None:
            self.masks[terminated | (truncated & ~self.masks.any(axis=1))] = True

    def saved(self) -> dict[str, np.ndarray]:
        """Copies of the observations and masks, under their names in a snapshot."""
        arrays = {f"observations/{name}": array.copy() for name, array in self.arrays.items()}
        return arrays if self.masks is None else arrays | {"masks": self.masks.copy()}

    def load(self, saved: dict[str, np.ndarray]) -> None:
        """Take the observations and masks of a snapshot."""
        self.arrays = {name: saved[f"observations/{name}"].copy() for name in self.layout.paths}
        self.masks = saved["masks"].copy() if "masks" in saved else None

    def tree(self) -> PyTree:
        """The observations as networks see them."""
        return self.layout.tree(self.arrays)

    def _last_mask(self, index: int, observation: Any, infos: dict[str, Any]) -> np.ndarray | bool:
        """The mask given with an episode's last observation; True, which allows all, if none is."""
        if self.layout.mask_path is not None:
            return self._read_mask(observation[MASK], index)
        if MASK not in infos or not infos.get(f"_{MASK}", np.ones(self._num_envs, bool))[index]:
            return True
        return self._read_mask(mask_of(infos[MASK], index), index)

    def _read_masks(self, masks: np.ndarray | None, observations: Any, infos: dict[str, Any]) -> np.ndarray | None:
        """The masks, with the rows replaced that the environments gave now."""
        if self._mask_width is None:
            return None
        if self.layout.mask_path is not None:
            given = observations[MASK]
            return np.array([self._read_mask(mask_of(given, index), index) for index in range(self._num_envs)])
        if MASK not in infos:
            return masks
        if masks is None:
            raise self.source.error("gave an action_mask in step but none in reset; give it in both")
        for index in np.flatnonzero(infos.get(f"_{MASK}", np.ones(self._num_envs, bool))).tolist():
            masks[index] = self._read_mask(mask_of(infos[MASK], index), index)
        return masks

    def _read_mask(self, mask: Any, index: int) -> np.ndarray:
        return read_mask(mask, self._action_space, self.source.single(index))
