"""Where rollouts are collected: in this process, or part by part in the actors of a Ray cluster."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

import gymnasium as gym

from birl.config import EnvConfig, require
from birl.envs.make import open_envs
from birl.rollouts.collector import Act, Collector, Keep
from birl.types import Array, Envs, Metrics, PyTree, Rollout, Snapshot


class Collects(Protocol):
    """What collects rollouts, wherever it does so: see Collector."""

    def start(self, seed: int, snapshot: Snapshot | None = None) -> None: ...
    def __call__(self, policy: PyTree, key: Array) -> Rollout: ...
    def metrics(self) -> Metrics: ...
    def snapshot(self) -> Snapshot: ...
    def timed(self, name: str) -> AbstractContextManager[None]: ...


class Stage(Protocol):
    """Where environments are, and policies act on them."""

    num_envs: int
    observation_space: gym.Space
    action_space: gym.Space

    def collector(self, act: Act, length: int, memory: PyTree, keep: Keep = "nothing") -> Collects:
        """What collects rollouts of this length there; what the policy sees is kept if that is
        here.
        """


class LocalStage:
    """This process, with the worker processes of its environments."""

    def __init__(self, envs: Envs) -> None:
        self.envs, self.num_envs = envs, envs.num_envs
        self.observation_space, self.action_space = envs.observation_space, envs.action_space

    def collector(self, act: Act, length: int, memory: PyTree, keep: Keep = "nothing") -> Collects:
        return Collector(self.envs, act, length, memory, keep=keep)


@contextmanager
def open_stage(config: EnvConfig, seed: int, envs: Envs | gym.vector.VectorEnv | None = None) -> Iterator[Stage]:
    """The stage of the config, closed at the end; environments that were handed in are left open
    for whoever made them.
    """
    if config.ray_actors == 0:
        with open_envs(config, seed, envs) as here:
            yield LocalStage(here)
        return
    remedy = "name them by env.id; module:Id-v0 imports the module that registers your own"
    require(
        envs is None,
        f"envs {envs!r} cannot go to env.ray_actors {config.ray_actors}, which make environments of their own; {remedy}",
    )
    from birl.rollouts.ray import open_ray_stage  # which needs an extra

    with open_ray_stage(config) as stage:
        yield stage
