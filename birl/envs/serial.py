"""Environments stepped one after another in this process.

Makes fewer calls than Gymnasium's SyncVectorEnv, and can be resumed exactly.
"""

from collections.abc import Callable, Sequence
from typing import Any, Self

import gymnasium as gym
import numpy as np

from birl.envs import snapshot as snapshots
from birl.envs.actions import own_actions, read_mask
from birl.envs.attributes import Attributes, apply_attributes, read_attribute, require_attributes
from birl.envs.native import generator_of, generator_state, plain
from birl.envs.outputs import NUMBERS, Arrays, ErrorSource, layout_of, read_flag, read_reset, read_reward
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
from birl.errors import cut, require
from birl.types import NOT_SAID, PyTree, Snapshot, Step


class SerialEnvs:
    """B environments in Gymnasium's NEXT_STEP order.

    The step after an episode's end resets the environment, and its action is ignored.
    """

    def __init__(
        self,
        env_functions: Sequence[Callable[[], gym.Env]],
        action_limit: int = snapshots.ACTION_LIMIT,
        first: int = 0,  # index of the first of these environments, if a worker has only some of them
        ignored: Sequence[str] = (),  # parts of an observation to leave out
    ) -> None:
        self.envs = [make() for make in env_functions]
        self.num_envs = len(self.envs)
        self.first = first
        self._sources = [ErrorSource(f"environment {first + index}", env) for index, env in enumerate(self.envs)]
        self.layout = layout_of(self.envs[0].observation_space, self.envs[0].action_space, ignored)
        self.observation_space = self.layout.space
        self.action_space = learnable_actions(self.envs[0].action_space)
        self.has_lives = bool(self.envs[0].metadata.get(HAS_LIVES))
        self.fresh = np.zeros(self.num_envs, bool)  # where the last restore had to begin a new episode
        self.restore_problem = ""  # why it had to
        self.problems = [""] * self.num_envs  # why, for each environment
        self._read_actions = action_reader(self.action_space, self.num_envs)
        self._has_tree_actions = is_composite(self.action_space)
        self._has_plain_actions = isinstance(self.action_space, gym.spaces.Discrete)
        self._first_action = first_value(self.envs[0].action_space)
        self._mask_width = mask_width(self.action_space)
        self._log = snapshots.ActionLog(self.num_envs, action_limit)
        self._attributes: Attributes = {}  # set when an episode begins
        self._seed = 0
        self._ended = [False] * self.num_envs
        self._arrays: Arrays = {}
        self._masks: np.ndarray | None = None

    def reset(self, seed: int) -> tuple[PyTree, np.ndarray | None]:
        """First observations and action masks. Each environment gets a seed of its own."""
        self._seed = seed
        return self.begin(derived_seeds(seed, self.first + self.num_envs)[self.first :])

    def begin(self, seeds: list[int]) -> tuple[PyTree, np.ndarray | None]:
        """First observations and action masks of new episodes, one seed per environment."""
        self._ended = [False] * self.num_envs
        self._log = snapshots.ActionLog(self.num_envs, self._log.limit)
        snapshots.note_problems(self, [""] * self.num_envs)
        arrays = self.layout.empty(self.num_envs)
        starts = [self._begin(index, arrays, seed) for index, seed in enumerate(seeds)]
        self._arrays = arrays
        self._masks = self._first_masks(starts)
        return self.layout.tree(arrays), self._masks

    def step(self, actions: PyTree) -> Step:
        """Step every environment; reset those whose episode ended in the last step."""
        if not self._arrays:
            raise RuntimeError("the environments have not been reset; call reset(seed) before step")
        batch = self._read_actions(actions)
        self._log.append(batch)
        arrays = self.layout.empty(self.num_envs)
        plain_array = arrays.get("")  # None for a Dict
        shape = self.observation_space.shape
        rewards = np.zeros(self.num_envs, np.float32)
        terminated, truncated = np.zeros(self.num_envs, bool), np.zeros(self.num_envs, bool)
        ended = self._ended
        valid = ~np.array(ended)
        masks = None if self._masks is None else np.ones_like(self._masks)
        game_over = np.zeros(self.num_envs, bool) if self.has_lives else None
        successes: np.ndarray | None = None
        for index, (env, action) in enumerate(zip(self.envs, self._own_actions(batch), strict=True)):
            if ended[index]:
                ended[index] = False
                start = self._begin(index, arrays)
                self._write_mask(masks, index, *start)
                if game_over is not None:
                    game_over[index] = start[1][GAME_OVER]
                continue
            try:
                observation, reward, is_terminated, is_truncated, info = env.step(action)
            except (Exception, SystemExit) as error:
                raise self._sources[index].raised("step", error) from error
            # Fast paths for what most environments return; the functions check it.
            is_array = plain_array is not None and type(observation) is np.ndarray and observation.shape == shape
            if is_array and observation.dtype.kind in NUMBERS:
                plain_array[index] = observation  # type: ignore[index]
            else:
                self.layout.write(arrays, index, observation, self._sources[index])
            rewards[index] = reward if isinstance(reward, float) else read_reward(reward, self._sources[index])
            if is_terminated is not False:
                is_terminated = read_flag(is_terminated, "terminated", self._sources[index])
            if is_truncated is not False:
                is_truncated = read_flag(is_truncated, "truncated", self._sources[index])
            if not isinstance(info, dict):
                raise self._sources[index].breaks_rules("step", f"info is {cut(info)}, not a dict")
            # After a termination every action is allowed: a finished game's mask may allow none.
            if not is_terminated and (masks is not None or MASK in info):
                self._write_mask(masks, index, observation, info)
            if is_terminated or is_truncated:
                ended[index] = True
                terminated[index] = is_terminated
                truncated[index] = not is_terminated
                if game_over is not None:
                    game_over[index] = info[GAME_OVER]
                if info.get(SUCCESS) is not None:
                    successes = np.full(self.num_envs, NOT_SAID, np.int8) if successes is None else successes
                    successes[index] = read_flag(info[SUCCESS], SUCCESS, self._sources[index])
                if masks is not None and not masks[index].any():
                    masks[index] = True  # truncated and over: the mask allowed nothing
        self._arrays, self._masks = arrays, masks
        return Step(self.layout.tree(arrays), rewards, terminated, truncated, valid, masks, game_over, successes)

    def set_attribute(self, name: str, value: Any) -> None:
        """Set an attribute of every environment when its next episode begins."""
        self.use_attributes(self._attributes | read_attribute(name, value))

    def use_attributes(self, attributes: Attributes) -> None:
        """Use these attributes in all episodes from the next on; ConfigError if there are none."""
        for env in self.envs:
            require_attributes(env, attributes)
        self._attributes = attributes

    def snapshot(self) -> Snapshot:
        """The environments' states if they can be read, else the log to replay their episodes."""
        if not self._arrays:
            return Snapshot(exact=False, reason="the environments have not been reset yet")
        now = self._arrays, np.array(self._ended), self._masks, self._attributes
        return snapshots.save_single(self._log, self.action_space, self._seed, self.saved_envs(), *now)

    def saved_envs(self) -> list[snapshots.SavedEnv]:
        """For each environment, what is needed to put it back where it is."""
        return [snapshots.save_env(env, origin) for env, origin in zip(self.envs, self._log.origins, strict=True)]

    def restore(self, snapshot: Snapshot) -> tuple[PyTree, np.ndarray | None]:
        """Observations and masks as in the snapshot.

        Environments that could not be restored begin new episodes and are marked in `fresh`.
        """
        if snapshot.values.get("tier") not in (snapshots.REPLAY, snapshots.EACH):
            return snapshots.begin_new_episodes(self, snapshot)
        snapshots.require_same_number(len(snapshot.arrays["ended"]), self)
        self._seed = snapshot.values["seed"]
        self._attributes = snapshot.values.get(snapshots.ATTRIBUTES, {})
        self._log = snapshots.ActionLog.load(snapshot, self._log.limit)
        self._ended = snapshot.array_like("ended", np.array(self._ended)).tolist()
        self._arrays = self.layout.empty(self.num_envs)
        self._masks = snapshot.arrays["masks"].copy() if "masks" in snapshot.arrays else None
        problems = [self._restore_env(index, snapshot) for index in range(self.num_envs)]
        for index in [index for index, problem in enumerate(problems) if problem]:
            number = self.first + index
            start = self._begin(index, self._arrays, derived_seeds([self._seed, self._log.clock], number + 1)[number])
            self._write_mask(self._masks, index, *start)
            self._ended[index] = False
        self.problems = problems
        snapshots.note_problems(self, problems)
        return self.layout.tree(self._arrays), self._masks

    def allow_all(self) -> None:
        """Add masks that allow everything, because environments of other workers give masks."""
        if self._masks is None:
            self._masks = np.ones((self.num_envs, self._mask_width or 0), bool)

    def close(self) -> None:
        """Close every environment."""
        for env in self.envs:
            env.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def require_goals(self) -> None:
        """Raise ConfigError if the environments have no `compute_reward`."""
        wrong = f"hindsight needs compute_reward(achieved_goal, desired_goal, info), and {self.envs[0]} has none"
        require(self.envs[0].has_wrapper_attr("compute_reward"), f"{wrong}; use hindsight 0")

    def goal_outcomes(self, achieved: np.ndarray, desired: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """[N] rewards and terminations for reaching goals [N, ...] while others were desired."""
        env = self.envs[0]
        infos: list[dict[str, Any]] = [{} for _ in achieved]
        rewards = np.asarray(env.get_wrapper_attr("compute_reward")(achieved, desired, infos), np.float32)
        wrong = f"compute_reward of {env} gave an array of shape {rewards.shape} for {len(achieved)} goals"
        remedy = "let it take arrays of goals [N, ...] and return N rewards"
        require(rewards.shape == (len(achieved),), f"{wrong}; {remedy}")
        if not env.has_wrapper_attr("compute_terminated"):
            return rewards, None
        ends = env.get_wrapper_attr("compute_terminated")
        pairs = zip(achieved, desired, strict=True)
        return rewards, np.array([bool(ends(goal, wanted, {})) for goal, wanted in pairs])

    def _begin(self, index: int, arrays: Arrays, seed: int | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset one environment, and log what it begins from."""
        env = self.envs[index]
        apply_attributes(env, self._attributes)
        self._log.begin(index, snapshots.origin_of(env, seed, self._attributes))
        try:
            answer = env.reset(seed=seed)
        except (Exception, SystemExit) as error:
            raise self._sources[index].raised("reset", error) from error
        observation, info = read_reset(answer, self._sources[index])
        self.layout.write(arrays, index, observation, self._sources[index])
        return observation, info

    def _own_actions(self, actions: np.ndarray) -> list[Any]:
        """One action per environment, in its own space. Copies, because some clip in place."""
        if self._has_tree_actions:
            return own_actions(self.action_space, actions)
        shifted = actions if self._first_action is None else actions + self._first_action
        return shifted.tolist() if self._has_plain_actions else list(shifted.copy())

    def _first_masks(self, starts: list[tuple[Any, dict[str, Any]]]) -> np.ndarray | None:
        if self._mask_width is None or (self.layout.mask_path is None and not any(MASK in info for _, info in starts)):
            return None
        masks = np.ones((self.num_envs, self._mask_width), bool)
        for index, (observation, info) in enumerate(starts):
            self._write_mask(masks, index, observation, info)
        return masks

    def _write_mask(self, masks: np.ndarray | None, index: int, observation: Any, info: dict[str, Any]) -> None:
        mask = info.get(MASK) if self.layout.mask_path is None else observation[MASK]
        if mask is None or self._mask_width is None:
            return
        if masks is None:
            raise self._sources[index].error("gave an action_mask in step but none did in reset; give it in both")
        masks[index] = read_mask(mask, self.action_space, self._sources[index])

    def _restore_env(self, index: int, snapshot: Snapshot) -> str:
        """Put one environment back where it was; returns what went wrong, or ""."""
        try:
            if snapshot.values["tier"] == snapshots.EACH:
                return self._load_state(index, snapshot)
            return self._replay_episode(index, snapshot)
        except Exception as error:
            return f"it raised {type(error).__name__}: {error}"

    def _load_state(self, index: int, snapshot: Snapshot) -> str:
        problem = snapshots.load_single(self.envs[index], snapshot, index)
        for name, array in self._arrays.items():
            array[index] = snapshot.arrays[f"observations/{name}"][index]
        return problem

    def _replay_episode(self, index: int, snapshot: Snapshot) -> str:
        if index in self._log.too_long():
            return f"its episode is longer than {self._log.limit} steps"
        if "lost" in self._log.origins[index]:
            return str(self._log.origins[index]["lost"])
        env = self.envs[index]
        actions = self._own_actions(self._log.episode(index))
        observation, ended = snapshots.replay(env, self._log.origins[index], actions)
        self.layout.write(self._arrays, index, observation, self._sources[index])
        saved = {name: snapshot.arrays[f"observations/{name}"] for name in self._arrays}
        generator = plain(generator_state(generator_of(env)))
        same = snapshots.same_bits(self._arrays, saved, index) and ended == self._ended[index]
        if not same or generator != snapshot.values["generators"][index]:
            return "replaying its actions gave a different result: it keeps randomness or state outside np_random"
        return ""
