"""Ranges of rewards and observations."""

import math

import numpy as np
import pytest

from birl.rollouts.episode_stats import Ranges
from birl.types import Rollout, Snapshot


def rollout_of(observations, rewards, valid=None) -> Rollout:
    rewards = np.asarray(rewards, np.float32)
    valid = np.ones(rewards.shape, bool) if valid is None else np.asarray(valid)
    nothing = np.zeros(rewards.shape, bool)
    return Rollout(observations, np.zeros(rewards.shape), rewards, nothing, nothing, valid, ())


def observations_of(*columns: list[float]) -> np.ndarray:
    """[T+1, 1, D] from the course of each number."""
    return np.array(columns, np.float32).T[:, None]


def test_rewards_of_all_rollouts_count_but_not_that_of_a_reset():
    ranges = Ranges()
    ranges.add(rollout_of(observations_of([0, 0, 0]), [[1.0], [3.0]]))
    ranges.add(rollout_of(observations_of([0, 0, 0]), [[2.0], [-9.0]], [[True], [False]]))
    assert (ranges.metrics()["reward/min"], ranges.metrics()["reward/max"]) == (1.0, 3.0)


def test_observations_give_largest_magnitude_widest_range_and_share_of_constants():
    ranges = Ranges()
    ranges.add(rollout_of(observations_of([5, 5, 5], [-700, 100, 0]), [[0.0], [0.0]]))
    found = ranges.metrics()
    assert found["observation/largest"] == 700
    assert found["observation/widest"] == 800
    assert found["observation/constant_share"] == 0.5


def test_a_number_that_changes_between_rollouts_is_not_constant():
    ranges = Ranges()
    for value in (1.0, 2.0):
        ranges.add(rollout_of(observations_of([value] * 3), [[0.0], [0.0]]))
    assert ranges.metrics()["observation/constant_share"] == 0.0


def test_pixels_and_categories_have_no_range():
    ranges = Ranges()
    ranges.add(rollout_of({"image": np.full((3, 1, 2), 255, np.uint8)}, [[0.0], [0.0]]))
    assert math.isnan(ranges.metrics()["observation/largest"])


def test_a_long_rollout_is_sampled_and_all_its_rewards_count():
    rewards = np.zeros((5000, 1), np.float32)
    rewards[4321] = 7.0
    ranges = Ranges()
    ranges.add(rollout_of(observations_of(np.arange(5001.0).tolist()), rewards))
    assert ranges.metrics()["reward/max"] == 7.0
    assert 4990 <= ranges.metrics()["observation/largest"] <= 5000


def test_ranges_restored_from_a_snapshot_go_on_as_if_they_had_never_stopped():
    first = rollout_of(observations_of([1, 2, 3], [0, 0, 0]), [[1.0], [2.0]])
    second = rollout_of(observations_of([9, 2, 3], [0, 0, 0]), [[5.0], [2.0]])
    whole, part, resumed = Ranges(), Ranges(), Ranges()
    whole.add(first)
    whole.add(second)
    part.add(first)
    resumed.restore(Snapshot(part.arrays(), {}))
    resumed.add(second)
    assert resumed.metrics() == whole.metrics()
    assert resumed.rollouts == whole.rollouts


def test_a_snapshot_without_ranges_begins_anew():
    ranges = Ranges()
    ranges.restore(Snapshot({}, {}))
    assert math.isnan(ranges.metrics()["reward/min"])


def test_ranges_that_do_not_fit_this_rollout_begin_anew():
    ranges = Ranges()
    ranges.restore(Snapshot(Ranges().arrays() | {"ranges/observations/0": np.zeros((2, 9), np.float32)}, {}))
    ranges.add(rollout_of(observations_of([1, 2, 3]), [[0.0], [0.0]]))
    assert ranges.metrics()["observation/widest"] == pytest.approx(2.0)
