"""Environments and wrappers as users write them, named by module:function and module:Class."""

from typing import Any

import gymnasium as gym
import numpy as np

from tests.envs.counting import Counting


class Walk(gym.Env):
    """A random walk with drift: the action is added to it. Draws from np_random, also in reset."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gym.spaces.Discrete(3)
    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}  # noqa: RUF012

    def __init__(self, length: int = 12, drift: float = 0.0, render_mode: str | None = None) -> None:
        self.length, self.drift, self.render_mode = length, drift, render_mode
        self.place, self.steps = 0.0, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.place, self.steps = float(self.np_random.normal()), 0
        return self.observe(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.place += float(self.np_random.normal()) + self.drift + int(action) - 1
        self.steps += 1
        return self.observe(), -abs(self.place), self.steps >= self.length, False, {}

    def observe(self) -> np.ndarray:
        return np.array([self.place, self.drift], np.float32)

    def render(self) -> Any:
        return np.full((32, 32, 3), 7 * self.steps % 256, np.uint8)


def make_walk(length: int = 12, drift: float = 0.0, render_mode: str | None = None) -> gym.Env:
    return Walk(length, drift, render_mode)


def make_drawn() -> gym.Env:
    return Walk(render_mode="rgb_array")


def make_broken() -> Any:
    return "an environment"


def make_raising() -> gym.Env:
    raise KeyError("own fault")


class Scaled(gym.RewardWrapper):
    """Rewards times a factor, plus an offset."""

    def __init__(self, env: gym.Env, factor: float = 1.0, offset: float = 0.0) -> None:
        super().__init__(env)
        self.factor, self.offset = factor, offset

    def reward(self, reward: Any) -> Any:
        return self.factor * float(reward) + self.offset


class Remembering(gym.Wrapper):
    """Adds the sum of this episode's rewards to the reward: state within an episode."""

    total = 0.0

    def reset(self, **kwargs: Any) -> Any:
        self.total = 0.0
        return self.env.reset(**kwargs)

    def step(self, action: Any) -> Any:
        observation, reward, *rest = self.env.step(action)
        self.total += float(reward)
        return observation, float(reward) + self.total, *rest


class Hoarding(Remembering):
    """Keeps its sum from one episode to the next, so that no replay gives the same."""

    def reset(self, **kwargs: Any) -> Any:
        return self.env.reset(**kwargs)


class Forgetful(Remembering):
    """Claims to save its state, and forgets half of it."""

    def get_state(self) -> Any:
        return {}, {"total": self.total}

    def set_state(self, arrays: Any, values: Any) -> None:
        self.total = values["total"] / 2

    def step(self, action: Any) -> Any:
        outcome = super().step(action)
        self.total = float(np.float32(self.total))
        return outcome


class Lying(Remembering):
    """Claims to have no state to save."""

    def get_state(self) -> Any:
        return {}, {}

    def set_state(self, arrays: Any, values: Any) -> None: ...


def no_wrapper(env: gym.Env) -> str:
    return "no environment"


def needs_dict(env: gym.Env) -> gym.Env:
    assert isinstance(env.observation_space, gym.spaces.Dict), "it needs a Dict observation"
    return env


gym.register("OwnCounting-v0", entry_point=Counting)


class Talking(gym.Env):
    """Observes a place, a camera and a text that no network can read."""

    observation_space = gym.spaces.Dict(
        {
            "place": gym.spaces.Box(-10, 10, (2,), np.float32),
            "camera": gym.spaces.Dict(
                {"image": gym.spaces.Box(0, 255, (9, 9, 3), np.uint8), "depth": gym.spaces.Box(0, 1, (4,), np.float32)}
            ),
            "mission": gym.spaces.Text(20),
        }
    )
    action_space = gym.spaces.Discrete(2)
    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}  # noqa: RUF012

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self.observe(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return self.observe(), float(action), self.steps >= 5, False, {}

    def observe(self) -> Any:
        depth = self.np_random.random(4, np.float32)
        image = np.full((9, 9, 3), self.steps, np.uint8)
        place = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return {"place": place, "camera": {"image": image, "depth": depth}, "mission": "go to it"}

    def render(self) -> Any:
        return np.zeros((32, 32, 3), np.uint8)


class Goal(gym.Wrapper):
    """A wrapper with an attribute of its own, added to the reward."""

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self.bonus = 0.0

    def step(self, action: Any) -> Any:
        observation, reward, *rest = self.env.step(action)
        return observation, float(reward) + self.bonus, *rest
