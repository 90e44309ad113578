"""A score far below the training return is explained, and one within chance is not."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from birl.run.evaluating import is_far_below, sampling_notice
from tests.run.processes import call_well


class Alternate(gym.Env):
    """Ten steps, each with a reward if the action is another one than before."""

    observation_space, action_space = gym.spaces.Box(-1, 1, (1,), np.float32), gym.spaces.Discrete(2)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps, self.last = 0, -1
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        reward, self.last, self.steps = float(action != self.last), int(action), self.steps + 1
        return np.zeros(1, np.float32), reward, self.steps == 10, False, {}


if "Alternate-v0" not in gym.registry:
    gym.register("Alternate-v0", Alternate)


def returns_of(mean: float, deviation: float, episodes: int = 20) -> np.ndarray:
    """Returns with exactly this mean and standard deviation (of n - 1)."""
    signs = np.resize([1.0, -1.0], episodes)
    return mean + signs * deviation / np.std(signs, ddof=1)


@pytest.mark.parametrize(
    ("mean", "deviation", "training", "lowest", "far"),
    [
        (120.0, 30.0, 480.0, 20.0, True),  # CartPole, stuck without sampling
        (9.0, 0.0, 480.0, 20.0, True),  # every episode the same
        (500.0, 0.0, 480.0, 20.0, False),  # better
        (450.0, 30.0, 480.0, 20.0, False),  # 30 below: 4 standard errors, but 6 % of the return
        (300.0, 400.0, 480.0, 20.0, False),  # 180 below: 2 standard errors
        (-500.0, 90.0, -150.0, -1200.0, True),  # Pendulum: a third of what was gained
        (-250.0, 90.0, -150.0, -1200.0, False),  # 5 standard errors, but 10 % of what was gained
        (-20.0, 1.0, 18.0, -21.0, True),  # Pong
        (0.0, 1.0, float("nan"), 0.0, False),  # no episode ended in training
    ],
)
def test_far_below_is_3_standard_errors_and_a_fifth_of_the_scale(mean, deviation, training, lowest, far):
    assert is_far_below(returns_of(mean, deviation), training, lowest) is far


def test_the_limits_are_3_standard_errors_and_20_percent():
    error = 10.0 / np.sqrt(20)
    for gap, far in ((3 * error - 0.01, False), (3 * error + 0.01, True)):
        assert is_far_below(returns_of(1.0 - gap, 10.0), 1.0, 1.0) is far
    for gap, far in ((99.9, False), (100.1, True)):
        assert is_far_below(returns_of(500.0 - gap, 0.0), 500.0, 400.0) is far


def test_few_episodes_say_nothing():
    assert not is_far_below(returns_of(0.0, 1.0, 4), 100.0, 0.0)
    assert is_far_below(returns_of(0.0, 1.0, 6), 100.0, 0.0)


def test_the_notice_has_both_numbers_and_says_how_to_sample():
    said = sampling_notice(returns_of(120.0, 1.0), 480.0, 20.0, "runs/mine")
    assert said == (
        "the score 120 is far below the training return 480: the policy was evaluated without sampling, and training "
        "samples its actions. To sample: birl eval runs/mine --sample, or train with --no-eval-deterministic"
    )
    assert sampling_notice(returns_of(480.0, 1.0), 480.0, 20.0, "runs/mine") == ""


@pytest.mark.parametrize("words", [[], ["--no-eval-deterministic"]])
def test_a_run_whose_policy_must_be_random_says_so_at_its_end(words, tmp_path):
    said = call_well(
        "train", "reinforce", "tests.run.test_sampling_notice:Alternate-v0", "--total-steps", 2000, "--num-envs", 4,
        "--rollout-length", 32, "--hidden-sizes", 8, "--learning-rate", 0, "--run-dir", tmp_path / "run", *words,
    )  # fmt: skip
    assert ("was evaluated without sampling" in said) == (not words)
