"""Probe environments whose episodes have one step: values, policies and every kind of action.

The values are those of the best policy.
"""

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

Reset = tuple[Any, dict[str, Any]]
Outcome = tuple[Any, float, bool, bool, dict[str, Any]]

NOTHING = np.zeros(1, np.float32)
SIGNS = spaces.Box(-1, 1, (1,), np.float32)


class ConstantReward(gym.Env):
    """Reward 1. V = 1: catches a value loss that does not learn."""

    observation_space, action_space = SIGNS, spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        super().reset(seed=seed)
        return NOTHING.copy(), {}

    def step(self, action: int) -> Outcome:
        return NOTHING.copy(), 1.0, True, False, {}


class OneStep(gym.Env):
    """Shows +1 or -1 at random. The reward is a function of that sign and the action."""

    observation_space = SIGNS

    def __init__(self, action_space: spaces.Space, reward: Callable[[float, Any], float]) -> None:
        self.action_space = action_space
        self.reward = reward
        self.sign = 1.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        super().reset(seed=seed)
        self.sign = float(self.np_random.choice((-1.0, 1.0)))
        return np.array([self.sign], np.float32), {}

    def step(self, action: Any) -> Outcome:
        return NOTHING.copy(), float(self.reward(self.sign, action)), True, False, {}


class DictObservation(gym.Env):
    """The right one of four actions needs both a vector and an image. V = 1."""

    observation_space = spaces.Dict({"vector": SIGNS, "image": spaces.Box(0, 255, (36, 36, 1), np.uint8)})
    action_space = spaces.Discrete(4)
    answer = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        super().reset(seed=seed)
        self.answer = int(self.np_random.integers(4))
        return self._observe(), {}

    def step(self, action: int) -> Outcome:
        return self._observe(), float(action == self.answer), True, False, {}

    def _observe(self) -> dict[str, np.ndarray]:
        sign = 2 * (self.answer // 2) - 1
        bright = self.answer % 2
        return {"vector": np.array([sign], np.float32), "image": np.full((36, 36, 1), 255 * bright, np.uint8)}


def right_action(sign: float, action: int) -> float:
    """1 for action 1 at a positive sign and action 0 at a negative one, else -1."""
    return 1.0 if (action == 1) == (sign > 0) else -1.0


def _gear_and_throttle(sign: float, action: dict[str, Any]) -> float:
    """1 for gear 1 and throttle 0.5 at a positive sign, -1 and -0.5 at a negative one."""
    return float(action["gear"] == sign) - (float(action["throttle"][0]) - 0.5 * sign) ** 2


def _every_part(sign: float, action: tuple[Any, Any]) -> float:
    """1 for choices (1, 2), aim (0.5, -0.5), and all bits set exactly if the sign is positive."""
    choices, (aim, bits) = action[0], (action[1]["aim"], action[1]["bits"])
    right = np.concatenate([np.asarray(choices) == (1, 2), np.asarray(bits) == (sign > 0)])
    return float(right.mean() - np.square(np.asarray(aim) - np.array([[0.5], [-0.5]])).sum())


TREE = spaces.Dict({"aim": spaces.Box(-2, 3, (2, 1), np.float32), "bits": spaces.MultiBinary(2)})

ONE_STEP: dict[str, tuple[spaces.Space, Callable[[float, Any], float]]] = {
    # V(s) = s: the value must depend on the observation.
    "birl/ProbeObservation-v0": (spaces.Discrete(2), lambda sign, _: sign),
    # Action 1 is right. V = 1: the policy gradient has the right sign.
    "birl/ProbeAction-v0": (spaces.Discrete(2), lambda _, action: 1.0 if action == 1 else -1.0),
    # Action 1 at +1, action 0 at -1. V = 1: the observations and actions of a batch stay aligned.
    "birl/ProbeObservationAction-v0": (spaces.Discrete(2), right_action),
    # Best action 0.5, V = 0. The bounds are not symmetric, and the best action is their centre.
    "birl/ProbeContinuous-v0": (
        spaces.Box(-2, 3, (1,), np.float32),
        lambda _, action: -((float(action[0]) - 0.5) ** 2),
    ),
    # Best actions (1, 2). V = 1.
    "birl/ProbeMultiDiscrete-v0": (
        spaces.MultiDiscrete([2, 3]),
        lambda _, action: float(np.mean(np.asarray(action) == (1, 2))),
    ),
    # All bits set at +1, none at -1. V = 1.
    "birl/ProbeMultiBinary-v0": (
        spaces.MultiBinary(3),
        lambda sign, action: float(np.mean(np.asarray(action) == (sign > 0))),
    ),
    # The best gear is the sign, the best throttle half of it. V = 1: the parts of a Dict are
    # learned together, and gears start at -1.
    "birl/ProbeDictAction-v0": (
        spaces.Dict({"gear": spaces.Discrete(3, start=-1), "throttle": spaces.Box(-2, 3, (1,), np.float32)}),
        _gear_and_throttle,
    ),
    # Choices (1, 2), aim (0.5, -0.5), bits as for MultiBinary. V = 1: a Dict within a Tuple.
    "birl/ProbeTupleAction-v0": (spaces.Tuple((spaces.MultiDiscrete([2, 3]), TREE)), _every_part),
}
