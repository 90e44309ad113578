"""How many gradient steps are due after a rollout, and what is carried over."""

from types import SimpleNamespace

import numpy as np
import pytest
from birl.rollouts.gradient_steps import due_steps, gradient_steps, gradient_steps_due

from birl.algos import ddpg
from birl.config import EnvConfig

READY = SimpleNamespace(ready=True)
EMPTY = SimpleNamespace(ready=False)


def config_of(ratio=0.5, length=4, num_envs=3, learning_starts=100):
    env = EnvConfig(num_envs=num_envs)
    return ddpg.Config(env=env, update_ratio=ratio, rollout_length=length, learning_starts=learning_starts)


def rollout_of(steps):
    """A rollout of twelve rows, of which so many are valid."""
    return SimpleNamespace(valid=np.arange(12).reshape(4, 3) < steps)


@pytest.mark.parametrize(
    ("ratio", "steps"),
    [(0.5, 6), (1.0, 12), (2.0, 24), (0.3, 4), (1 / 3, 4), (0.01, 1)],  # of 12 environment steps, rounded up
)
def test_an_update_takes_the_ratio_of_a_whole_rollout_rounded_up_and_at_least_one(ratio, steps):
    assert gradient_steps(config_of(ratio)) == steps


@pytest.mark.parametrize(
    ("owed", "env_steps", "due", "left"),
    [
        (0.0, 12, 6, 0.0),
        (0.0, 11, 0, 5.5),  # a row was a reset: not yet enough for an update
        (5.5, 11, 6, 5.0),
        (5.5, 1, 6, 0.0),
        (5.9995, 0, 6, -0.0005),  # rounding of the ratio does not delay an update
    ],
)
def test_all_steps_of_an_update_are_due_or_none_and_the_rest_is_owed(owed, env_steps, due, left):
    assert due_steps(config_of(0.5), owed, env_steps) == (due, pytest.approx(left))


def test_in_the_long_run_the_ratio_is_kept_in_spite_of_resets():
    config = config_of(0.3)
    rng = np.random.default_rng(0)
    owed = 0.0
    taken = total = 0
    for env_steps in rng.integers(6, 13, 500).tolist():
        due, owed = due_steps(config, owed, env_steps)
        taken += due
        total += env_steps
    assert taken + owed == pytest.approx(0.3 * total)
    assert 0 <= owed < gradient_steps(config)


@pytest.mark.parametrize(
    ("env_steps", "replay", "expected"), [(99, READY, (0, 0.0)), (100, EMPTY, (0, 0.0)), (100, READY, (6, 1.5))]
)
def test_nothing_is_due_or_owed_before_learning_starts_or_while_the_replay_is_empty(env_steps, replay, expected):
    state = SimpleNamespace(env_steps=env_steps, owed=np.float32(2.5))
    due, owed = gradient_steps_due(config_of(0.5), state, replay, rollout_of(10))
    assert (due, float(owed)) == expected
    assert owed.dtype == np.float32
