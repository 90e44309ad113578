"""Environments stepped by several worker processes, several in each, through shared memory.

The same seed gives the same run, bit for bit, with any number of workers and without workers.

A worker that raises, dies or takes too long is replaced, and its environments begin new episodes.
In that step they count as reset: `valid` is false, the reward is 0, and the observation is the
first of the new episode. The failed action has no outcome, so it is no transition. The row before
it has a successor observation, so returns bootstrap there, as from any truncated episode.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count, pairwise
from typing import Any, NamedTuple, Self

import gymnasium as gym
import numpy as np

from birl.config import ConfigError, EnvConfig
from birl.envs import snapshot as snapshots
from birl.envs.atari import has_lives
from birl.envs.attributes import Attributes, read_attribute
from birl.envs.outputs import Arrays, ObservationLayout, layout_of
from birl.envs.spaces import action_dtype, action_reader, action_shape, derived_seeds, learnable_actions, mask_width
from birl.types import NOT_SAID, PyTree, Snapshot, Step
from birl.workers.faults import Failure, Fault, name_environments
from birl.workers.supervisor import START_TIMEOUT, Shapes, Supervisor, map_arrays


class EnvTask(NamedTuple):
    """The first message to an environment worker."""

    config: EnvConfig
    share: slice  # its environments among those of the config


@dataclass(frozen=True)
class EnvArrays:
    """The arrays through which environments and their workers exchange steps."""

    actions: np.ndarray  # [B, ...]
    rewards: np.ndarray  # [B]
    # [6, B] terminated, truncated, valid, game over, success said, success. One array is copied
    # faster than six.
    flags: np.ndarray
    masks: np.ndarray  # [B, A]; [B, 0] if actions cannot be masked
    observations: Arrays  # [B, ...]

    def part(self, share: slice) -> "EnvArrays":
        """Views of the arrays, for some of the environments."""
        observations = {name: array[share] for name, array in self.observations.items()}
        return EnvArrays(
            self.actions[share], self.rewards[share], self.flags[:, share], self.masks[share], observations
        )


def map_env_arrays(memory: int, layout: ObservationLayout, action_space: gym.Space, num_envs: int) -> EnvArrays:
    """The arrays of B environments in this memory."""
    B = num_envs
    shapes: Shapes = [((B, *action_shape(action_space)), action_dtype(action_space))]
    shapes += [((B,), np.float32), ((6, B), bool), ((B, mask_width(action_space) or 0), bool)]
    shapes += [((B, *(leaf.shape or ())), leaf.dtype) for leaf in layout.leaves.values()]
    actions, rewards, flags, masks, *observations = map_arrays(memory, shapes)
    return EnvArrays(actions, rewards, flags, masks, dict(zip(layout.leaves, observations, strict=True)))


class WorkerEnvs:
    """B environments in worker processes, with the episode convention of SerialEnvs."""

    def __init__(self, config: EnvConfig, action_limit: int = snapshots.ACTION_LIMIT) -> None:
        self.num_envs = config.num_envs
        self._config = config
        bounds = [config.num_envs * number // config.workers for number in range(config.workers + 1)]
        self._shares = [slice(first, end) for first, end in pairwise(bounds)]  # the environments of each worker
        self._supervisor = Supervisor(config.workers, "birl.workers.main", {})
        observation_space, action_space = self._start()
        self.layout = layout_of(observation_space, action_space, config.ignore_observations)
        self.observation_space = self.layout.space
        self.action_space = learnable_actions(action_space)
        self.has_lives = has_lives(config)
        self.fresh = np.zeros(self.num_envs, bool)  # where the last restore had to begin a new episode
        self.restore_problem = ""  # why it had to
        self._read_actions = action_reader(self.action_space, self.num_envs)
        self._shared = map_env_arrays(self._supervisor.memory, self.layout, self.action_space, self.num_envs)
        self._parts = [self._shared.part(share) for share in self._shares]
        self._log = snapshots.ActionLog(self.num_envs, action_limit)
        self._attributes: Attributes = {}  # set when an episode begins
        self._seed = 0
        self._ended = np.zeros(self.num_envs, bool)
        self._arrays: Arrays = {}
        self._masks: np.ndarray | None = None
        self._masked = False  # whether some environment gives action masks; others may not
        self._gave_masks = [False] * config.workers
        self._replaced_at = [0] * config.workers  # the clock when each worker was last replaced

    @property
    def faults(self) -> list[Fault]:
        """Every replacement of a worker so far."""
        return self._supervisor.log.faults

    @property
    def pids(self) -> list[int]:
        """The id of each worker's process."""
        return self._supervisor.pids

    def reset(self, seed: int) -> tuple[PyTree, np.ndarray | None]:
        """First observations and action masks. Seeds do not depend on the number of workers."""
        self._make_ready()
        self._seed = seed
        self._masked = False
        self._log = snapshots.ActionLog(self.num_envs, self._log.limit)
        self._replaced_at = [0] * len(self._shares)
        snapshots.note_problems(self, [""] * self.num_envs)
        self._ended = np.zeros(self.num_envs, bool)
        self._replace(self._begin(self._supervisor.numbers, derived_seeds(seed, self.num_envs)))
        self._masked = any(self._gave_masks)
        self._allow_all(self._supervisor.numbers)
        return self._read_all()

    def step(self, actions: PyTree) -> Step:
        """Step all environments. Workers that fail are replaced."""
        if problem := self._problem():
            raise RuntimeError(f"{problem}; call reset(seed) before step")
        batch = self._read_actions(actions)
        self._shared.actions[...] = batch
        arriving = self._supervisor.step(self._config.step_timeout)
        self._log.append(batch)
        rewards = np.zeros(self.num_envs, np.float32)
        flags = np.zeros((6, self.num_envs), bool)
        arrays = self.layout.empty(self.num_envs)
        masks = None if self._masks is None else np.empty_like(self._masks)
        failures: dict[int, Failure] = {}
        for number, failure in arriving:
            # Each part is copied when it arrives: meanwhile the other workers are still stepping.
            share = self._shares[number]
            part = self._parts[number]
            if failure is None:
                rewards[share] = part.rewards
                flags[:, share] = part.flags
                self._copy(share, part, arrays, masks)
            else:
                failures[number] = failure
        if failures:
            self._replace(dict(sorted(failures.items())))
            for number in failures:
                flags[3, self._shares[number]] = True  # new games
                self._copy(self._shares[number], self._parts[number], arrays, masks)
        terminated, truncated, valid, game_over, said, succeeded = flags
        for index in np.flatnonzero(~valid).tolist() if np.count_nonzero(valid) < self.num_envs else ():
            self._log.begin(index, {})
        self._ended = terminated | truncated
        self._arrays, self._masks = arrays, masks
        self._supervisor.busy = False
        games = game_over if self.has_lives else None
        successes = np.where(said, succeeded, NOT_SAID).astype(np.int8) if np.count_nonzero(said) else None
        return Step(self.layout.tree(arrays), rewards, terminated, truncated, valid, masks, games, successes)

    def set_attribute(self, name: str, value: Any) -> None:
        """Set an attribute of every environment when its next episode begins."""
        attributes = self._attributes | read_attribute(name, value)
        if not self._supervisor.busy:  # else the workers get them when they begin
            numbers = self._supervisor.numbers
            failures = self._supervisor.call(numbers, "use_attributes", [attributes] * len(numbers), START_TIMEOUT)[1]
            self._supervisor.busy = False
            for number, failure in failures.items():
                if failure.configuration:
                    raise ConfigError(failure.reason)
                self._supervisor.workers[number].program.kill()  # the next step finds it dead and replaces it
        self._attributes = attributes

    def snapshot(self) -> Snapshot:
        """The snapshot that SerialEnvs gives, so a run can continue with any number of workers."""
        if problem := self._problem():
            return Snapshot(exact=False, reason=problem)
        numbers = self._supervisor.numbers
        answers, failures = self._supervisor.call(numbers, "saved_envs", [None] * len(numbers), START_TIMEOUT)
        for number in failures:
            self._supervisor.workers[number].program.kill()  # the next step finds it dead and replaces it
        self._supervisor.busy = False
        for number, failure in failures.items():
            reason = f"{self._name(number)} failed: {failure.reason}"
            return Snapshot(values={"seed": self._seed, "clock": self._log.clock}, exact=False, reason=reason)
        saved = [env for part in answers for env in part]
        now = self._arrays, self._ended, self._masks, self._attributes
        return snapshots.save_single(self._log, self.action_space, self._seed, saved, *now)

    def restore(self, snapshot: Snapshot) -> tuple[PyTree, np.ndarray | None]:
        """Observations and masks as at the snapshot.

        `fresh` marks the environments that could not be restored and began a new episode.
        """
        if snapshot.values.get("tier") not in (snapshots.REPLAY, snapshots.EACH):
            return snapshots.begin_new_episodes(self, snapshot)
        snapshots.require_same_number(len(snapshot.arrays["ended"]), self)
        self._make_ready()
        self._seed = snapshot.values["seed"]
        self._attributes = snapshot.values.get(snapshots.ATTRIBUTES, {})
        self._log = snapshots.ActionLog.load(snapshot, self._log.limit)
        self._replaced_at = [self._log.clock] * len(self._shares)
        self._masked = "masks" in snapshot.arrays
        parts = [snapshots.part_of(snapshot, share) for share in self._shares]
        # Without a deadline: to replay a long episode takes long.
        problems, failures = self._supervisor.call(self._supervisor.numbers, "restore", parts, None)
        self._replace(failures)
        for number, failure in failures.items():
            problems[number] = [failure.reason] * len(self._environments(number))
        snapshots.note_problems(self, [problem for part in problems for problem in part])
        for index in np.flatnonzero(self.fresh).tolist():
            self._log.begin(index, {})
        self._ended = snapshot.array_like("ended", self._ended) & ~self.fresh
        return self._read_all()

    def close(self) -> None:
        """End the workers and free the shared memory."""
        if not self._supervisor.closed:
            self._supervisor.close()
            del self._shared, self._parts

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self) -> tuple[gym.Space, gym.Space]:
        """Start all workers; the environments' own observation and action space."""
        numbers = self._supervisor.numbers
        try:
            self._supervisor.start([EnvTask(self._config, self._shares[number]) for number in numbers])
            answers, failures = self._supervisor.answers(numbers, START_TIMEOUT)
            for number, failure in failures.items():
                if failure.configuration:
                    raise ConfigError(failure.reason)
                wrong = f"{self._name(number)} cannot be made: {failure.reason}"
                raise RuntimeError(f"{wrong}\n{failure.traceback}".rstrip())
        except BaseException:
            self._supervisor.close()
            raise
        return answers[0]

    def _restart(self, numbers: Sequence[int]) -> dict[int, Failure]:
        """New processes for these workers; which of them failed to start."""
        for number in numbers:
            self._supervisor.restart(number, EnvTask(self._config, self._shares[number]))
        return self._supervisor.answers(numbers, START_TIMEOUT)[1]

    def _replace(self, failures: dict[int, Failure]) -> None:
        """Start new episodes in new processes, until all have begun."""
        ended = {number: self._has_ended_episode(number) for number in failures}
        for attempt in count():
            if not failures:
                return
            for number, failure in failures.items():
                self._supervisor.log.report(self._fault(number, failure), failure, ended.pop(number, False))
                self._replaced_at[number] = self._log.clock
            numbers = list(failures)
            failures = self._restart(numbers)
            started = [number for number in numbers if number not in failures]
            # Other episodes than those that failed, but the same ones if the run is repeated.
            failures |= self._begin(started, derived_seeds([self._seed, self._log.clock, attempt], self.num_envs))
            self._allow_all([number for number in started if number not in failures])

    def _begin(self, numbers: Sequence[int], seeds: list[int]) -> dict[int, Failure]:
        """Start episodes in these workers; which of them failed."""
        parts = [(seeds[self._shares[number]], self._attributes) for number in numbers]
        answers, failures = self._supervisor.call(numbers, "begin", parts, START_TIMEOUT)
        for number, gave_masks in zip(numbers, answers, strict=True):
            self._gave_masks[number] = gave_masks is True
        return failures

    def _allow_all(self, numbers: Sequence[int]) -> None:
        """If others give action masks, have workers without give masks that allow everything."""
        without = [number for number in numbers if self._masked and not self._gave_masks[number]]
        # A worker that fails here fails in the next step too.
        self._supervisor.call(without, "allow_all", [None] * len(without), START_TIMEOUT)

    def _copy(self, share: slice, part: EnvArrays, arrays: Arrays, masks: np.ndarray | None) -> None:
        """Copy observations and masks out of the shared memory, which the next step overwrites."""
        for name, array in part.observations.items():
            arrays[name][share] = array
        if masks is not None:
            masks[share] = part.masks

    def _read_all(self) -> tuple[PyTree, np.ndarray | None]:
        """The observations and masks of all workers, copied out of the shared memory."""
        self._arrays = self.layout.empty(self.num_envs)
        self._masks = np.empty_like(self._shared.masks) if self._masked else None
        self._copy(slice(None), self._shared, self._arrays, self._masks)
        self._supervisor.busy = False
        return self.layout.tree(self._arrays), self._masks

    def _make_ready(self) -> None:
        """Restart all workers if the last call was interrupted: its answers may still arrive."""
        if self._supervisor.closed:
            raise RuntimeError(self._problem())
        if self._supervisor.busy:
            self._restart(self._supervisor.numbers)  # a worker that fails here fails at the next call too

    def _problem(self) -> str:
        """The reason why the environments cannot be stepped now; "" if they can."""
        if self._supervisor.closed:
            return "the environments are closed"
        if self._supervisor.busy:
            return "the last step was interrupted"
        return "" if self._arrays else "the environments have not been reset"

    def _has_ended_episode(self, number: int) -> bool:
        """True if a worker has finished an episode since it was started or last replaced."""
        share = self._shares[number]
        return bool(self._ended[share].any()) or max(self._log.starts[share]) > self._replaced_at[number]

    def _fault(self, number: int, failure: Failure) -> Fault:
        pid = self._supervisor.pids[number]
        return Fault(self._name(number), number, self._log.clock, pid, failure.reason, outcome="began new episodes")

    def _environments(self, number: int) -> range:
        return range(self._shares[number].start, self._shares[number].stop)

    def _name(self, number: int) -> str:
        return name_environments(self._environments(number))
