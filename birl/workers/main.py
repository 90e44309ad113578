"""What runs in a worker process: some of the environments, stepped when told to. It imports no jax,
so as to start quickly.
"""

import fcntl
import os
import select
import signal
import sys
import traceback
import warnings
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import gymnasium as gym

from birl.config import ConfigError
from birl.envs.make import make_env
from birl.envs.serial import SerialEnvs
from birl.errors import EnvError, NonFiniteError
from birl.types import Snapshot
from birl.workers.process import ERROR, STEP, STEPPED, VALUE, Failure, Task, map_arrays, wait_for


class Host:
    """The environments of one worker, and their share of the arrays."""

    def __init__(self, task: Task, memory: int) -> None:
        self.envs = SerialEnvs(
            [partial(make_env, task.config)] * (task.share.stop - task.share.start), first=task.share.start
        )
        everything = map_arrays(memory, self.envs.layout, self.envs.action_space, task.config.num_envs)
        self.shared = everything.part(task.share)

    def spaces(self) -> tuple[gym.Space, gym.Space]:
        """As the environment has them: what networks see is worked out by whoever asks."""
        return self.envs.envs[0].observation_space, self.envs.envs[0].action_space

    def step(self) -> None:
        step = self.envs.step(self.shared.actions)
        self.shared.rewards[:] = step.rewards
        game_over = False if step.game_over is None else step.game_over
        self.shared.flags[:3], self.shared.flags[3] = (step.terminated, step.truncated, step.valid), game_over
        self._show(step.observations, step.action_masks)

    def call(self, name: str, argument: Any) -> Any:
        match name:
            case "begin":
                return self.begin(argument)
            case "allow_all":
                return self.allow_all()
            case "restore":
                return self.restore(argument)
            case "roots":
                return self.envs.roots()
        raise ValueError(f"a worker knows no order {name!r}")

    def begin(self, seeds: list[int]) -> bool:
        """Start episodes; whether one of the environments gave an action mask."""
        observations, masks = self.envs.begin(seeds)
        self._show(observations, masks)
        return masks is not None

    def allow_all(self) -> None:
        self.envs.allow_all()
        self.shared.masks[:] = True

    def restore(self, snapshot: Snapshot) -> list[str]:
        """Go where the snapshot was taken; for each environment why it could not, or ""."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the parent says it for all workers at once
            self._show(*self.envs.restore(snapshot))
        return self.envs.problems

    def _show(self, observations: Any, masks: Any) -> None:
        arrays = observations if isinstance(observations, dict) else {"": observations}
        for name, array in arrays.items():
            self.shared.observations[name][:] = array
        if masks is not None:
            self.shared.masks[:] = masks


def main(orders: int, answers: int, lifeline: int, memory: int) -> None:
    """Serve until the parent closes the orders. The numbers are file descriptors."""
    requests, replies = begin_service(orders, answers, lifeline, memory)
    host: Host | None = None
    value: Any
    poller = select.poll()
    poller.register(orders, select.POLLIN)
    while wait_for(poller, None) and (order := os.read(orders, 1)):
        try:
            if host is None:
                host = Host(requests.recv()[1], memory)
                kind, value = VALUE, host.spaces()
            elif order == STEP:
                host.step()
                os.write(answers, STEPPED)
                continue
            else:
                kind, value = VALUE, host.call(*requests.recv())
        except BaseException as error:  # also an environment's sys.exit
            kind, value = ERROR, explained(error)
        os.write(answers, kind)
        replies.send(value)
    if host is not None:
        host.envs.close()


def begin_service(orders: int, answers: int, lifeline: int, memory: int) -> tuple[Connection, Connection]:
    """Tie this process to its parent: where orders come from, where answers go."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _go_on)
    for descriptor in (orders, answers, lifeline, memory):
        os.set_inheritable(descriptor, False)  # or a simulator that outlives this process would hide its death
    _die_with_parent(lifeline)
    return Connection(orders, writable=False), Connection(answers, readable=False)


def explained(error: BaseException) -> Failure:
    """What the parent is told of an error, inside the handler that caught it."""
    text = (
        str(error) if isinstance(error, ConfigError | EnvError | RuntimeError) else f"{type(error).__name__}: {error}"
    )
    kinds = (isinstance(error, kind) for kind in (ConfigError, NonFiniteError, EnvError))
    return Failure(text, traceback.format_exc(), *kinds)


def _go_on(number: int, frame: Any) -> None:
    """Instead of SIG_IGN, which a simulator started by an environment would inherit."""


def _die_with_parent(lifeline: int) -> None:
    """Have the kernel end this process when the parent is gone, even if an environment hangs and
    holds the interpreter.

    PR_SET_PDEATHSIG would do so too early: when the thread that started the worker ends.
    """
    if sys.platform != "linux":
        return  # elsewhere a worker notices when it next waits for an order
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGIO})
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(lifeline, fcntl.F_SETFL, os.O_ASYNC)  # SIGIO, which ends a process, once the other end is closed
    poller = select.poll()
    poller.register(lifeline, 0)
    if poller.poll(0):  # it was closed before
        sys.exit(1)
