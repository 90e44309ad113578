"""What runs in an environment worker: some of the environments, stepped on request.

It imports no jax, so that it starts quickly.
"""

import os
import select
import warnings
from functools import partial
from typing import Any

import gymnasium as gym

from birl.envs.attributes import Attributes
from birl.envs.make import make_env
from birl.envs.serial import SerialEnvs
from birl.types import NOT_SAID, Snapshot
from birl.workers.arrays import map_env_arrays
from birl.workers.child import as_failure, connect_to_parent
from birl.workers.process import ERROR, STEP, STEPPED, VALUE, EnvTask, poll_and_spin


class EnvHost:
    """The environments of one worker, and their part of the shared arrays."""

    def __init__(self, task: EnvTask, memory: int) -> None:
        count = task.share.stop - task.share.start
        make = partial(make_env, task.config)
        self.envs = SerialEnvs([make] * count, first=task.share.start, ignored=task.config.ignore_observations)
        arrays = map_env_arrays(memory, self.envs.layout, self.envs.action_space, task.config.num_envs)
        self.arrays = arrays.part(task.share)
        self.arrays.flags[4:] = False  # what a worker before this one said
        self.has_said = False  # the last step said whether episodes succeeded

    def spaces(self) -> tuple[gym.Space, gym.Space]:
        """The environment's own observation and action space, as Gymnasium gives them."""
        return self.envs.envs[0].observation_space, self.envs.envs[0].action_space

    def step(self) -> None:
        """Step with the shared actions and write the results to the shared arrays."""
        step = self.envs.step(self.arrays.actions)
        self.arrays.rewards[:] = step.rewards
        self.arrays.flags[:3] = step.terminated, step.truncated, step.valid
        self.arrays.flags[3] = False if step.game_over is None else step.game_over
        if step.successes is not None:
            self.arrays.flags[4:] = step.successes != NOT_SAID, step.successes == 1
        elif self.has_said:
            self.arrays.flags[4] = False
        self.has_said = step.successes is not None
        self._write(step.observations, step.action_masks)

    def call(self, name: str, argument: Any) -> Any:
        """Call one of the functions that the parent may ask for."""
        match name:
            case "begin":
                return self.begin(*argument)
            case "use_attributes":
                return self.envs.use_attributes(argument)
            case "allow_all":
                return self.allow_all()
            case "restore":
                return self.restore(argument)
            case "saved_envs":
                return self.envs.saved_envs()
        raise ValueError(f"an environment worker has no function {name!r}")

    def begin(self, seeds: list[int], attributes: Attributes) -> bool:
        """Start episodes with these seeds; whether an environment gave an action mask."""
        self.envs.use_attributes(attributes)
        observations, masks = self.envs.begin(seeds)
        self._write(observations, masks)
        return masks is not None

    def allow_all(self) -> None:
        """From now on give action masks that allow everything."""
        self.envs.allow_all()
        self.arrays.masks[:] = True

    def restore(self, snapshot: Snapshot) -> list[str]:
        """Restore a snapshot; for each environment why that was impossible, or ""."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the parent warns once for all workers
            self._write(*self.envs.restore(snapshot))
        return self.envs.problems

    def _write(self, observations: Any, masks: Any) -> None:
        """Write observations and masks to the shared arrays."""
        arrays = observations if isinstance(observations, dict) else {"": observations}
        for name, array in arrays.items():
            self.arrays.observations[name][:] = array
        if masks is not None:
            self.arrays.masks[:] = masks


def main(calls: int, answers: int, lifeline: int, memory: int) -> None:
    """Serve until the parent closes the pipe of calls. The arguments are file descriptors."""
    requests, replies = connect_to_parent(calls, answers, lifeline, memory)
    host: EnvHost | None = None
    value: Any
    poller = select.poll()
    poller.register(calls, select.POLLIN)
    while poll_and_spin(poller) and (kind := os.read(calls, 1)):
        try:
            if host is None:
                host = EnvHost(requests.recv()[1], memory)
                value = host.spaces()
            elif kind == STEP:
                host.step()
                os.write(answers, STEPPED)
                continue
            else:
                value = host.call(*requests.recv())
            answer = VALUE
        except BaseException as error:  # also an environment's sys.exit
            answer = ERROR
            value = as_failure(error)
        os.write(answers, answer)
        replies.send(value)
    if host is not None:
        host.envs.close()
