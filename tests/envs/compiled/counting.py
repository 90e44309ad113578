"""The counting environments of tests/envs/counting.py in JAX, and others that tests need.

A compiled environment does not know which copy it is. So each episode draws its name, and the name
says where it ends: 53 terminates at a sum of 5 and is truncated after 3 steps.
"""

from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from tests.envs import counting as host


class Counting:
    observation_space: gym.Space = spaces.Box(0, np.inf, (3,), np.float64)
    action_space: gym.Space = spaces.Discrete(3)
    first_action = 0

    def __init__(self, shortest: int = 1) -> None:
        self.shortest = shortest  # steps after which an episode may be truncated

    def reset(self, key):
        goal_key, limit_key = jax.random.split(key)
        name = 10 * jax.random.randint(goal_key, (), 1, 7) + jax.random.randint(limit_key, (), self.shortest, 5)
        state = {"name": name, "steps": jnp.int32(0), "total": jnp.int32(0)}
        return state, self.observe(state)

    def step(self, state, action, key):
        action = action - self.first_action
        steps, total = state["steps"] + 1, state["total"] + action
        state = {"name": state["name"], "steps": steps, "total": total}
        return state, self.observe(state), 10 * steps + action, self.is_over(state), steps >= state["name"] % 10

    def is_over(self, state):
        return state["total"] >= state["name"] // 10

    def observe(self, state):
        return jnp.stack([state["name"], state["steps"], state["total"]])


class MaskedCounting(Counting):
    def action_mask(self, state):
        return (jnp.arange(3) != state["steps"] % 3) & ~self.is_over(state)


class OverCounting(MaskedCounting):
    def action_mask(self, state):
        return super().action_mask(state) & (state["steps"] < state["name"] % 10)


class DictCounting(Counting):
    observation_space = host.DictCounting.observation_space

    def observe(self, state):
        steps = state["steps"]
        pair = (jnp.full((2, 2, 1), steps, jnp.uint8), jnp.stack([steps % 2, jnp.int32(1)]))
        count = {"steps": steps, "total": state["total"][None]}
        return {"count": count, "pair": pair, "action_mask": jnp.arange(3) != steps % 3}


class ShiftedCounting(Counting):
    action_space = spaces.Discrete(3, start=1)
    first_action = 1


class HostShifted(host.Counting):
    action_space = spaces.Discrete(3, start=1)

    def step(self, action: int) -> Any:
        assert action in (1, 2, 3)
        return super().step(action - 1)


PAIRS: dict[str, tuple[type, type[host.Counting]]] = {  # the same environment in JAX and in NumPy
    "Counting": (Counting, host.Counting),
    "MaskedCounting": (MaskedCounting, host.MaskedCounting),
    "OverCounting": (OverCounting, host.OverCounting),
    "DictCounting": (DictCounting, host.DictCounting),
    "ShiftedCounting": (ShiftedCounting, HostShifted),
}


def with_names(kind: type[host.Counting], names: Iterator[int]) -> gym.Env:
    """A counting environment in NumPy whose episodes have these names."""

    class Named(kind):  # type: ignore[valid-type, misc]
        def reset(self, **options: Any) -> Any:
            self.name = next(names)
            self.goal, self.limit = divmod(self.name, 10)
            return super().reset(**options)

    return Named()


class Pulled:
    """A point that actions within bounds pull, with noise. It never terminates."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = spaces.Box(np.array([-1.0, 0.0], np.float32), np.array([1.0, 0.5], np.float32))
    max_episode_steps = 20
    render_fps = 12.0

    def __init__(self, noise: float = 0.1) -> None:
        self.noise = noise

    def reset(self, key):
        place = jax.random.normal(key, (2,))
        return place, place

    def step(self, state, action, key):
        state = state + action + self.noise * jax.random.normal(key, (2,))
        return state, state, -jnp.abs(state).sum(), False, False

    def render(self, state: Any) -> np.ndarray:
        return np.full((32, 48, 3), 7 * int(abs(state[0])) % 256, np.uint8)


class Obedient(MaskedCounting):
    """Ends after 4 steps; the return is negative if an action was chosen that is not allowed."""

    def step(self, state, action, key):
        allowed = self.action_mask(state)[action]
        state, observation, *_ = super().step(state, action * 0, key)
        return state, observation, jnp.where(allowed, 1.0, -100.0), False, state["steps"] >= 4
