"""Normalisation against running sums of each episode in plain Python."""

from functools import partial

import jax
import numpy as np
import pytest
from gymnasium import spaces

from birl.config import ConfigError
from birl.maths.statistics import Moments
from birl.nets.normalize import (
    initial_normalizer,
    merge_moments,
    normalize_observations,
    normalize_rewards,
    update_observation_moments,
)
from birl.parts import NormalizeConfig
from birl.types import Rollout

T, B, DISCOUNT = 12, 3, 0.9
BOX = spaces.Box(-np.inf, np.inf, (2,), np.float32)
REWARDS_ONLY, OBSERVATIONS_ONLY = NormalizeConfig(normalize_rewards=True), NormalizeConfig(normalize_observations=True)
COUNTS = spaces.Box(-500, 1000, (3,), np.int32)
SYMBOLS = spaces.Box(0, 255, (7, 7, 3), np.uint8)  # MiniGrid's view, whose symbols are numbers from 0 to 10
IMAGE = spaces.Box(0, 255, (9, 8, 1), np.uint8)
# Little optimisation, to save compile time.
jit = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
normalize = jit(partial(normalize_rewards, discount=DISCOUNT))
learn = jit(update_observation_moments)
normalized_by = jit(normalize_observations)


def random_episodes(seed, length, num_envs):
    """Rewards and flags with random ends of episodes; the row after an end is a reset."""
    rng = np.random.default_rng(seed)
    ends = rng.random((length, num_envs)) < 0.3
    valid = np.ones_like(ends)
    for t in range(1, length):
        valid[t] = ~ends[t - 1]
        ends[t] &= valid[t]
    terminated = ends & (rng.random(ends.shape) < 0.5)
    rewards = np.where(valid, rng.normal(3.0, 2.0, ends.shape), 0.0).astype(np.float32)
    return Rollout(None, None, rewards, terminated, ends & ~terminated, valid, None, ())


def rows(rollout, start, stop):
    return rollout._replace(
        **{name: getattr(rollout, name)[start:stop] for name in ("rewards", "terminated", "truncated", "valid")}
    )


def running_returns(rollout):
    """Every G = r + γ G of every episode, with its row; the end of an episode sets G to 0."""
    seen = []
    for i in range(rollout.rewards.shape[1]):
        total = 0.0
        for t in range(len(rollout.rewards)):
            if rollout.valid[t, i]:
                total = float(rollout.rewards[t, i]) + DISCOUNT * total
                seen.append((t, total))
            if rollout.terminated[t, i] or rollout.truncated[t, i]:
                total = 0.0
    return seen


def test_rewards_are_divided_by_the_deviation_of_discounted_returns_with_resets_in_the_rollout():
    rollout = random_episodes(0, T, B)
    assert not rollout.valid.all()
    scaled, normalizer = normalize(initial_normalizer(BOX, B, REWARDS_ONLY), rollout)
    returns = [total for _, total in running_returns(rollout)]
    np.testing.assert_allclose(scaled, rollout.rewards / np.std(returns), rtol=1e-4)
    assert float(normalizer.returns.mean) == pytest.approx(np.mean(returns), rel=1e-4)
    assert float(normalizer.returns.count) == rollout.valid.sum()


@pytest.mark.parametrize("seed", range(4))
def test_running_returns_continue_in_the_next_rollout(seed):
    whole = random_episodes(seed, 2 * T, B)
    _, middle = normalize(initial_normalizer(BOX, B, REWARDS_ONLY), rows(whole, 0, T))
    scaled, normalizer = normalize(middle, rows(whole, T, 2 * T))
    returns = [total for _, total in running_returns(whole)]
    assert float(normalizer.returns.variance) == pytest.approx(np.var(returns), rel=1e-4)
    np.testing.assert_allclose(scaled, whole.rewards[T:] / np.std(returns), rtol=1e-4)


def test_running_returns_start_at_0_where_a_rollout_begins_a_new_episode():
    whole = random_episodes(1, 2 * T, B)
    assert not (whole.terminated | whole.truncated)[T - 1].any()  # all three episodes continue
    first = rows(whole, 0, T)
    second = rows(whole, T, 2 * T)._replace(resets=np.array([False, True, False]))
    _, middle = normalize(initial_normalizer(BOX, B, REWARDS_ONLY), first)
    _, normalizer = normalize(middle, second)
    cut = whole._replace(truncated=whole.truncated.copy())
    cut.truncated[T - 1, 1] = True
    returns = [total for _, total in running_returns(cut)]
    assert float(normalizer.returns.variance) == pytest.approx(np.var(returns), rel=1e-4)


def test_the_reward_of_a_reset_step_is_never_counted():
    whole = random_episodes(0, 2 * T, B)
    cut = next(t for t in range(1, 2 * T) if not whole.valid[t - 1].all())  # a reset in the last row of the first part
    strange = whole._replace(rewards=np.where(whole.valid, whole.rewards, 1e6).astype(np.float32))
    ends = []
    for rollout in (whole, strange):
        _, middle = normalize(initial_normalizer(BOX, B, REWARDS_ONLY), rows(rollout, 0, cut))
        ends.append(normalize(middle, rows(rollout, cut, 2 * T))[1])
    jax.tree.map(np.testing.assert_array_equal, *ends)


def test_scaled_rewards_are_clipped_at_10():
    rollout = random_episodes(0, T, B)
    rewards = np.where(np.arange(T)[:, None] == 0, np.array([1e4, 0, 0]), 0.01).astype(np.float32)
    outlier = rollout._replace(rewards=rewards)
    normalizer = initial_normalizer(BOX, B, REWARDS_ONLY)
    normalizer = normalizer._replace(returns=normalizer.returns._replace(count=np.float32(1e12)))  # variance stays 1
    assert float(normalize(normalizer, outlier)[0][0, 0]) == 10.0


def test_switched_off_normalisation_changes_nothing():
    rollout = random_episodes(0, T, B)
    normalizer = initial_normalizer(BOX, B, NormalizeConfig())
    rewards, after = normalize_rewards(normalizer, rollout, DISCOUNT)
    assert rewards is rollout.rewards
    assert after == normalizer
    observations = np.ones((T, B, 2), np.float32)
    assert normalize_observations(normalizer.observations, observations) is observations
    assert update_observation_moments(None, observations) is None


def test_observations_are_normalised_by_the_mean_and_deviation_of_all_observations_so_far():
    rng = np.random.default_rng(0)
    rollouts = [rng.normal([5.0, -100.0], [0.1, 30.0], (T, B, 2)).astype(np.float32) for _ in range(3)]
    moments = initial_normalizer(BOX, B, OBSERVATIONS_ONLY).observations
    for observations in rollouts:
        moments = learn(moments, observations)
    seen = np.concatenate(rollouts).reshape(-1, 2).astype(np.float64)
    normalized = normalized_by(moments, rollouts[0])
    np.testing.assert_allclose(normalized, (rollouts[0] - seen.mean(0)) / seen.std(0), atol=1e-3)


def test_initial_moments_leave_observations_unchanged_but_clipped_at_10():
    moments = initial_normalizer(BOX, B, OBSERVATIONS_ONLY).observations
    np.testing.assert_allclose(normalized_by(moments, np.float32([[3.0, -50.0]])), [[3.0, -10.0]])


def test_in_a_dict_numbers_are_normalised_and_images_and_categories_are_not():
    space = spaces.Dict(
        {"image": IMAGE, "vector": BOX, "counts": COUNTS, "symbols": SYMBOLS, "kind": spaces.Discrete(3)}
    )
    moments = initial_normalizer(space, B, OBSERVATIONS_ONLY).observations
    assert set(moments) == {"vector", "counts", "symbols"}
    rng = np.random.default_rng(0)
    observations = {
        "image": rng.integers(0, 255, (T, B, *IMAGE.shape)).astype(np.uint8),
        "vector": rng.normal(7.0, 1.0, (T, B, 2)).astype(np.float32),
        "counts": rng.integers(-500, 1000, (T, B, 3)).astype(np.int32),
        "symbols": rng.integers(11, size=(T, B, *SYMBOLS.shape)).astype(np.uint8),
        "kind": rng.integers(3, size=(T, B)),
    }
    normalized = normalized_by(learn(moments, observations), observations)
    for name in moments:
        np.testing.assert_allclose(normalized[name].mean((0, 1)), 0.0, atol=1e-4)
        np.testing.assert_allclose(normalized[name].std((0, 1)), 1.0, atol=1e-3)
    np.testing.assert_array_equal(normalized["image"], observations["image"])
    np.testing.assert_array_equal(normalized["kind"], observations["kind"])


@pytest.mark.parametrize(
    "space", [COUNTS, SYMBOLS, spaces.Box(0, 255, (128,), np.uint8), spaces.Box(0, 1, (2,), bool)], ids=str
)
def test_integers_are_normalised_like_floats(space):
    rng = np.random.default_rng(0)
    observations = rng.integers(space.low, space.high, (T, B, *space.shape), endpoint=True).astype(space.dtype)
    moments = learn(initial_normalizer(space, B, OBSERVATIONS_ONLY).observations, observations)
    numbers = observations.reshape(-1, *space.shape).astype(np.float64)
    expected = (observations - numbers.mean(0)) / np.maximum(numbers.std(0), 1e-4)
    np.testing.assert_allclose(normalized_by(moments, observations), expected, atol=1e-3)


@pytest.mark.parametrize(
    ("space", "reason"),
    [
        (spaces.Discrete(3), r"Discrete\(3\): categories are one-hot"),
        (spaces.MultiBinary(2), r"MultiBinary\(2\): bits are 0 and 1"),
        (IMAGE, r"Box\(0, 255, \(9, 8, 1\), uint8\): images are divided by 255"),
        (
            spaces.Dict({"sight": IMAGE, "kind": spaces.MultiDiscrete([2, 3])}),
            r"kind: MultiDiscrete.* one-hot; sight: Box.* by 255",
        ),
    ],
    ids=["Discrete", "MultiBinary", "image", "Dict"],
)
def test_normalize_observations_is_refused_with_a_reason_if_there_are_no_numbers(space, reason):
    with pytest.raises(
        ConfigError, match=rf"normalize_observations.* has no numbers to normalise: {reason}.* leave it off"
    ):
        initial_normalizer(space, B, OBSERVATIONS_ONLY)
    assert initial_normalizer(space, B, REWARDS_ONLY).observations is None


def test_merged_moments_of_three_workers_are_the_moments_of_all_samples():
    rng = np.random.default_rng(0)
    parts = [rng.normal(mean, 2.0, (count, 2)) for mean, count in ((0, 5), (3, 50), (-1, 500))]
    rows = Moments(
        *(np.stack(x) for x in zip(*[(np.float32(len(p)), p.mean(0), p.var(0)) for p in parts], strict=True))
    )
    everything = np.concatenate(parts)
    for convert in (np.asarray, jax.numpy.asarray):
        merged = merge_moments({"sight": jax.tree.map(convert, rows), "none": None})
        assert merged["none"] is None
        assert merged["sight"].count == 555
        np.testing.assert_allclose(merged["sight"].mean, everything.mean(0), rtol=1e-5)
        np.testing.assert_allclose(merged["sight"].variance, everything.var(0), rtol=1e-5)


def test_merged_moments_of_no_samples_are_the_initial_moments():
    nothing = initial_normalizer(BOX, B, OBSERVATIONS_ONLY).observations
    merged = merge_moments(jax.tree.map(lambda x: np.stack([x] * 3), nothing))
    assert (merged.count, merged.mean.tolist(), merged.variance.tolist()) == (0, [0, 0], [1, 1])


def test_a_worker_without_samples_does_not_count():
    rows = Moments(np.float32([0, 4]), np.float32([[9, 9], [1, 2]]), np.float32([[9, 9], [3, 4]]))
    merged = merge_moments(rows)
    assert (merged.count, merged.mean.tolist(), merged.variance.tolist()) == (4, [1, 2], [3, 4])
