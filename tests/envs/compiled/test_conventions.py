"""Compiled copies keep the one episode convention (tests/envs/test_conventions.py).

They are not in that file: its environments in processes are forked, which is not safe once JAX has
started its threads.
"""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from birl.config import EnvConfig
from birl.envs.compiled.host import CompiledEnvs, programs_of

ACTIONS = st.lists(st.tuples(*[st.integers(0, 2)] * 3), min_size=1, max_size=25)
SEEDS = st.integers(0, 2**31 - 1)


def compiled(env_id: str, limit: int | None = None) -> CompiledEnvs:
    name = env_id if env_id == "CartPole-v1" else f"tests.envs.compiled.counting:{env_id}"
    return CompiledEnvs(programs_of(EnvConfig(name, 3, "compiled", max_episode_steps=limit)))


@given(SEEDS, ACTIONS, st.sampled_from([None, 2]))
def test_every_valid_row_leads_to_the_true_successor_and_every_other_row_to_a_first_observation(seed, actions, most):
    envs = compiled("Counting", most)
    before, _ = envs.reset(seed)
    ended = np.zeros(3, bool)
    for row in actions:
        step = envs.step(np.array(row))
        np.testing.assert_array_equal(step.valid, ~ended)
        for i, (name, count, total) in enumerate(before):
            goal, limit = divmod(int(name), 10)
            limit = min(limit, most or limit)
            if ended[i]:
                assert step.observations[i][1:].tolist() == [0, 0]
                assert (step.rewards[i], step.terminated[i], step.truncated[i]) == (0, False, False)
                continue
            assert step.observations[i].tolist() == [name, count + 1, total + row[i]]
            assert step.rewards[i] == 10 * (count + 1) + row[i]
            assert step.terminated[i] == (total + row[i] >= goal)
            assert step.truncated[i] == (count + 1 >= limit and total + row[i] < goal)
        before, ended = step.observations, step.terminated | step.truncated


@given(SEEDS, ACTIONS)
def test_a_row_is_invalid_exactly_after_an_end(seed, actions):
    envs = compiled("Counting")
    envs.reset(seed)
    steps = [envs.step(np.array(row)) for row in actions]
    assert steps[0].valid.all()
    for before, after in pairwise(steps):
        np.testing.assert_array_equal(after.valid, ~(before.terminated | before.truncated))


@pytest.mark.parametrize("kind", ["MaskedCounting", "DictCounting"])
@given(SEEDS, ACTIONS)
def test_masks_belong_to_the_observation_they_come_with(kind, seed, actions):
    envs = compiled(kind)
    _, first = envs.reset(seed)
    np.testing.assert_array_equal(first, [[False, True, True]] * 3)
    for row in actions:
        step = envs.step(np.array(row))
        counts = step.observations["count/steps"] if kind == "DictCounting" else step.observations[:, 1]
        # Where an episode terminated, no action follows: all are allowed.
        expected = (np.arange(3) != counts[:, None] % 3) | step.terminated[:, None]
        np.testing.assert_array_equal(step.action_masks, expected)


def test_a_truncated_observation_keeps_its_mask_unless_it_allows_nothing():
    for kind in ("MaskedCounting", "OverCounting"):
        envs = compiled(kind)
        envs.reset(1)
        cut = 0
        for _ in range(30):
            step = envs.step(np.zeros(3, int))  # a sum of 0 never terminates
            kept = np.arange(3) != step.observations[:, 1:2] % 3
            expected = np.ones((3, 3), bool) if kind == "OverCounting" else kept
            np.testing.assert_array_equal(step.action_masks[step.truncated], expected[step.truncated])
            cut += step.truncated.sum()
        assert cut > 5


def test_a_cart_moves_by_its_velocity_also_into_the_last_observation():
    envs = compiled("CartPole-v1")
    before, _ = envs.reset(0)
    ends = 0
    for t in range(60):
        step = envs.step(np.full(3, t % 4 // 2))
        moved = before[:, 0] + 0.02 * before[:, 1]  # x + τ ẋ
        np.testing.assert_allclose(step.observations[step.valid, 0], moved[step.valid], atol=1e-6)
        assert (np.abs(step.observations[~step.valid]) <= 0.05).all()  # where episodes begin
        assert (step.rewards == step.valid).all()
        fallen = (np.abs(step.observations[:, 2]) > 12 * np.pi / 180) & step.valid
        np.testing.assert_array_equal(step.terminated, fallen)
        ends += step.terminated.sum()
        before = step.observations
    assert ends > 0
