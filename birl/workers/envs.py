"""Environments stepped by several processes, several environments in each, through shared memory.
Survives a dead worker.

The same seed gives the same run, to the bit, with any number of workers and with none (SerialEnvs,
which each worker hosts).

A worker that raises, dies or takes too long is replaced. That step is, for all its environments,
one in which they reset themselves: valid is false, the reward is 0 and the observation is the first
of a new episode. The action had no outcome that could be shown as a transition, and the row before
leads to an observation that was seen: returns bootstrap there, as from any episode that was cut.
"""

import warnings
from collections.abc import Sequence
from itertools import count
from typing import Self

import numpy as np

from birl.config import EnvConfig
from birl.envs import snapshot as snapshots
from birl.envs.atari import has_lives
from birl.envs.observations import Arrays, layout_of
from birl.envs.spaces import action_reader, derived_seeds, learnable_actions
from birl.errors import InexactResume
from birl.types import PyTree, Snapshot, Step
from birl.workers.process import Failure, SharedArrays, map_arrays
from birl.workers.supervisor import START_TIMEOUT, Fault, Supervisor, named


class WorkerEnvs:
    """B environments in Gymnasium's NEXT_STEP order, as SerialEnvs has them, each worker process
    with its share of them.
    """

    def __init__(
        self,
        config: EnvConfig,
        action_limit: int = snapshots.ACTION_LIMIT,
    ) -> None:
        self.num_envs = config.num_envs
        self._supervisor = Supervisor(config)
        observation_space, action_space = self._supervisor.start()
        self.layout = layout_of(observation_space, action_space)
        self.observation_space, self.action_space = self.layout.space, learnable_actions(action_space)
        self.has_lives = has_lives(config)
        self._read_actions = action_reader(self.action_space, self.num_envs)
        self.fresh = np.zeros(self.num_envs, bool)  # where the last restore had to begin a new episode
        self.restore_problem = ""  # why it had to
        self._shared = map_arrays(self._supervisor.memory, self.layout, self.action_space, self.num_envs)
        self._parts = [self._shared.part(share) for share in self._supervisor.shares]
        self._log = snapshots.ActionLog(self.num_envs, action_limit)
        self._seed = 0
        self._ended = np.zeros(self.num_envs, bool)
        self._arrays: Arrays = {}
        self._masks: np.ndarray | None = None
        self._masked = False  # whether environments give action masks: some may and others not
        self._gave_masks = [False] * config.workers
        self._replaced_at = [0] * config.workers  # the clock when each worker was last replaced

    @property
    def faults(self) -> list[Fault]:
        """Every replacement of a worker so far."""
        return self._supervisor.faults

    @property
    def pids(self) -> list[int]:
        """The process that steps each share of the environments now."""
        return [worker.process.pid for worker in self._supervisor.workers]

    def reset(self, seed: int) -> tuple[PyTree, np.ndarray | None]:
        """First observations and action masks. Each environment gets a seed of its own, whichever
        worker it is in.
        """
        self._prepare()
        self._seed, self._masked = seed, False
        self._log = snapshots.ActionLog(self.num_envs, self._log.limit)
        self._replaced_at = [0] * len(self._supervisor.workers)
        self._note([""] * self.num_envs)
        self._ended = np.zeros(self.num_envs, bool)
        self._replace(self._begin(self._supervisor.everyone, derived_seeds(seed, self.num_envs)))
        self._masked = any(self._gave_masks)
        self._allow_all(self._supervisor.everyone)
        return self._take()

    def step(self, actions: PyTree) -> Step:
        problem = self._problem()
        if problem:
            raise RuntimeError(f"{problem}; call reset(seed) before step")
        batch = self._read_actions(actions)
        self._shared.actions[...] = batch
        arriving = self._supervisor.step()
        self._log.append(batch)
        rewards, flags = np.zeros(self.num_envs, np.float32), np.zeros((4, self.num_envs), bool)
        arrays, masks = self.layout.empty(self.num_envs), None if self._masks is None else np.empty_like(self._masks)
        failures: dict[int, Failure] = {}
        for number, failure in arriving:
            # Each share is copied when it comes, not all at the end: for all but the last, this
            # process has nothing better to do.
            share, shared = self._supervisor.shares[number], self._parts[number]
            if failure is None:
                rewards[share], flags[:, share] = shared.rewards, shared.flags
                self._copy(share, shared, arrays, masks)
            else:
                failures[number] = failure
        if failures:
            self._replace(dict(sorted(failures.items())))
            for number in failures:
                flags[3, self._supervisor.shares[number]] = True  # new games
                self._copy(self._supervisor.shares[number], self._parts[number], arrays, masks)
        terminated, truncated, valid, game_over = flags
        if np.count_nonzero(valid) < self.num_envs:
            for index in np.flatnonzero(~valid).tolist():
                self._log.begin(index, {})
        self._ended, self._arrays, self._masks = terminated | truncated, arrays, masks
        self._supervisor.busy = False
        return Step(
            self.layout.tree(arrays),
            rewards,
            terminated,
            truncated,
            valid,
            masks,
            game_over if self.has_lives else None,
        )

    def snapshot(self) -> Snapshot:
        """The same as SerialEnvs would give, so that a run can go on with another number of
        workers.
        """
        problem = self._problem()
        if problem:
            return Snapshot(exact=False, reason=problem)
        answers, failures = self._supervisor.call(
            self._supervisor.everyone, "roots", [None] * len(self._supervisor.workers), START_TIMEOUT
        )
        for number in failures:
            self._supervisor.workers[number].kill()  # the next step will find it dead and replace it
        self._supervisor.busy = False
        for number, failure in failures.items():
            reason = f"{named(self._supervisor.environments(number))} failed: {failure.reason}"
            return Snapshot(values={"seed": self._seed, "clock": self._log.clock}, exact=False, reason=reason)
        roots = [root for part in answers for root in part]
        return snapshots.save_single(
            self._log, self.action_space, self._seed, roots, self._arrays, self._ended, self._masks
        )

    def restore(self, snapshot: Snapshot) -> tuple[PyTree, np.ndarray | None]:
        """Observations and masks as at the snapshot; `fresh` marks environments that could not get
        there and began anew.
        """
        if snapshot.values.get("tier") not in (snapshots.REPLAY, snapshots.EACH):
            return self._start_anew(snapshot)
        if len(snapshot.arrays["ended"]) != self.num_envs:
            raise ValueError(
                f"the snapshot has {len(snapshot.arrays['ended'])} environments, not {self.num_envs}; use its num_envs"
            )
        self._prepare()
        self._seed = snapshot.values["seed"]
        self._log = snapshots.ActionLog.load(snapshot, self._log.limit)
        self._replaced_at = [self._log.clock] * len(self._supervisor.workers)
        self._masked = "masks" in snapshot.arrays
        parts = [snapshots.part_of(snapshot, share) for share in self._supervisor.shares]
        problems, failures = self._supervisor.call(
            self._supervisor.everyone, "restore", parts, None
        )  # a long episode takes long to live again
        self._replace(failures)
        for number, failure in failures.items():
            problems[number] = [failure.reason] * len(self._supervisor.environments(number))
        self._note([problem for part in problems for problem in part])
        for index in np.flatnonzero(self.fresh).tolist():
            self._log.begin(index, {})
        self._ended = snapshot.array_like("ended", self._ended) & ~self.fresh
        return self._take()

    def close(self) -> None:
        """End the workers and give back what they shared."""
        if not self._supervisor.closed:
            self._supervisor.close()
            del self._shared, self._parts

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _replace(self, failures: dict[int, Failure]) -> None:
        """New episodes in new processes, until all have begun."""
        ended = {number: self._has_ended_episode(number) for number in failures}
        for attempt in count():
            if not failures:
                return
            for number, failure in failures.items():
                self._supervisor.report(number, failure, self._log.clock, ended.pop(number, False))
                self._replaced_at[number] = self._log.clock
            numbers = list(failures)
            failures = self._supervisor.restart(numbers)
            started = [number for number in numbers if number not in failures]
            # Not the episodes that failed, but the same ones whenever the run is repeated.
            failures |= self._begin(started, derived_seeds([self._seed, self._log.clock, attempt], self.num_envs))
            self._allow_all([number for number in started if number not in failures])

    def _has_ended_episode(self, number: int) -> bool:
        """Whether an episode of this worker's has ended since it was started or last replaced."""
        share = self._supervisor.shares[number]
        return bool(self._ended[share].any()) or max(self._log.starts[share]) > self._replaced_at[number]

    def _begin(self, numbers: Sequence[int], seeds: list[int]) -> dict[int, Failure]:
        """Start episodes in these workers; those that failed."""
        parts = [seeds[self._supervisor.shares[number]] for number in numbers]
        answers, failures = self._supervisor.call(numbers, "begin", parts, START_TIMEOUT)
        for number, gave_masks in zip(numbers, answers, strict=True):
            self._gave_masks[number] = gave_masks is True
        return failures

    def _allow_all(self, numbers: Sequence[int]) -> None:
        """Masks that forbid nothing from workers whose environments gave none, if others did."""
        without = [number for number in numbers if self._masked and not self._gave_masks[number]]
        self._supervisor.call(
            without, "allow_all", [None] * len(without), START_TIMEOUT
        )  # who fails will fail in the next step as well

    def _copy(self, share: slice, shared: SharedArrays, arrays: Arrays, masks: np.ndarray | None) -> None:
        """Observations and masks of one worker out of the shared memory, which the next step
        overwrites.
        """
        for name, array in shared.observations.items():
            arrays[name][share] = array
        if masks is not None:
            masks[share] = shared.masks

    def _take(self) -> tuple[PyTree, np.ndarray | None]:
        """The same of all workers."""
        self._arrays = self.layout.empty(self.num_envs)
        self._masks = np.empty_like(self._shared.masks) if self._masked else None
        self._copy(slice(None), self._shared, self._arrays, self._masks)
        self._supervisor.busy = False
        return self.layout.tree(self._arrays), self._masks

    def _prepare(self) -> None:
        """Make the workers fit for new orders: after an interrupted one, answers may still come
        that nobody waits for.
        """
        if self._supervisor.closed:
            raise RuntimeError(self._problem())
        if self._supervisor.busy:
            self._supervisor.restart(self._supervisor.everyone)  # who fails here will fail at the next order as well

    def _problem(self) -> str:
        """Why the environments cannot be stepped now; "" if they can."""
        if self._arrays and not self._supervisor.busy and not self._supervisor.closed:
            return ""
        if self._supervisor.closed:
            return "the environments are closed"
        return "the last step was interrupted" if self._supervisor.busy else "the environments have not been reset"

    def _start_anew(self, snapshot: Snapshot) -> tuple[PyTree, np.ndarray | None]:
        seed, reason = snapshots.fresh_start(snapshot)
        start = self.reset(seed)
        self._note([reason] * self.num_envs)
        return start

    def _note(self, problems: list[str]) -> None:
        self.fresh, self.restore_problem = snapshots.describe(problems)
        if self.restore_problem:
            warnings.warn(self.restore_problem, InexactResume, stacklevel=3)
