"""The program of an environment worker: it steps some of the environments on request.

It imports no jax, so that it starts quickly.
"""

import os
import select
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym

from birl.envs.attributes import Attributes
from birl.envs.make import make_env
from birl.envs.serial import SerialEnvs
from birl.types import NOT_SAID, Snapshot
from birl.workers.child import connect_to_parent
from birl.workers.envs import EnvTask, map_env_arrays
from birl.workers.faults import as_failure
from birl.workers.supervisor import ERROR, STEP, STEPPED, VALUE

SPIN_SECONDS = 0.002  # longer than many steps take, and shorter than an update, in which workers sleep


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
        functions: dict[str, Callable[[Any], Any]] = {
            "begin": self.begin,
            "use_attributes": self.envs.use_attributes,
            "allow_all": self.allow_all,
            "restore": self.restore,
            "saved_envs": lambda _: self.envs.saved_envs(),
        }
        return functions[name](argument)

    def begin(self, start: tuple[list[int], Attributes]) -> bool:
        """Start episodes with these seeds and attributes; whether there are action masks."""
        seeds, attributes = start
        self.envs.use_attributes(attributes)
        observations, masks = self.envs.begin(seeds)
        self._write(observations, masks)
        return masks is not None

    def allow_all(self, _: None) -> None:
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


def main(lifeline: int, words: list[str]) -> None:
    """Serve until the parent closes the pipe of calls."""
    calls, answers, memory = connect_to_parent(lifeline, words)
    host: EnvHost | None = None
    value: Any
    poller = select.poll()
    poller.register(calls.fileno(), select.POLLIN)
    while poll_and_spin(poller) and (kind := os.read(calls.fileno(), 1)):
        try:
            if host is None:
                host = EnvHost(calls.recv()[1], memory)
                value = host.spaces()
            elif kind == STEP:
                host.step()
                os.write(answers.fileno(), STEPPED)
                continue
            else:
                value = host.call(*calls.recv())
            answer = VALUE
        except BaseException as error:  # also an environment's sys.exit
            answer = ERROR
            value = as_failure(error)
        os.write(answers.fileno(), answer)
        answers.send(value)
    if host is not None:
        host.envs.close()


def poll_and_spin(poller: select.poll) -> list[tuple[int, int]]:
    """The descriptors that are ready. Polls without sleeping for a while, then sleeps until one is.

    A CPU core that sleeps takes long to wake up, above all on a virtual machine: two workers with
    four LunarLanders each lost a third of their time to it. Between polls it yields the CPU core.
    """
    spin_until = time.monotonic() + SPIN_SECONDS
    while time.monotonic() < spin_until:
        if ready := poller.poll(0):
            return ready
        os.sched_yield()
    return poller.poll(None)
