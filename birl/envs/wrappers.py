"""Wrappers of single environments: hidden velocities, masks of a method, a limit for each step."""

import signal
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from birl.config import ConfigError
from birl.envs.spaces import MASK, mask_width

# The features that stay when velocities are hidden, by id without version (the zoo's NoVel
# environments).
POSITIONS: dict[str, tuple[int, ...]] = {
    "CartPole": (0, 2),  # cart position, pole angle
    "Pendulum": (0, 1),  # cosine and sine of the angle
    "MountainCar": (0,),
    "MountainCarContinuous": (0,),
    "Acrobot": (0, 1, 2, 3),  # cosines and sines of both angles
    "LunarLander": (0, 1, 4, 6, 7),  # position, angle, leg contacts
    "LunarLanderContinuous": (0, 1, 4, 6, 7),
}

MASK_METHOD = "action_masks"  # of an environment: how sb3-contrib's MaskablePPO gets masks


def positions(env_id: str) -> np.ndarray:
    """The indices of the features that are not velocities."""
    name = env_id.rpartition(":")[2].rpartition("-v")[0] or env_id
    if name not in POSITIONS:
        known = ", ".join(sorted(POSITIONS))
        wrong = f"env.hide_velocities True is not known for env.id {env_id!r}"
        raise ConfigError(f"{wrong}; it is for {known}. Use hide_velocities False")
    return np.array(POSITIONS[name])


def kept_space(space: gym.Space, keep: np.ndarray) -> spaces.Box:
    """The Box with only these features."""
    if not isinstance(space, spaces.Box) or len(space.shape) != 1:
        raise ConfigError(f"env.hide_velocities True needs a flat Box observation, not {space}")
    return spaces.Box(space.low[keep], space.high[keep], dtype=space.dtype.type)


class HideVelocities(gym.ObservationWrapper):
    """One environment without velocities in its observations: a policy must infer them."""

    def __init__(self, env: gym.Env, keep: np.ndarray) -> None:
        super().__init__(env)
        self.keep = keep
        self.observation_space = kept_space(env.observation_space, keep)

    def observation(self, observation: np.ndarray) -> np.ndarray:
        return observation[self.keep]


class MethodMasks(gym.Wrapper):
    """One environment with the masks of its method in its infos, where it gives none itself.

    After a termination there is no mask, and the method may not be ready to be asked.
    """

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        answer = self.env.step(action)
        terminated = isinstance(answer, tuple) and len(answer) == 5 and np.any(answer[2])
        return answer if terminated else self._with_mask(answer)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return self._with_mask(self.env.reset(seed=seed, options=options))

    def _with_mask(self, answer: Any) -> Any:
        """The answer of `reset` or `step`, with a mask in its info."""
        if not (isinstance(answer, tuple) and isinstance(answer[-1], dict)) or MASK in answer[-1]:
            return answer  # it may break the rules, which is found where it is read
        return *answer[:-1], answer[-1] | {MASK: self.env.get_wrapper_attr(MASK_METHOD)()}


def with_method_masks(env: gym.Env) -> gym.Env:
    """The environment, with the masks of its method `action_masks` if it has one.

    A mask in a Dict observation comes first.
    """
    has_method = env.has_wrapper_attr(MASK_METHOD) and callable(env.get_wrapper_attr(MASK_METHOD))
    observations = env.observation_space
    observed = isinstance(observations, spaces.Dict) and MASK in observations.spaces
    return MethodMasks(env) if has_method and not observed and mask_width(env.action_space) is not None else env


class StepTimeout(gym.Wrapper):
    """One environment that ends its process, by SIGALRM, if a step or a reset takes too long.

    The signal works even if the environment never returns to the interpreter.
    """

    def __init__(self, env: gym.Env, seconds: float) -> None:
        super().__init__(env)
        self.seconds = seconds

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        signal.setitimer(signal.ITIMER_REAL, self.seconds)
        outcome = self.env.step(action)
        signal.setitimer(signal.ITIMER_REAL, 0)
        return outcome

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        signal.setitimer(signal.ITIMER_REAL, self.seconds)
        start = self.env.reset(seed=seed, options=options)
        signal.setitimer(signal.ITIMER_REAL, 0)
        return start
