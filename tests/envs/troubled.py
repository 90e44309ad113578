"""Environments that fail on demand. Importing this registers them, in workers too."""

import os
import signal
import subprocess
import sys
import time
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from tests.envs.counting import Counting, DictCounting

RAISE, KILL, HANG, EXIT, HANG_WITH_CHILD = 3, 4, 5, 6, 7
CHILD = ["sleep", "98765"]  # what HANG_WITH_CHILD starts


class Troubled(Counting):
    """Counts with actions 0 to 2, under a new random name in each episode; other actions fail.

    So does step `raise_at`, counted over all episodes, and step `bug_at` of every episode.
    """

    action_space = spaces.Discrete(8)

    def __init__(
        self,
        goal: int = 10**9,
        limit: int = 10**9,
        raise_at: int = -1,
        bug_at: int = -1,
        raise_in_reset: bool = False,
        quits: bool = False,
    ) -> None:
        super().__init__(0, goal, limit)
        self.raise_at, self.bug_at, self.raise_in_reset, self.quits = raise_at, bug_at, raise_in_reset, quits
        self.all_steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.name = int(self.np_random.integers(10**6))
        if self.raise_in_reset:
            raise ZeroDivisionError("mass is zero")
        return self.observe(), self.mask()

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.all_steps += 1
        if action == RAISE or self.all_steps == self.raise_at or self.steps + 1 == self.bug_at:
            if self.quits:
                sys.exit(0)
            raise ZeroDivisionError("mass is zero")
        if action == KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        if action == EXIT:
            os._exit(3)
        if action == HANG_WITH_CHILD:
            subprocess.Popen(CHILD)
        if action in (HANG, HANG_WITH_CHILD):
            time.sleep(1000)
        return super().step(action)


class SometimesMasked(Troubled):
    """Gives a mask in every other step of half of its episodes."""

    action_space = spaces.Discrete(3)

    def mask(self) -> dict[str, Any]:
        return {"action_mask": np.arange(3) != self.steps % 3} if self.name % 2 and self.steps % 2 == 0 else {}


class Unrepeatable(Troubled):
    """Cannot be replayed after its second reset, because it counts resets outside its generator."""

    resets = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.resets += 1
        super().reset(seed=seed)
        self.name += 10**6 * self.resets * (self.name % 2)  # shows in some of the episodes only
        return self.observe(), {}


class Buggy(Troubled):
    """Fails only at step `bug_at` of an episode, whatever the action."""

    action_space = spaces.Discrete(3)


class Leaky(Buggy):
    """Counts its episodes, and shows the count only in its rewards."""

    resets = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.resets += 1
        return super().reset(seed=seed)

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, reward, *rest = super().step(action)
        return observation, reward + self.resets, *rest


class OldRandomness(Buggy):
    """Draws from a RandomState, as dm_control does."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            self.np_random = np.random.RandomState(seed)  # type: ignore[assignment]
        Counting.reset(self)
        self.name = int(self.np_random.randint(10**6))  # type: ignore[attr-defined]
        return self.observe(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, reward, *rest = super().step(action)
        return observation, reward + self.np_random.standard_normal(), *rest


class NoRandomness(Buggy):
    """Has np_random None."""

    np_random = None  # type: ignore[assignment]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.steps = self.total = 0
        self.needs_reset = False
        return self.observe(), {}


class Unruly(Troubled):
    """Breaks Gymnasium's rules in step, not in reset."""

    action_space = spaces.Discrete(3)

    def __init__(self, shape: int = 3, flag: str = "no") -> None:
        super().__init__()
        self.shape = (shape,)
        self.flag = {"no": False, "none": None, "nan": float("nan"), "text": "False", "2": 2}[flag]

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        _, reward, _, truncated, info = super().step(action)
        return np.zeros(self.shape), reward, self.flag, truncated, info  # type: ignore[return-value]


class Broken(Troubled):
    def __init__(self) -> None:
        raise ZeroDivisionError("mass is zero")


RAISED_AT = f"{__file__}, line {Troubled.step.__code__.co_firstlineno + 5}"

for kind in (
    Troubled,
    SometimesMasked,
    Unrepeatable,
    Buggy,
    Leaky,
    OldRandomness,
    NoRandomness,
    Unruly,
    Broken,
    DictCounting,
):
    gym.register(f"{kind.__name__}-v0", kind, disable_env_checker=True, order_enforce=False)
