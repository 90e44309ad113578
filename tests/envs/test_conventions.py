"""One episode convention, whatever the autoreset mode of the environments."""

from itertools import pairwise

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given
from hypothesis import strategies as st

from birl.config import EnvConfig
from birl.envs.make import make_envs
from birl.envs.serial import SerialEnvs
from birl.envs.vector import VectorAdapter
from birl.types import Step
from tests.envs.counting import (
    MODES,
    Counting,
    DictCounting,
    MaskedCounting,
    OverCounting,
    counting_functions,
    every_way,
)

# (goal, limit) of each environment
SHAPES = st.lists(st.tuples(st.integers(1, 6), st.integers(1, 4)), min_size=1, max_size=3)
ACTIONS = st.lists(st.tuples(*[st.integers(0, 2)] * 3), min_size=1, max_size=25)


def play(envs: SerialEnvs | VectorAdapter, actions: list[tuple[int, ...]]) -> tuple[list[np.ndarray], list[Step]]:
    first, _ = envs.reset(0)
    steps = [envs.step(np.array(row[: envs.num_envs])) for row in actions]
    return [first] + [step.observations for step in steps], steps


@given(SHAPES, ACTIONS)
def test_every_mode_gives_the_same_rows(shapes, actions):
    played = {name: play(envs, actions) for name, envs in every_way(shapes).items()}
    observations, steps = played["serial"]
    for other_observations, other_steps in played.values():
        np.testing.assert_array_equal(observations, other_observations)
        for field in ("rewards", "terminated", "truncated", "valid"):
            np.testing.assert_array_equal(
                [getattr(s, field) for s in steps], [getattr(s, field) for s in other_steps], field
            )


@given(SHAPES, ACTIONS)
def test_every_valid_row_leads_to_the_true_successor_and_every_other_row_to_a_first_observation(shapes, actions):
    for envs in every_way(shapes).values():
        observations, steps = play(envs, actions)
        for t, (row, step) in enumerate(zip(actions, steps, strict=True)):
            for i, (goal, limit) in enumerate(shapes):
                _, count, total = observations[t][i]
                if not step.valid[i]:
                    assert observations[t + 1][i].tolist() == [i, 0, 0]
                    assert (step.rewards[i], step.terminated[i], step.truncated[i]) == (0, False, False)
                    continue
                assert observations[t + 1][i].tolist() == [i, count + 1, total + row[i]]
                assert step.rewards[i] == 10 * (count + 1) + row[i]
                assert step.terminated[i] == (total + row[i] >= goal)
                assert step.truncated[i] == (count + 1 >= limit and total + row[i] < goal)


@given(SHAPES, ACTIONS)
def test_a_row_is_invalid_exactly_after_an_end(shapes, actions):
    for envs in every_way(shapes).values():
        _, steps = play(envs, actions)
        assert steps[0].valid.all()
        for before, after in pairwise(steps):
            np.testing.assert_array_equal(after.valid, ~(before.terminated | before.truncated))


@given(SHAPES, ACTIONS)
def test_masks_belong_to_the_observation_they_come_with(shapes, actions):
    for kind in (MaskedCounting, DictCounting):
        for envs in every_way(shapes, kind).values():
            _, first = envs.reset(0)
            np.testing.assert_array_equal(first, [[False, True, True]] * len(shapes))
            for row in actions:
                step = envs.step(np.array(row[: len(shapes)]))
                assert step.action_masks.dtype == bool
                counts = step.observations["count/steps"] if kind is DictCounting else step.observations[:, 1]
                # Where an episode terminated, no action follows: all are allowed.
                expected = (np.arange(3) != counts[:, None] % 3) | step.terminated[:, None]
                np.testing.assert_array_equal(step.action_masks, expected)


@pytest.mark.parametrize("name", ["serial", "NEXT_STEP", "SAME_STEP", "DISABLED"])
def test_a_truncated_observation_keeps_its_mask_unless_it_allows_nothing(name):
    def last_masks(kind):
        envs = every_way([(100, 2), (100, 3)], kind)[name]
        envs.reset(0)
        steps = [envs.step(np.zeros(2, int)) for _ in range(3)]
        assert [step.truncated.tolist() for step in steps] == [[False, False], [True, False], [False, True]]
        return steps[1].action_masks[0].tolist(), steps[2].action_masks[1].tolist()

    for kind in (MaskedCounting, DictCounting):
        assert last_masks(kind) == ([True, True, False], [False, True, True])
    assert last_masks(OverCounting) == ([True] * 3, [True] * 3)


@pytest.mark.parametrize("limit", [1, 2])
@pytest.mark.parametrize("name", ["serial", "NEXT_STEP", "SAME_STEP", "DISABLED"])
def test_reported_returns_are_the_sum_of_valid_rewards(name, limit):
    envs = every_way([(100, limit)] * 2)[name]
    envs.reset(0)
    steps = [envs.step(np.ones(2, int)) for _ in range(6 * (limit + 1))]
    valid = np.array([step.valid for step in steps])
    assert valid.sum() == 2 * 6 * limit  # 6 episodes of each; the step that resets does not count
    episode = sum(10 * t + 1 for t in range(1, limit + 1))
    assert sum(step.rewards.sum() for step in steps) == 2 * 6 * episode
    assert sum(step.truncated.sum() for step in steps) == 2 * 6


def test_vector_environments_of_different_modes_do_not_affect_each_other():
    functions = counting_functions([(100, 2)])
    envs = [VectorAdapter(SyncVectorEnv(functions, autoreset_mode=mode)) for mode in MODES]
    for each in envs:
        each.reset(0)
    rows = [[tuple(each.step(np.ones(1, int)).observations[0]) for each in envs] for _ in range(7)]
    assert [set(row) for row in rows] == [{row[0]} for row in rows]
    assert "autoreset_mode" not in Counting.metadata


CARTPOLES = {
    "serial": lambda: make_envs(EnvConfig("CartPole-v1", 3), 0),
    "native": lambda: make_envs(EnvConfig("CartPole-v1", 8), 0),
    "envpool": lambda: make_envs(EnvConfig("CartPole-v1", 3, "envpool"), 0),
    "async same step": lambda: VectorAdapter(
        gym.make_vec("CartPole-v1", 2, "async", vector_kwargs={"autoreset_mode": AutoresetMode.SAME_STEP})
    ),
    "async disabled": lambda: VectorAdapter(
        gym.make_vec("CartPole-v1", 2, "async", vector_kwargs={"autoreset_mode": AutoresetMode.DISABLED})
    ),
}


@pytest.mark.parametrize("make", CARTPOLES.values(), ids=CARTPOLES.keys())
def test_a_cart_moves_by_its_velocity_also_into_the_last_observation(make):
    with make() as envs:
        before, _ = envs.reset(0)
        ends = 0
        for t in range(60):
            step = envs.step(np.full(envs.num_envs, t % 4 // 2))
            moved = before[:, 0] + 0.02 * before[:, 1]  # x + τ ẋ
            np.testing.assert_allclose(step.observations[step.valid, 0], moved[step.valid], atol=1e-6)
            assert (np.abs(step.observations[~step.valid]) <= 0.05).all()  # where episodes begin
            assert (step.rewards == step.valid).all()
            fallen = (np.abs(step.observations[:, 2]) > 12 * np.pi / 180) & step.valid
            np.testing.assert_array_equal(step.terminated, fallen)
            ends += step.terminated.sum()
            before = step.observations
        assert ends > 0
