"""Probe environments: tiny, with known values, so that a wrong algorithm fails within seconds.

Each tests one part of an algorithm, and a failure names that part. The values are those of the best
policy; γ is the discount.
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


class DelayedReward(gym.Env):
    """Two steps, reward 1 at the end. V(first) = γ, V(second) = 1: catches a wrong discount."""

    observation_space, action_space = SIGNS, spaces.Discrete(2)
    time = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        super().reset(seed=seed)
        self.time = 0
        return np.array([-1], np.float32), {}

    def step(self, action: int) -> Outcome:
        self.time += 1
        return np.array([1], np.float32), float(self.time == 2), self.time == 2, False, {}


class Truncation(gym.Env):
    """Reward 1 each step, truncated after `limit` steps, which the observation does not show.

    V = 1 / (1 - γ): catches a missing bootstrap.
    """

    observation_space, action_space = SIGNS, spaces.Discrete(2)

    def __init__(self, limit: int = 5) -> None:
        self.limit = limit
        self.time = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        super().reset(seed=seed)
        self.time = 0
        return NOTHING.copy(), {}

    def step(self, action: int) -> Outcome:
        self.time += 1
        return NOTHING.copy(), 1.0, False, self.time >= self.limit, {}


class Memory(gym.Env):
    """The sign in the first observation decides which third action is right.

    The return is 1 with memory, and 0 on average without.
    """

    observation_space, action_space = spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(2)
    time, sign = 0, 1.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        super().reset(seed=seed)
        self.time = 0
        self.sign = float(self.np_random.choice((-1.0, 1.0)))
        return np.array([self.sign, 0], np.float32), {}

    def step(self, action: int) -> Outcome:
        self.time += 1
        reward = 0.0 if self.time < 3 else right_action(self.sign, action)
        return np.array([0, self.time / 3], np.float32), reward, self.time == 3, False, {}


class ActionMask(gym.Env):
    """Four steps, in each of which one of three actions is forbidden.

    The return is 4 if masks are obeyed; each forbidden action has reward -1.
    """

    observation_space, action_space = SIGNS, spaces.Discrete(3)
    time, forbidden = 0, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        super().reset(seed=seed)
        self.time = 0
        return NOTHING.copy(), self._draw_mask()

    def step(self, action: int) -> Outcome:
        self.time += 1
        reward = -1.0 if action == self.forbidden else 1.0
        return NOTHING.copy(), reward, self.time == 4, False, self._draw_mask()

    def _draw_mask(self) -> dict[str, Any]:
        self.forbidden = int(self.np_random.integers(3))
        return {"action_mask": np.arange(3) != self.forbidden}


class MaskedMemory(gym.Env):
    """Two signs in the first observation decide the right third action: needs memory and masks.

    The first sign also decides which two of the four actions are allowed. The return is 1 with
    memory, and 0 on average without, even if masks are obeyed; a forbidden action costs 10. The
    mask is in the info, or in a Dict observation.
    """

    action_space = spaces.Discrete(4)
    time, answer = 0, 0

    def __init__(self, mask_in_observation: bool = False) -> None:
        self.mask_in_observation = mask_in_observation
        seen = spaces.Box(-1, 1, (3,), np.float32)
        masked = spaces.Dict({"seen": seen, "action_mask": spaces.MultiBinary(4)})
        self.observation_space = masked if mask_in_observation else seen

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        super().reset(seed=seed)
        self.time = 0
        self.answer = int(self.np_random.integers(4))
        return self._show(2.0 * (self.answer // 2) - 1, 2.0 * (self.answer % 2) - 1)

    def step(self, action: int) -> Outcome:
        self.time += 1
        forbidden = -10.0 if action // 2 != self.answer // 2 else 0.0
        right = 0.0 if self.time < 3 else 1.0 if action == self.answer else -1.0
        observation, info = self._show(0.0, 0.0)
        return observation, forbidden + right, self.time == 3, False, info

    def _show(self, first: float, second: float) -> Reset:
        seen = np.array([first, second, self.time / 3], np.float32)
        mask = (np.arange(4) // 2 == self.answer // 2).astype(np.int8)
        return ({"seen": seen, "action_mask": mask}, {}) if self.mask_in_observation else (seen, {"action_mask": mask})


class LinearQuadratic(gym.Env):
    """A mass on a weakly damped spring, to be brought to rest.

    s' = As + Ba with reward -(sᵀCs + Ra²), truncated after `limit` steps. The best policy is
    a = -Ks and its value is -sᵀPs, with K and P from the Riccati equation, because no best action
    reaches the bounds. States begin uniformly in [-1, 1]², so the mean return of the best policy is
    -tr(P)/3, with the P of `limit` steps.
    """

    A = np.array([[1.0, 0.2], [-0.2, 0.95]])
    B = np.array([[0.0], [0.2]])
    C = np.diag([1.0, 0.1])
    R = np.array([[0.3]])
    observation_space, action_space = spaces.Box(-np.inf, np.inf, (2,), np.float32), spaces.Box(-3, 3, (1,), np.float32)

    def __init__(self, limit: int = 50) -> None:
        self.limit = limit
        self.time = 0
        self.state = np.zeros(2)  # position and velocity

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        super().reset(seed=seed)
        self.time = 0
        self.state = self.np_random.uniform(-1, 1, 2)
        return self.state.astype(np.float32), {}

    def step(self, action: np.ndarray) -> Outcome:
        action = np.asarray(action, np.float64)
        cost = float(self.state @ self.C @ self.state + action @ self.R @ action)
        self.state = self.A @ self.state + self.B @ action
        self.time += 1
        return self.state.astype(np.float32), -cost, False, self.time >= self.limit, {}


PROBES: dict[str, tuple[Callable[..., gym.Env], dict[str, Any]]] = {
    "birl/ProbeConstant-v0": (ConstantReward, {}),
    "birl/ProbeDelayed-v0": (DelayedReward, {}),
    "birl/ProbeTruncation-v0": (Truncation, {}),
    "birl/ProbeMemory-v0": (Memory, {}),
    "birl/ProbeMask-v0": (ActionMask, {}),
    "birl/ProbeMaskedMemory-v0": (MaskedMemory, {}),
    "birl/ProbeDict-v0": (DictObservation, {}),
    "birl/ProbeLinearQuadratic-v0": (LinearQuadratic, {}),
} | {name: (OneStep, {"action_space": space, "reward": reward}) for name, (space, reward) in ONE_STEP.items()}


def register_probes() -> None:
    """Register the probes with Gymnasium; may be called again."""
    for env_id, (probe, kwargs) in PROBES.items():
        if env_id not in gym.registry:
            gym.register(env_id, entry_point=probe, kwargs=kwargs)
