"""Rollouts from Ray actors: each has the policy and a share of the environments.

The same seed and number of actors give the same run, and a resumed run goes on exactly. If an actor
is lost, its episodes are lost too: its part of the rollout is collected again, in new episodes.
"""

import importlib
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import gymnasium as gym
import jax
import numpy as np

from birl.config import ConfigError, EnvConfig
from birl.envs.make import make_share, spaces_of
from birl.errors import InexactResume, NonFiniteError, snapshot_errors
from birl.maths.keys import numbered
from birl.rollouts.episode_stats import EpisodeStats
from birl.rollouts.source import Collector
from birl.speed import prepare_jax
from birl.types import NOT_SAID, Act, Array, PyTree, Rollout, Snapshot
from birl.workers.faults import Failure, Fault, FaultLog, name_environments
from birl.workers.ray_actors import Actors, connected, machine_died, put, replying
from birl.workers.supervisor import START_TIMEOUT, child_seed

DIED = "process has died"  # Ray's words


@contextmanager
def open_ray_actors(config: EnvConfig) -> Iterator[tuple[Actors, tuple[gym.Space, gym.Space]]]:
    """Actors in the cluster that the config names, and the environments' spaces.

    All actors are ended at the end.
    """
    with connected(config.ray_address, config.ray_actors):
        actors = Actors(config.ray_actors)
        try:
            yield actors, spaces_of(config)
        finally:
            actors.close()


class PartActor:
    """A Collector of some of the environments, on a machine of the cluster."""

    def __init__(self, config: EnvConfig, share: range, act: tuple[str, str], length: int, memory: PyTree) -> None:
        self.config = config
        self.share = share
        self.act = act  # module, name
        self.length = length
        self.memory = memory

    @replying
    def begin(self, seed: int, snapshot: Snapshot | None) -> tuple[np.ndarray, str]:
        """Make the environments and start; where a restore had to begin new episodes, and why."""
        prepare_jax()
        module, name = self.act
        self.envs = make_share(self.config, self.share)
        self.collector = Collector(self.envs, vars(importlib.import_module(module))[name], self.length, self.memory)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # RayCollector warns once for all actors
            self.collector.start(seed, snapshot)
        return self.collector.fresh, self.envs.restore_problem

    @replying
    def collect(self, policy: PyTree, key: np.ndarray, steps_per_key: int) -> Rollout:
        try:
            rollout = self.collector.collect(policy, key, steps_per_key)
        except NonFiniteError as problem:
            raise NonFiniteError(f"among {name_environments(self.share)}, counted from 0: {problem}") from problem
        return jax.tree.map(np.asarray, rollout._replace(extras=None))  # they may be large

    @replying
    def snapshot(self) -> Snapshot:
        return self.collector.snapshot()


class RayCollector:
    """A Collector whose environments are in Ray actors.

    What must survive an actor is kept here: statistics, counters, seeds of new episodes.
    """

    def __init__(self, config: EnvConfig, actors: Actors, act: Act, length: int, memory: PyTree) -> None:
        self.config = config
        self.actors = actors
        self.length = length
        self.memory = memory
        self.act = act.__module__, act.__name__  # a compiled function cannot be sent
        bounds = [config.num_envs * number // config.ray_actors for number in range(config.ray_actors + 1)]
        self.shares = [range(first, end) for first, end in pairwise(bounds)]
        self.episode_stats = EpisodeStats(config.num_envs)
        self._faults = FaultLog(config.ray_actors)
        self._seed = self._rollouts = self._env_steps = 0
        self._generations = [0] * config.ray_actors
        self._has_ended_episode = np.zeros(config.ray_actors, bool)  # of each, since it was last replaced

    @property
    def faults(self) -> list[Fault]:
        """Every replacement of an actor so far."""
        return self._faults.faults

    def start(self, seed: int, snapshot: Snapshot | None = None) -> None:
        """Begin with fresh episodes, or continue from a snapshot."""
        self._seed = seed
        snapshots: Sequence[Snapshot | None] = [None] * len(self.shares)
        if snapshot is not None:
            with snapshot_errors():
                self.episode_stats.restore(snapshot)
                self._rollouts, self._env_steps = int(snapshot.values["rollouts"]), int(snapshot.values["env_steps"])
                snapshots = _parts_of(snapshot, len(self.shares))
            if not snapshots:
                self._seed = seed = child_seed(seed, 0, self._rollouts)
                self.episode_stats.drop_unfinished(slice(None))
                warnings.warn(
                    f"this resume is not exact: {snapshot.reason}; all environments begin new episodes",
                    InexactResume,
                    stacklevel=2,
                )
                snapshots = [None] * len(self.shares)
        for index, part in enumerate(snapshots):
            self._start(index)
            self._begin(index, seed, part)
        problems: dict[int, str] = {}
        while len(problems) < len(self.shares):
            index, answer = self.actors.receive()
            if isinstance(answer, Failure):
                self._replace(index, answer, started=machine_died(answer))
            else:
                fresh, problems[index] = answer
                self.episode_stats.drop_unfinished(np.arange(self.shares[index].start, self.shares[index].stop)[fresh])
        for problem in filter(None, dict.fromkeys(problems.values())):
            warnings.warn(problem, InexactResume, stacklevel=2)

    def collect(self, policy: PyTree, key: Array, steps_per_key: int = 1) -> Rollout:
        """The next `length` steps of every environment."""
        before = time.perf_counter()
        sent = put(jax.tree.map(np.asarray, policy))
        self.episode_stats.seconds["policy"] += time.perf_counter() - before
        before = time.perf_counter()
        for index in range(len(self.shares)):
            self._collect(index, sent, key, steps_per_key)
        parts: dict[int, Rollout] = {}
        while len(parts) < len(self.shares):
            index, answer = self.actors.receive()
            if isinstance(answer, Failure):
                self._replace(index, answer, started=True)
            elif isinstance(answer, Rollout):
                parts[index] = answer
            else:  # a replacement is ready
                self._collect(index, sent, key, steps_per_key)
        rollout = joined([parts[index] for index in range(len(self.shares))])
        self.episode_stats.seconds["environment"] += time.perf_counter() - before
        self.episode_stats.count(rollout)
        ended = np.any(rollout.terminated | rollout.truncated, axis=0)
        self._has_ended_episode |= [bool(ended[share.start : share.stop].any()) for share in self.shares]
        self._rollouts += 1
        self._env_steps += int(np.count_nonzero(rollout.valid))
        return rollout

    def snapshot(self) -> Snapshot:
        """Everything needed to continue from here, exactly, with the same number of actors."""
        values = self.episode_stats.values() | {"rollouts": self._rollouts, "env_steps": self._env_steps}
        if self.actors.closed:
            return Snapshot(self.episode_stats.arrays(), values, exact=False, reason="the Ray actors have ended")
        for index in range(len(self.shares)):
            self.actors.call(index, lambda actor: actor.snapshot.remote(), START_TIMEOUT)
        snapshots = dict(self.actors.receive() for _ in self.shares)
        for index, share in enumerate(self.shares):
            if isinstance(snapshots[index], Failure):  # the next rollout will find it dead and replace it
                return Snapshot(
                    self.episode_stats.arrays(),
                    values,
                    exact=False,
                    reason=f"{name_environments(share)} failed: {snapshots[index].reason}",
                )
        parts = [snapshots[index] for index in range(len(self.shares))]
        arrays = {
            f"parts/{index}/{name}": array for index, part in enumerate(parts) for name, array in part.arrays.items()
        }
        values["parts"] = [part.values for part in parts]
        reasons = [part.reason for part in parts if not part.exact]
        return Snapshot(self.episode_stats.arrays() | arrays, values, not reasons, "; ".join(reasons[:1]))

    def set_env_attribute(self, name: str, value: Any) -> None:
        """Raise ConfigError: the environments are in other processes."""
        wrong = (
            f"attribute {name!r} cannot be set: env.ray_actors {self.config.ray_actors} have environments of their own"
        )
        raise ConfigError(f"{wrong}; use env.workers, or ray_actors 0")

    def _start(self, index: int) -> None:
        share = self.shares[index]
        memory = jax.tree.map(lambda x: np.asarray(x)[share.start : share.stop], self.memory)
        self.actors.start(index, PartActor, self.config, share, self.act, self.length, memory)

    def _begin(self, index: int, seed: int, snapshot: Snapshot | None) -> None:
        # To replay a long episode takes long.
        seconds = START_TIMEOUT if snapshot is None else START_TIMEOUT + self.config.step_timeout
        self.actors.call(index, lambda actor: actor.begin.remote(seed, snapshot), seconds)

    def _collect(self, index: int, policy: Any, key: Array, steps_per_key: int) -> None:
        own_key = numbered(np.asarray(key), index)
        # A step that takes too long ends its actor (make_share): this limit is only for a machine
        # that no longer answers.
        seconds = START_TIMEOUT + self.config.step_timeout * self.length * len(self.shares[index])
        self.actors.call(index, lambda actor: actor.collect.remote(policy, own_key, steps_per_key), seconds)

    def _replace(self, index: int, failure: Failure, started: bool) -> None:
        """Start another actor in new episodes, the same ones whenever the run is repeated."""
        self._faults.report(self._fault(index, failure), failure, self._has_ended_episode[index], started)
        self._has_ended_episode[index] = False
        self._generations[index] += 1
        share = self.shares[index]
        self.episode_stats.drop_unfinished(slice(share.start, share.stop))
        self._start(index)
        self._begin(index, child_seed(self._seed, index, self._rollouts, self._generations[index]), None)

    def _fault(self, index: int, failure: Failure) -> Fault:
        pid, machine = self.actors.places[index]
        # The actor has ended, so it is unknown which of the two it was.
        hint = (
            f", or a step took longer than env.step_timeout {self.config.step_timeout:g}"
            if DIED in failure.reason
            else ""
        )
        return Fault(f"Ray actor {index}", index, self._env_steps, pid, failure.reason + hint, machine)


def joined(parts: Sequence[Rollout]) -> Rollout:
    """One rollout from the rollouts of all actors."""
    memory, resets = jax.tree.map(
        lambda *arrays: np.concatenate(arrays), *[(part.memory, part.resets) for part in parts]
    )
    masks = [part.action_masks for part in parts]
    if any(mask is not None for mask in masks):  # environments without masks allow everything
        width = next(mask.shape[2] for mask in masks if mask is not None)
        shapes = [(len(part.rewards) + 1, part.rewards.shape[1], width) for part in parts]
        masks = [np.ones(shape, bool) if mask is None else mask for shape, mask in zip(shapes, masks, strict=True)]
    successes = [part.successes for part in parts]
    if any(said is not None for said in successes):
        unknown = [np.full(part.rewards.shape, NOT_SAID, np.int8) for part in parts]
        successes = [none if said is None else said for none, said in zip(unknown, successes, strict=True)]
    plain = [
        part._replace(memory=(), resets=None, action_masks=mask, successes=said)
        for part, mask, said in zip(parts, masks, successes, strict=True)
    ]
    return jax.tree.map(lambda *arrays: np.concatenate(arrays, axis=1), *plain)._replace(memory=memory, resets=resets)


def _parts_of(snapshot: Snapshot, count: int) -> list[Snapshot]:
    """The snapshot of each actor; [] if there are not as many as actors."""
    values = snapshot.values.get("parts", [])
    if len(values) != count:
        return []
    return [
        Snapshot(snapshot.arrays_under(f"parts/{index}/"), values[index], snapshot.exact, snapshot.reason)
        for index in range(count)
    ]
