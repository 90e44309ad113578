"""The replay: hand-made streams, an environment that counts, and the papers' sums."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from birl.config import ConfigError
from birl.envs.serial import SerialEnvs
from birl.errors import CheckpointError
from birl.rollouts import replay as replays
from birl.rollouts.replay import LEAST_ERROR, MOST_ROWS, Indices, Replay, free_memory
from birl.rollouts.source import Collector
from birl.rollouts.sum_tree import weights_of
from birl.types import Action, Rollout, Snapshot, Transitions
from tests import oracle
from tests.envs.counting import Counting, DictCounting, MaskedCounting, counting_functions

GOES_ON, TERMINATES, TRUNCATES, IS_LOST = range(4)


# Streams: rows made by hand


@dataclass(frozen=True)
class Stream:
    """R steps of B environments as one Rollout; an observation is its row and environment."""

    steps: Rollout
    memories: np.ndarray  # [R, B, 1]

    def rollouts(self, length: int) -> list[Rollout]:
        """The stream in parts, as a collector gives it."""
        rows = range(0, len(self.steps.rewards) - length + 1, length)
        steps = self.steps._replace(observations=None, action_masks=None, memory=None)
        seen = (self.steps.observations, self.steps.action_masks)
        return [
            jax.tree.map(lambda x, t=t: x[t : t + length], steps)._replace(
                **dict(
                    zip(
                        ("observations", "action_masks"),
                        jax.tree.map(lambda x, t=t: x[t : t + length + 1], seen),
                        strict=True,
                    )
                ),
                memory=self.memories[t],
            )
            for t in rows
        ]


def stream_of(fates: np.ndarray, seed: int = 0) -> Stream:
    """Rows [R, B] that each go on, terminate, truncate or are lost; a reset follows each end."""
    rng = np.random.default_rng(seed)
    shape = fates.shape
    terminated, truncated, valid = np.zeros((3, *shape), bool)
    for t, i in np.ndindex(*shape):
        resets = t > 0 and (terminated[t - 1, i] or truncated[t - 1, i])
        valid[t, i] = not resets and fates[t, i] != IS_LOST
        terminated[t, i], truncated[t, i] = (valid[t, i] and fates[t, i] == fate for fate in (TERMINATES, TRUNCATES))
    numbers = np.moveaxis(np.indices((shape[0] + 1, shape[1])), 0, -1).astype(np.float32)
    steps = Rollout(
        observations=numbers,
        actions=rng.integers(0, 100, shape).astype(np.int32),
        rewards=np.where(valid, rng.normal(size=shape), 0).astype(np.float32),
        terminated=terminated,
        truncated=truncated,
        valid=valid,
        memory=None,
        action_masks=rng.random((shape[0] + 1, shape[1], 3)) < 0.6,
        behaviour=rng.normal(size=shape).astype(np.float32),
    )
    return Stream(steps, rng.normal(size=(*shape, 1)).astype(np.float32))


def random_stream(rows: int, num_envs: int = 3, seed: int = 0) -> Stream:
    fates = np.random.default_rng(seed).choice(4, (rows, num_envs), p=[0.75, 0.1, 0.1, 0.05])
    return stream_of(fates, seed)


def replay_of(stream: Stream, length: int, size: int = 1, **switches) -> Replay:
    """A replay with the whole stream added, as small as possible unless `size` is given."""
    return filled(stream.rollouts(length), size, **switches)


def filled(rollouts: list[Rollout], size: int = 1, **switches) -> Replay:
    """A replay with these rollouts added."""
    kept = Replay(max(size, rollouts[0].rewards.size), rollouts[0], 0.9, **switches)
    for rollout in rollouts:
        kept.require_fits(rollout)
        kept.add(rollout)
    return kept


def key(number: int) -> np.ndarray:
    return np.array([0, number], np.uint32)


def rows_written(kept: Replay) -> int:
    return int(kept.arrays.written)


def sampleable(kept: Replay) -> range:
    """The rows that may be sampled where valid."""
    return kept.rows(kept.on_host())


def every_index(kept: Replay) -> Indices:
    """Every transition that may be drawn, found by row and environment."""
    rows, envs = np.meshgrid(np.array(sampleable(kept), int), np.arange(kept.shape.num_envs), indexing="ij")
    valid = np.asarray(kept.arrays.columns.valid)[rows % kept.shape.ring_size, envs]
    return Indices(rows[valid], envs[valid], np.ones(valid.sum(), np.float32))


def gathered(kept: Replay, indices: Indices) -> Transitions:
    """The transitions at any number of indices, by a program for 64, 128, ... of them."""
    count = len(indices.rows)
    size = 1 << max(6, (count - 1).bit_length())
    padded = jax.tree.map(lambda x: np.resize(x, size), indices)
    return jax.tree.map(lambda x: np.asarray(x)[:count], kept.gather(padded))


def assert_same_trees(left, right) -> None:
    assert jax.tree.structure(left) == jax.tree.structure(right)
    jax.tree.map(np.testing.assert_array_equal, left, right)


def assert_frequencies(counts: np.ndarray, probabilities: np.ndarray) -> None:
    """χ² of the counts lies within five deviations of its mean."""
    expected = counts.sum() * probabilities / probabilities.sum()
    distance = ((counts - expected) ** 2 / expected).sum()
    freedom = counts.size - 1
    assert distance < freedom + 5 * np.sqrt(2 * freedom)


some = settings(max_examples=40)
STREAMS = st.builds(
    lambda fates, num_envs, seed: stream_of(
        np.array(fates)[: len(fates) // num_envs * num_envs].reshape(-1, num_envs), seed
    ),
    st.lists(st.sampled_from([GOES_ON, GOES_ON, GOES_ON, TERMINATES, TRUNCATES, IS_LOST]), min_size=36, max_size=60),
    st.integers(1, 3),
    st.integers(0, 100),
)


@some
@given(STREAMS, st.integers(1, 5), st.integers(1, 4), st.booleans())
def test_n_step_targets_are_the_explicit_sums_over_any_episodes_rollout_borders_and_the_rings_end(
    stream, length, n_step, small
):
    kept = replay_of(stream, length, 1 if small else 10_000, n_step=n_step)
    indices = every_index(kept)
    steps = stream.steps
    found = gathered(kept, indices)
    np.testing.assert_array_equal(found.action_masks, steps.action_masks[indices.rows, indices.envs])
    masks = steps.action_masks
    assert [x.dtype for x in jax.tree.leaves(found._replace(discounts=()))] == [
        x.dtype for x in (steps.observations, steps.actions, steps.rewards, steps.observations, masks, masks)
    ]
    values = np.random.default_rng(1).normal(size=(len(steps.rewards) + 1, kept.shape.num_envs))
    targets = oracle.n_step_returns(
        steps.rewards, steps.terminated, steps.truncated, steps.valid, values[1:], 0.9, n_step
    )
    rows, envs = found.next_observations.astype(int).T
    np.testing.assert_allclose(
        found.rewards + found.discounts * values[rows, envs], targets[indices.rows, indices.envs], atol=1e-5
    )
    np.testing.assert_array_equal(found.observations, np.stack([indices.rows, indices.envs], axis=-1))
    np.testing.assert_array_equal(found.actions, steps.actions[indices.rows, indices.envs])
    inside = rows < len(steps.rewards)
    np.testing.assert_array_equal(found.next_action_masks[inside], steps.action_masks[rows, envs][inside])
    assert sampleable(kept).stop == max(0, rows_written(kept) - n_step)
    assert (sampleable(kept).start == 0) == (rows_written(kept) <= kept.shape.ring_size)


@some
@given(STREAMS, st.integers(1, 4))
def test_no_transition_reaches_across_an_end_and_only_a_termination_has_no_bootstrap(stream, n_step):
    kept = replay_of(stream, 3, n_step=n_step)
    indices = every_index(kept)
    steps = stream.steps
    found = gathered(kept, indices)
    for row, env, after, discount in zip(
        indices.rows, indices.envs, found.next_observations[:, 0].astype(int), found.discounts, strict=True
    ):
        span = slice(row, after)
        assert 1 <= after - row <= n_step
        assert steps.valid[span, env].all()
        ended = steps.terminated[span, env] | steps.truncated[span, env]
        assert not ended[:-1].any()
        assert discount == pytest.approx(0.0 if steps.terminated[after - 1, env] else 0.9 ** (after - row))
        stopped = ended[-1] or not steps.valid[after, env]
        assert after - row == n_step or stopped


@pytest.mark.parametrize("prioritized", [False, True])
def test_rows_in_which_an_environment_reset_itself_are_never_drawn_and_all_others_are(prioritized):
    stream = stream_of(np.tile([[GOES_ON, TERMINATES], [TRUNCATES, GOES_ON]], (20, 1)))
    kept = replay_of(stream, 4, size=16, priority_exponent=0.6 if prioritized else None)
    indices = kept.sample_indices(key(0), (50, 40))
    assert not stream.steps.valid.all()
    assert stream.steps.valid[indices.rows, indices.envs].all()
    assert places(indices) == places(every_index(kept))


def places(indices: Indices) -> set[tuple[int, int]]:
    """Rows and environments."""
    rows, envs = (np.asarray(x).ravel().tolist() for x in (indices.rows, indices.envs))
    return set(zip(rows, envs, strict=True))


def counts_of(indices: Indices, rows: int) -> np.ndarray:
    """[rows, B] how often each of three environments' transitions was drawn."""
    counts = np.zeros((rows, 3))
    np.add.at(counts, (np.asarray(indices.rows), np.asarray(indices.envs)), 1)
    return counts


@pytest.mark.parametrize("rows", [30, 90])
@pytest.mark.parametrize("n_step", [1, 3])
def test_every_transition_is_drawn_with_equal_chances(rows, n_step):
    kept = replay_of(random_stream(rows), 3, size=90, n_step=n_step)
    indices = kept.sample_indices(key(1), (200, 100))
    assert np.all(indices.probabilities == 1)
    known = every_index(kept)
    counts = counts_of(indices, rows)
    assert counts.sum() == 20_000 == counts[known.rows, known.envs].sum()
    assert_frequencies(counts[known.rows, known.envs], known.probabilities)


def test_other_keys_draw_others_and_the_same_key_the_same():
    kept = replay_of(random_stream(60), 3, size=60)
    first, again, other = (kept.gather(kept.sample_indices(key(number), (50,))) for number in (1, 1, 2))
    assert_same_trees(first, again)
    assert np.any(first.rewards != other.rewards)


@pytest.mark.parametrize("exponent", [None, 0.6])
@pytest.mark.parametrize("n_step", [1, 5])
def test_it_is_ready_with_two_rollouts_one_transition_and_not_before(n_step, exponent):
    fates = np.full((30, 2), IS_LOST)
    fates[13, 1] = GOES_ON
    rollouts = stream_of(fates).rollouts(3)
    kept = Replay(60, rollouts[0], 0.9, n_step, priority_exponent=exponent)
    for rollout in rollouts:
        assert bool(kept.ready) == (rows_written(kept) > 13 + n_step)  # its successor, and n rows for all transitions
        kept.add(rollout)
    assert places(kept.sample_indices(key(0), (20,))) == {(13, 1)}
    valid = replay_of(random_stream(30), 3, size=60)
    for count in range(4):
        assert bool(filled(random_stream(30).rollouts(3)[: count + 1], 60).ready) == (count >= 1)
    assert bool(valid.ready)


@pytest.mark.parametrize("exponent", [None, 0.6])
def test_once_nothing_that_is_left_can_be_drawn_it_is_not_ready_and_does_not_wait_for_ever(exponent):
    fates = np.full((40, 1), IS_LOST)
    fates[:4] = GOES_ON
    rollouts = stream_of(fates).rollouts(2)
    kept = filled(rollouts[:3], 2, priority_exponent=exponent)
    assert kept.ready
    for rollout in rollouts[3:]:
        kept.add(rollout)
    assert not kept.ready
    assert kept.sample_indices(key(0), (2, 3)).rows.shape == (2, 3)
    empty = Replay(2, rollouts[0], 0.9, priority_exponent=exponent)
    assert not empty.ready
    assert empty.gather(empty.sample_indices(key(0), (2, 3))).rewards.shape == (2, 3)


@pytest.mark.parametrize("frame_stack", [1, 4])
@pytest.mark.parametrize("n_step", [1, 5])
@pytest.mark.parametrize("length", [1, 4])
@pytest.mark.parametrize("size", [12, 100])
def test_the_ring_holds_as_many_transitions_as_asked_for_and_few_more(size, length, n_step, frame_stack):
    stream = stacked(stream_of(np.zeros((80, 3), int)), frame_stack)
    kept = replay_of(stream, length, size, n_step=n_step, frame_stack=frame_stack)
    assert size <= 3 * len(sampleable(kept))
    assert len(kept) == 3 * kept.shape.ring_size <= size + 3 * (n_step + frame_stack + 2 * length)


def test_old_rollouts_are_overwritten_by_new_ones():
    stream = random_stream(60)
    rollouts = stream.rollouts(5)
    kept = Replay(15, rollouts[0], 0.9)
    assert (len(kept), len(sampleable(kept))) == (0, 0)
    for number, rollout in enumerate(rollouts, start=1):
        kept.add(rollout)
        newest = range(max(0, 5 * number - kept.shape.ring_size), 5 * number - 1)
        assert sampleable(kept) == newest
        assert len(kept) == 3 * min(5 * number, kept.shape.ring_size)
        indices = every_index(kept)
        np.testing.assert_array_equal(gathered(kept, indices).rewards, stream.steps.rewards[indices.rows, indices.envs])


def test_what_is_added_is_copied():
    stream = random_stream(20)
    kept = replay_of(stream, 5)
    indices = every_index(kept)
    before = jax.tree.map(np.copy, gathered(kept, indices))
    stream.steps.rewards[:], stream.steps.observations[:] = -1, -1
    assert_same_trees(gathered(kept, indices), before)


def test_a_replay_smaller_than_a_rollout_is_refused_with_the_numbers():
    with pytest.raises(ConfigError, match="replay_size 14 must hold a rollout: 5 steps of 3 environments"):
        Replay(14, random_stream(5).rollouts(5)[0], 0.9)


# An environment that counts


@jax.jit
def draw_actions(policy, observations, memory, resets, masks, key):
    """Random actions. The memory counts the steps since it was emptied."""
    memory = jnp.where(resets[:, None], 0.0, memory) + 1.0
    return Action(jax.random.randint(key, resets.shape, 0, 3), memory)


@cache
def counted(kind: type[Counting]) -> list[Rollout]:
    """Rollouts of three environments: one terminates, one is truncated, one does both."""
    envs = SerialEnvs(counting_functions([(5, 100), (100, 4), (3, 3)], kind))
    collector = Collector(envs, draw_actions, 4, np.zeros((3, 1), np.float32))
    collector.start(0)
    return [collector.collect(None, np.array([7, number], np.uint32)) for number in range(20)]


def test_what_is_drawn_happened_and_a_cut_episodes_successor_is_its_own_last_observation():
    rollouts = counted(Counting)
    kept = filled(rollouts, 60)
    found = gathered(kept, kept.sample_indices(key(0), (2000,)))
    (names, steps, totals), after = found.observations.T, found.next_observations
    np.testing.assert_array_equal(after, np.stack([names, steps + 1, totals + found.actions], axis=-1))
    np.testing.assert_array_equal(found.rewards, 10 * (steps + 1) + found.actions)
    goals, limits = np.array([5, 100, 3])[names.astype(int)], np.array([100, 4, 3])[names.astype(int)]
    np.testing.assert_array_equal(found.discounts, np.where(after[:, 2] >= goals, 0, np.float32(0.9)))
    cut = (after[:, 1] == limits) & (after[:, 2] < goals)
    assert cut.sum() > 100
    assert np.all(found.discounts[cut] == np.float32(0.9))


def test_the_next_action_mask_is_that_of_the_next_observation():
    rollouts = counted(MaskedCounting)
    kept = filled(rollouts, 60, n_step=2)
    found = gathered(kept, every_index(kept))
    names, steps, totals = found.next_observations.T.astype(int)
    terminated = totals >= np.array([5, 100, 3])[names]
    assert np.any(~terminated & (steps >= np.array([100, 4, 3])[names])), "some are truncated"
    np.testing.assert_array_equal(found.next_action_masks[~terminated], np.arange(3) != (steps % 3)[~terminated, None])


def test_every_part_of_a_dict_observation_is_kept_with_its_type():
    rollouts = counted(DictCounting)
    kept = filled(rollouts, 40)
    assert rows_written(kept) > kept.shape.ring_size
    whole = jax.tree.map(
        lambda *parts: np.concatenate([*(part[:-1] for part in parts), parts[-1][-1:]]),
        *(rollout.observations for rollout in rollouts),
    )
    indices = every_index(kept)
    found = gathered(kept, indices)
    assert isinstance(found.observations, dict)
    assert len(found.observations) >= 4
    assert_same_trees(found.observations, jax.tree.map(lambda x: x[indices.rows, indices.envs], whole))
    assert_same_trees(found.next_observations, jax.tree.map(lambda x: x[indices.rows + 1, indices.envs], whole))
    types = [jax.dtypes.canonicalize_dtype(x.dtype) for x in jax.tree.leaves(whole)]  # JAX has no 64 bits
    assert [x.dtype for x in jax.tree.leaves(found.observations)] == types
    arrays = jax.tree.leaves((kept.arrays.columns, kept.arrays.begins, kept.arrays.memories))
    assert kept.bytes == sum(array.nbytes for array in arrays)


def test_a_snapshot_with_numbers_of_64_bits_is_read():
    """The former replay of the host kept observations of Discrete spaces like this."""
    rollouts = counted(DictCounting)
    assert np.int64 in [x.dtype for x in jax.tree.leaves(rollouts[0].observations)]
    kept = filled(rollouts, 40)
    snapshot = through_a_file(kept.snapshot(Snapshot()))
    wide = {
        name: array.astype(np.int64) if array.dtype == np.int32 else array for name, array in snapshot.arrays.items()
    }
    again = Replay(40, rollouts[0], 0.9)
    again.restore(Snapshot(wide, snapshot.values), np.zeros(3, bool))
    assert_same_trees(again.arrays, kept.arrays)


# Priorities


def weights_by_row(kept: Replay) -> np.ndarray:
    """[rows, B], rows counted in the ring."""
    shape = kept.shape.ring_size, kept.shape.num_envs
    return np.asarray(weights_of(kept.arrays.sums))[: np.prod(shape)].reshape(shape)


@pytest.mark.parametrize("exponent", [0.0, 0.6, 1.0])
def test_transitions_are_drawn_in_proportion_to_their_errors_to_the_alpha(exponent):
    kept = replay_of(random_stream(60), 3, size=60, priority_exponent=exponent)
    indices = every_index(kept)
    errors = np.random.default_rng(0).normal(size=indices.rows.shape) * 3
    kept.set_errors(indices, errors)
    drawn = kept.sample_indices(key(1), (300, 200))
    counts = counts_of(drawn, 60)
    probabilities = np.abs(errors) ** exponent
    likely = probabilities > 0.02
    assert counts.sum() == counts[indices.rows, indices.envs].sum()
    assert_frequencies(counts[indices.rows, indices.envs][likely], probabilities[likely])


def test_the_chances_handed_out_are_those_with_which_they_were_drawn():
    kept = replay_of(random_stream(60), 3, size=60, priority_exponent=0.6)
    indices = every_index(kept)
    errors = np.random.default_rng(0).normal(size=indices.rows.shape)
    kept.set_errors(indices, errors)
    true = np.zeros((60, 3))
    true[indices.rows, indices.envs] = (np.abs(errors) + LEAST_ERROR) ** 0.6
    known = indices.rows % kept.shape.ring_size, indices.envs
    np.testing.assert_allclose(weights_by_row(kept)[known], true[indices.rows, indices.envs], rtol=1e-5)
    drawn = kept.sample_indices(key(1), (500,))
    np.testing.assert_allclose(drawn.probabilities, true[drawn.rows, drawn.envs], rtol=1e-5)


def test_a_transition_without_any_error_can_be_drawn_again():
    kept = replay_of(random_stream(30), 3, priority_exponent=0.6)
    indices = every_index(kept)
    kept.set_errors(indices, np.zeros(indices.rows.shape))
    assert np.all(kept.sample_indices(key(0), (100,)).probabilities > 0)


@some
@given(STREAMS, st.integers(1, 4), st.integers(1, 4), st.integers(1, 4), st.integers(0, 100))
def test_after_any_rollouts_and_errors_exactly_what_may_be_drawn_has_a_weight(
    stream, length, n_step, frame_stack, seed
):
    rollouts = stacked(stream, frame_stack).rollouts(length)
    kept = Replay(rollouts[0].rewards.size, rollouts[0], 0.9, n_step, frame_stack, priority_exponent=1.0)
    for number, rollout in enumerate(rollouts):
        kept.add(rollout)
        known = every_index(kept)
        expected = np.zeros((kept.shape.ring_size, kept.shape.num_envs), bool)
        expected[known.rows % kept.shape.ring_size, known.envs] = True
        np.testing.assert_array_equal(weights_by_row(kept) > 0, expected)
        assert bool(kept.shape.can_sample(kept.arrays)) == (known.rows.size > 0)
        if known.rows.size:
            drawn = kept.sample_indices(key(seed + number), (4,))
            assert places(drawn) <= places(known)
            kept.set_errors(drawn, np.random.default_rng(seed + number).exponential(size=4))


def test_new_transitions_get_the_largest_priority_so_far_and_overwritten_ones_lose_theirs():
    stream = stream_of(np.zeros((60, 2), int))
    rollouts = stream.rollouts(2)
    kept = Replay(8, rollouts[0], 0.9, priority_exponent=0.5)
    for rollout in rollouts[:2]:
        kept.add(rollout)
    indices = every_index(kept)
    assert np.all(weights_by_row(kept)[indices.rows, indices.envs] == 1.0)  # 1 before any error is known
    kept.set_errors(indices, np.linspace(0, 9, indices.rows.size))
    largest = (9 + LEAST_ERROR) ** 0.5
    kept.add(rollouts[2])
    new = [row for row in sampleable(kept) if row > indices.rows.max()]
    np.testing.assert_allclose(weights_by_row(kept)[new], largest, rtol=1e-6)

    kept.set_errors(every_index(kept), np.zeros(every_index(kept).rows.size))
    for rollout in rollouts[3 : 4 + kept.shape.ring_size // 2]:
        kept.add(rollout)  # now all of them are new
    known = every_index(kept)
    np.testing.assert_allclose(kept.arrays.sums[1], largest * known.rows.size, rtol=1e-6)


def test_of_a_transition_drawn_twice_the_last_error_counts():
    kept = replay_of(stream_of(np.zeros((12, 1), int)), 3, priority_exponent=1.0)
    row = sampleable(kept).start
    kept.set_errors(
        Indices(np.array([[row], [row]]), np.zeros((2, 1), int), np.ones((2, 1))), np.array([[5.0], [-2.0]])
    )
    assert weights_by_row(kept)[row % kept.shape.ring_size, 0] == pytest.approx(2.0)


def test_without_priorities_errors_change_nothing():
    kept = replay_of(random_stream(30), 3)
    before = kept.arrays
    kept.set_errors(kept.sample_indices(key(0), (50,)), np.full(50, 9.0))
    assert kept.arrays is before


def test_errors_of_nothing_change_nothing():
    kept = replay_of(random_stream(30), 3, priority_exponent=1.0)
    before = jax.tree.map(np.array, kept.arrays)
    nowhere = Indices(np.full(4, -1, np.int32), np.full(4, -1, np.int32), np.full(4, np.nan, np.float32))
    kept.set_errors(nowhere, np.array([99.0, np.nan, np.inf, 0.0]))
    assert_same_trees(kept.arrays, before)


@pytest.mark.parametrize("length", [1, 3])
def test_a_row_whose_older_frames_were_overwritten_is_never_drawn(length):
    stream = stacked(stream_of(np.zeros((60, 2), int)), 4)
    rollouts = stream.rollouts(length)
    for exponent in (None, 1.0):
        kept = Replay(10, rollouts[0], 0.9, 1, 4, exponent)
        for rollout in rollouts:
            kept.add(rollout)
            oldest = max(0, rows_written(kept) - kept.shape.ring_size)
            if rows_written(kept) >= 2 * length:
                first = oldest + 3 if oldest else 0
                drawn = kept.sample_indices(key(rows_written(kept)), (500,))
                assert places(drawn) == {(row, env) for row in range(first, rows_written(kept) - 1) for env in (0, 1)}
                np.testing.assert_array_equal(
                    kept.gather(drawn).observations, stream.steps.observations[drawn.rows, drawn.envs]
                )


# Sequences


def located(stream: Stream, behaviour: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows and environments of steps, known by their behaviour, of which no two are alike."""
    known = stream.steps.behaviour.ravel()
    order = np.argsort(known)
    return np.divmod(order[np.searchsorted(known, behaviour, sorter=order)], stream.steps.behaviour.shape[1])


@pytest.mark.parametrize("frame_stack", [1, 3])
@pytest.mark.parametrize("length", [2, 5])
def test_sequences_are_whole_rollouts_with_the_memory_they_began_with_drawn_with_equal_chances(length, frame_stack):
    stream = stacked(random_stream(60), frame_stack)
    kept = replay_of(stream, length, size=45, frame_stack=frame_stack)
    assert rows_written(kept) > kept.shape.ring_size
    drawn = kept.sample_sequences(key(0), (30, 40))
    rows, envs = located(stream, drawn.behaviour[:, 0])  # [G, N] where each begins
    assert not np.any(rows % length)
    several = rows[:, None] + np.arange(length + 1)[:, None], envs[:, None]  # [G, T+1, N]
    originals = stream.steps._replace(observations=None, action_masks=None)
    steps = jax.tree.map(lambda x: x[several[0][:, :-1], several[1]], originals)
    assert_same_trees(drawn._replace(observations=None, action_masks=None, memory=None, resets=None), steps)
    np.testing.assert_array_equal(drawn.observations, stream.steps.observations[several])
    np.testing.assert_array_equal(drawn.action_masks, stream.steps.action_masks[several])
    np.testing.assert_array_equal(drawn.memory, stream.memories[rows, envs])
    # Row 0 is overwritten, so there is always a row before.
    np.testing.assert_array_equal(drawn.resets, ~stream.steps.valid[rows - 1, envs])
    counts = np.zeros((len(stream.rollouts(length)), 3))
    np.add.at(counts, (rows // length, envs), 1)
    kept_rollouts = np.flatnonzero(counts.any(axis=1))
    assert kept_rollouts.tolist() == list(range(-(-sampleable(kept).start // length), len(counts) - 1))
    assert len(kept_rollouts) * length * 3 >= 45
    assert_frequencies(counts[kept_rollouts].ravel(), np.ones(counts[kept_rollouts].size))


def test_the_memory_of_a_sequence_is_the_collectors_at_its_start():
    rollouts = counted(Counting)
    kept = filled(rollouts, 40)
    drawn = kept.sample_sequences(key(0), (3, 50))
    assert drawn.action_masks is None
    # The memory counts steps since the reset, and in a reset's row one more.
    np.testing.assert_array_equal(np.where(drawn.resets, 0, drawn.memory[..., 0]), drawn.observations[:, 0, :, 1])


# Stacked frames


def stacked(stream: Stream, frame_stack: int, seed: int = 0) -> Stream:
    """The stream with stacks of random frames of 2 x 3, newest last; unchanged for stacks of 1."""
    if frame_stack == 1:
        return stream
    shape = stream.steps.observations.shape[:2]
    frames = np.random.default_rng(seed).integers(0, 256, (*shape, 2, 3), dtype=np.uint8)
    observations = stacks_of(frames, stream.steps.valid, frame_stack)
    return replace(stream, steps=stream.steps._replace(observations=observations))


def stacks_of(frames: np.ndarray, valid: np.ndarray, frame_stack: int) -> np.ndarray:
    """Stacks [R+1, B, frame_stack, ...], newest last; an episode's first is one frame repeated."""
    stacks = np.zeros((*frames.shape[:2], frame_stack, *frames.shape[2:]), frames.dtype)
    for t, i in np.ndindex(*frames.shape[:2]):
        begins = t == 0 or not valid[t - 1, i]
        stacks[t, i] = frames[t, i] if begins else np.concatenate([stacks[t - 1, i, 1:], frames[t, i][None]])
    return stacks


@some
@given(STREAMS, st.integers(1, 4), st.integers(2, 4), st.integers(1, 3))
def test_stacks_are_rebuilt_bit_for_bit_across_episode_starts_rollout_borders_and_the_rings_end(
    stream, length, frame_stack, n_step
):
    stream = stacked(stream, frame_stack)
    kept = replay_of(stream, length, n_step=n_step, frame_stack=frame_stack)
    size = kept.shape.ring_size * kept.shape.num_envs
    numbered = replay_of(stream_with_numbers(stream), length, size, n_step=n_step)
    indices = every_index(kept)
    rows, envs = gathered(numbered, indices).next_observations.astype(int).T
    found = gathered(kept, indices)
    assert found.observations.dtype == np.uint8
    np.testing.assert_array_equal(found.observations, stream.steps.observations[indices.rows, indices.envs])
    np.testing.assert_array_equal(found.next_observations, stream.steps.observations[rows, envs])


def stream_with_numbers(stream: Stream) -> Stream:
    """This stream with rows and environments as its observations."""
    numbers = np.moveaxis(np.indices(stream.steps.observations.shape[:2]), 0, -1).astype(np.float32)
    return replace(stream, steps=stream.steps._replace(observations=numbers))


def test_of_k_stacked_frames_one_is_kept():
    stream = stacked(random_stream(60), 4)
    kept, plain = replay_of(stream, 5, frame_stack=4), replay_of(stream, 5)
    of_row, of_plain_row = (each.arrays.columns.observations.nbytes / each.shape.ring_size for each in (kept, plain))
    assert 4 * of_row == of_plain_row


@pytest.mark.parametrize("length", [1, 4])
def test_observations_that_are_no_stacks_are_refused(length):
    stream = stacked(random_stream(12), 4)
    observations = stream.steps.observations
    for wrong in (
        observations[:, :, ::-1],  # newest first
        np.random.default_rng(0).integers(0, 256, observations.shape, dtype=np.uint8),
        observations * np.array([0, 0, 0, 1], np.uint8)[:, None, None],  # zeros before the newest
    ):
        with pytest.raises(ConfigError, match=r"not stacks of frames, newest last, .* use frame_stack 1"):
            replay_of(replace(stream, steps=stream.steps._replace(observations=wrong)), length, frame_stack=4)


def test_one_frame_out_of_order_is_noticed_wherever_it_is():
    stream = stacked(stream_of(np.zeros((8, 1), int)), 3)
    for row in range(1, 9):
        observations = stream.steps.observations.copy()
        observations[row, 0, 0] += 1
        with pytest.raises(ConfigError, match="not stacks"):
            replay_of(replace(stream, steps=stream.steps._replace(observations=observations)), 4, frame_stack=3)


def test_observations_of_another_shape_are_refused_with_it():
    with pytest.raises(ConfigError, match=re.escape("frame_stack 4 does not fit observations of shape (2,); use 1")):
        replay_of(random_stream(12), 4, frame_stack=4)


# Snapshots


def through_a_file(snapshot: Snapshot) -> Snapshot:
    """As a checkpoint gives it back."""
    arrays = {name: array.copy() for name, array in snapshot.arrays.items()}
    return Snapshot(arrays, json.loads(json.dumps(snapshot.values)), snapshot.exact, snapshot.reason)


SETTINGS = {
    "plain": {},
    "n steps": {"n_step": 3},
    "priorities": {"priority_exponent": 0.6},
    "stacks": {"frame_stack": 3},
    "all": {"n_step": 2, "priority_exponent": 0.6, "frame_stack": 2},
}


@pytest.mark.parametrize("switches", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("before", [0, 1, 2, 17])
def test_a_restored_replay_goes_on_as_if_nothing_had_happened(before, switches):
    stream = stacked(random_stream(100), switches.get("frame_stack", 1))
    rollouts = stream.rollouts(4)
    first = Replay(20, rollouts[0], 0.9, **switches)
    for rollout in rollouts[:before]:
        first.add(rollout)
    if len(sampleable(first)):
        drawn = first.sample_indices(key(5), (10,))
        first.set_errors(drawn, np.random.default_rng(6).exponential(3, 10))
    snapshot = through_a_file(first.snapshot(Snapshot({"own": np.ones(1)}, {"mine": 1}, False, "why")))
    assert (snapshot.arrays["own"].tolist(), snapshot.values["mine"], snapshot.exact, snapshot.reason) == (
        [1.0],
        1,
        False,
        "why",
    )
    again = Replay(20, rollouts[0], 0.9, **switches)
    again.restore(snapshot, np.zeros(3, bool))
    assert_same_trees(again.arrays, first.arrays)
    for rollout in rollouts[before : before + 6]:
        for kept in (first, again):
            kept.add(rollout)
        if len(sampleable(first)):
            left, right = (kept.sample_indices(key(7), (5, 20)) for kept in (first, again))
            assert_same_trees(left, right)
            assert_same_trees(first.gather(left), again.gather(right))
        if rows_written(first) > 8:
            assert_same_trees(*(kept.sample_sequences(key(8), (2, 9)) for kept in (first, again)))
        assert_same_trees(again.arrays, first.arrays)


def test_a_snapshot_holds_only_what_was_written():
    stream = random_stream(100)
    rollouts = stream.rollouts(4)
    kept = Replay(200, rollouts[0], 0.9, priority_exponent=0.6)
    kept.add(rollouts[0])
    sizes = {len(array) for array in kept.snapshot(Snapshot()).arrays.values()}
    assert sizes == {4, 1}  # rows, and the memory before them


@pytest.mark.parametrize("exponent", [None, 0.6])
@pytest.mark.parametrize("n_step", [1, 2, 3])
def test_where_an_environment_began_anew_its_last_step_is_never_drawn_and_nothing_reaches_across(n_step, exponent):
    stream = stream_of(np.zeros((80, 2), int))
    rollouts = stream.rollouts(4)
    for before in (2, 7):  # before and after the ring is full
        first = Replay(20, rollouts[0], 0.9, n_step, priority_exponent=exponent)
        for rollout in rollouts[:before]:
            first.add(rollout)
        again = Replay(20, rollouts[0], 0.9, n_step, priority_exponent=exponent)
        last = 4 * before - 1
        again.restore(through_a_file(first.snapshot(Snapshot())), np.array([True, False]))
        for rollout in rollouts[before : before + 2]:
            again.add(rollout)
        indices = again.sample_indices(key(0), (2000,))
        drawn = places(indices)
        assert drawn == places(every_index(again))
        assert (last, 0) not in drawn
        assert {(last, 1), (last - 1, 0), (last + 1, 0)} <= drawn
        found = gathered(again, indices)
        indices = jax.tree.map(np.asarray, indices)
        near = (indices.envs == 0) & (indices.rows < last)
        after = found.next_observations[near, 0]
        np.testing.assert_array_equal(after, np.minimum(indices.rows[near] + n_step, last))
        np.testing.assert_allclose(found.discounts[near], 0.9 ** (after - indices.rows[near]), rtol=1e-6)


def test_where_an_environment_began_anew_a_stack_begins_anew():
    before, after = stream_of(np.zeros((8, 1), int)), stream_of(np.zeros((8, 1), int))
    before, after = stacked(before, 3, seed=0), stacked(after, 3, seed=1)
    rollouts = before.rollouts(4) + after.rollouts(4)
    first, again = (Replay(40, rollouts[0], 0.9, frame_stack=3) for _ in range(2))
    for rollout in rollouts[:2]:
        first.add(rollout)
    again.restore(through_a_file(first.snapshot(Snapshot())), np.array([True]))
    for rollout in rollouts[2:]:
        again.add(rollout)
    indices = every_index(again)
    originals = np.concatenate([before.steps.observations[:8], after.steps.observations])
    found = gathered(again, indices)
    np.testing.assert_array_equal(found.observations, originals[indices.rows, 0])
    np.testing.assert_array_equal(found.next_observations, originals[indices.rows + 1, 0])
    assert 7 not in indices.rows


@pytest.mark.parametrize("switches", SETTINGS.values(), ids=SETTINGS)
def test_a_snapshot_of_another_replay_is_refused(switches):
    stream = stacked(random_stream(100), switches.get("frame_stack", 1))
    rollouts = stream.rollouts(4)
    good = through_a_file(filled(rollouts, 20, **switches).snapshot(Snapshot()))
    values = good.values["replay"]

    def replaced(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Snapshot:
        return Snapshot(good.arrays | {f"replay/{name}": change(good.arrays[f"replay/{name}"])}, good.values)

    every = [name.removeprefix("replay/") for name in good.arrays]
    wrong = [
        Snapshot({}, good.values),
        Snapshot(good.arrays, {}),
        *(Snapshot(good.arrays, {"replay": values | {name: bad}}) for name in values for bad in (None, "many", [1, 2])),
        *(Snapshot(good.arrays, {"replay": {key: values[key] for key in values if key != name}}) for name in values),
        Snapshot(good.arrays, {"replay": values | {"written": 8}}),
        *(replaced(name, lambda array: array[:-1]) for name in every),  # a smaller replay
        *(replaced(name, lambda array: np.concatenate([array, array])) for name in every),
        *(replaced(name, lambda array: array[:, :-1]) for name in every),  # fewer environments
        *(replaced(name, lambda array: np.repeat(array, 2, axis=1)) for name in every),
        replaced("0", lambda array: array[..., :-1]),  # smaller observations
        replaced("5", lambda array: array.astype(np.float32)),
    ]
    for snapshot in wrong:
        with pytest.raises(CheckpointError, match="the checkpoint's snapshot does not fit this run"):
            Replay(20, rollouts[0], 0.9, **switches).restore(snapshot, np.zeros(3, bool))


FATES = [[0, 0], [0, 1], [2, 0], [0, 0], [0, 0], [0, 3], [0, 0], [1, 0], [0, 0], [0, 2], [0, 0], [0, 0], [0, 0], [0, 0],
         [2, 0], [0, 0], [0, 1], [0, 0], [0, 0], [0, 0]]  # fmt: skip


def recorded_stream(frame_stack: int) -> Stream:
    """The stream of old_snapshots.json; its numbers are made of their rows and environments."""
    stream = stream_of(np.array(FATES))
    rows, envs = np.indices((21, 2))
    actions, rewards = (10 * rows + envs).astype(np.int32), (rows + envs / 2).astype(np.float32)
    observations, memories = stream.steps.observations, (100.0 * rows + envs)[..., None].astype(np.float32)
    if frame_stack > 1:
        observations = stacks_of((2 * rows + envs).astype(np.uint8)[..., None], stream.steps.valid, frame_stack)
    steps = stream.steps._replace(observations=observations, actions=actions[:-1], rewards=rewards[:-1])
    return Stream(steps._replace(action_masks=None, behaviour=None), memories[:-1, :, : 1 if frame_stack == 1 else 0])


def recorded(name: str) -> Snapshot:
    """A snapshot that Birl wrote at commit 8d62af2, when there were two kinds of replays."""
    found = json.loads((Path(__file__).parent / "old_snapshots.json").read_text())[name]
    arrays = {name: np.array(array, dtype) for name, (dtype, array) in found["arrays"].items()}
    return Snapshot(arrays, found["values"])


def test_a_snapshot_of_the_former_replay_of_the_host_is_read():
    """The ring is full, of stacked frames with priorities; the stack of environment 1 goes on."""
    stream = recorded_stream(3)
    rollouts = [rollout._replace(memory=()) for rollout in stream.rollouts(2)]
    kept = Replay(8, rollouts[0], 0.9, n_step=2, frame_stack=3, priority_exponent=0.5)
    snapshot = recorded("host")
    kept.restore(snapshot, np.zeros(2, bool))
    assert (rows_written(kept), float(kept.arrays.largest)) == (18, np.float32(4.922500718310795))
    assert kept.arrays.follows.tolist() == [True, True]  # the last step of 0; "continues" of 1
    assert_same_trees(weights_by_row(kept), snapshot.arrays["replay/7"].astype(np.float32))
    again = kept.snapshot(Snapshot())
    assert again.values == json.loads(json.dumps(snapshot.values | {"replay": again.values["replay"]}))
    assert again.values["replay"]["continues"] == [False, True]
    assert again.arrays.keys() == snapshot.arrays.keys()
    for name, array in again.arrays.items():
        np.testing.assert_array_equal(array, snapshot.arrays[name].astype(array.dtype))
    assert sampleable(kept) == range(10, 16)
    assert places(every_index(kept)) == places(kept.sample_indices(key(0), (1000,)))
    fresh = Replay(8, rollouts[0], 0.9, n_step=2, frame_stack=3, priority_exponent=0.5)
    fresh.restore(snapshot, np.ones(2, bool))
    assert fresh.arrays.follows.tolist() == [False, False]
    assert_recorded(kept, stream, 2)
    kept.arrays = kept.arrays._replace(follows=kept.arrays.columns.valid[7])  # in the stream, 1 begins anew
    kept.add(rollouts[9])
    assert_recorded(kept, stream, 2)


def test_a_snapshot_of_the_former_replay_of_compiled_environments_is_read():
    """It counts rows modulo the ring's size, which is 6, and holds memories."""
    stream = recorded_stream(1)
    rollouts = stream.rollouts(2)
    kept = Replay(4, rollouts[0], 0.9, n_step=2)
    kept.restore(recorded("compiled"), np.zeros(2, bool))
    assert (rows_written(kept), kept.shape.ring_size) == (6, 6)
    assert places(every_index(kept)) == places(kept.sample_indices(key(0), (500,)))
    assert_recorded(kept, stream, 2, ahead=12)
    sequences = kept.sample_sequences(key(0), (40,))
    rows = sequences.observations[0, :, 0].astype(int)
    assert set(rows.tolist()) == {12, 14}
    np.testing.assert_array_equal(sequences.memory[:, 0], 100 * rows + sequences.observations[0, :, 1])
    kept.add(rollouts[9])
    assert_recorded(kept, stream, 2, ahead=12)


def assert_recorded(kept: Replay, stream: Stream, n_step: int, ahead: int = 0) -> None:
    """Every transition of a replay is that of the stream; its rows are `ahead` more there."""
    indices = every_index(kept)
    found = gathered(kept, indices)
    assert len(indices.rows) >= 5
    steps = stream.steps
    for number, (row, env) in enumerate(zip(indices.rows + ahead, indices.envs, strict=True)):
        rows = oracle.episode_rows(row, env, steps.terminated, steps.truncated, steps.valid)[:n_step]
        np.testing.assert_array_equal(found.observations[number], steps.observations[row, env])
        np.testing.assert_array_equal(found.next_observations[number], steps.observations[rows[-1] + 1, env])
        assert found.actions[number] == 10 * row + env
        assert found.rewards[number] == pytest.approx(sum(0.9**k * (each + env / 2) for k, each in enumerate(rows)))
        bootstrap = 0.0 if steps.terminated[rows[-1], env] else 0.9 ** len(rows)
        assert found.discounts[number] == pytest.approx(bootstrap)


@pytest.mark.parametrize("rows", [2**31, 2**33 + 4, 10**12])
def test_a_snapshot_with_more_rows_than_32_bits_count_is_read(rows):
    """The former replay of the host counted them in 64 bits."""
    stream = stacked(random_stream(100), 3)
    rollouts = stream.rollouts(4)
    few = filled(rollouts[:17], 20, n_step=2, frame_stack=3, priority_exponent=0.6)
    rows = (rows // few.shape.ring_size) * few.shape.ring_size + rows_written(few) % few.shape.ring_size
    snapshot = through_a_file(few.snapshot(Snapshot()))
    snapshot.values["replay"]["written"] = rows
    many = Replay(20, rollouts[0], 0.9, n_step=2, frame_stack=3, priority_exponent=0.6)
    many.restore(snapshot, np.zeros(3, bool))
    assert_same_but_for_rows(few, many)


# Rows are counted in 32 bits


def assert_same_but_for_rows(few: Replay, many: Replay) -> None:
    """Both hold and sample the same; their rows are counted from different ones."""
    ring_size = few.shape.ring_size
    assert ring_size < rows_written(many) <= 2**31 - 1
    assert (rows_written(many) - rows_written(few)) % ring_size == 0
    ahead = rows_written(many) - rows_written(few)
    assert_same_trees(
        few.arrays._replace(written=few.arrays.written + ahead, newest=few.arrays.newest + ahead), many.arrays
    )
    left, right = (kept.sample_indices(key(1), (50,)) for kept in (few, many))
    assert np.all(right.rows - left.rows == ahead)
    assert_same_trees(few.gather(left), many.gather(right))
    assert_same_trees(*(kept.sample_sequences(key(2), (20,)) for kept in (few, many)))


@pytest.mark.parametrize("switches", SETTINGS.values(), ids=SETTINGS)
def test_what_is_sampled_does_not_change_when_the_count_of_rows_wraps(switches):
    rollouts = stacked(random_stream(120), switches.get("frame_stack", 1)).rollouts(4)
    few, many = (filled(rollouts[:17], 20, **switches) for _ in range(2))
    ring_size = few.shape.ring_size
    close = MOST_ROWS // ring_size * ring_size + rows_written(few) % ring_size
    many.arrays = many.arrays._replace(written=jnp.int32(close))
    counts = [rows_written(many)]
    for number, rollout in enumerate(rollouts[17:]):
        indices = few.sample_indices(key(number), (6,)), many.sample_indices(key(number), (6,))
        for kept, own in zip((few, many), indices, strict=True):
            kept.set_errors(own, np.random.default_rng(number).exponential(size=6))
            kept.add(rollout)
        assert_same_but_for_rows(few, many)
        counts.append(rows_written(many))
    assert max(counts) > MOST_ROWS - ring_size
    assert ring_size < min(counts) <= 2 * ring_size, "it wrapped"


# In programs


@partial(jax.jit, donate_argnames="replay")
def turn_in_a_program(replay: Replay, rollout: Rollout, key: jax.Array, errors: jax.Array) -> tuple[Replay, tuple]:
    """What `turn` does, as one program."""
    found = turn(replay, rollout, key, errors)
    return replay, found


def turn(replay: Replay, rollout: Rollout, key: jax.Array, errors: jax.Array) -> tuple:
    """Call every method once."""
    replay.add(rollout)
    indices = replay.sample_indices(key, (4, 5))
    found = replay.ready, indices, replay.gather(indices), replay.sample_sequences(key, (2, 3))
    replay.set_errors(indices, errors)
    return found


@pytest.mark.parametrize("switches", SETTINGS.values(), ids=SETTINGS)
def test_every_method_gives_the_same_inside_and_outside_a_program_bit_for_bit(switches):
    rollouts = stacked(random_stream(100), switches.get("frame_stack", 1)).rollouts(4)
    inside, outside = (filled(rollouts[:2], 20, **switches) for _ in range(2))
    for number, rollout in enumerate(rollouts[2:]):
        errors = np.random.default_rng(number).normal(size=(4, 5)).astype(np.float32)
        inside, found = turn_in_a_program(inside, rollout, key(number), errors)
        assert_same_trees(turn(outside, rollout, key(number), errors), found)
        assert_same_trees(outside.arrays, inside.arrays)
    assert rows_written(outside) > 2 * outside.shape.ring_size


@pytest.mark.parametrize("switches", SETTINGS.values(), ids=SETTINGS)
def test_outside_programs_the_ring_is_written_in_place_also_after_a_snapshot(switches):
    stream = stacked(random_stream(100), switches.get("frame_stack", 1))
    rollouts = stream.rollouts(4)
    kept = filled(rollouts[:2], 2000, **switches)
    before = pointers(kept)
    for number, rollout in enumerate(rollouts[2:]):
        kept.add(rollout)
        indices = kept.sample_indices(key(number), (5,))
        kept.set_errors(indices, np.ones(5))
        if number % 3 == 0:
            kept.snapshot(Snapshot())
        assert pointers(kept) == before


def pointers(kept: Replay) -> list[int]:
    """Where the large arrays are in memory."""
    arrays = kept.arrays
    large = jax.tree.leaves((arrays.columns, arrays.begins, arrays.memories, arrays.sums))
    return [array.unsafe_buffer_pointer() for array in large]


@pytest.mark.parametrize("switches", SETTINGS.values(), ids=SETTINGS)
def test_arrays_of_a_snapshot_do_not_change_with_the_replay(switches):
    rollouts = stacked(random_stream(100), switches.get("frame_stack", 1)).rollouts(4)
    kept = filled(rollouts[:17], 20, **switches)
    snapshot = kept.snapshot(Snapshot())
    before = through_a_file(snapshot)
    for rollout in rollouts[17:]:
        kept.add(rollout)
        kept.set_errors(kept.sample_indices(key(0), (5,)), np.ones(5))
    assert_same_trees(snapshot.arrays, before.arrays)


def temporary_bytes(size: int, frame_stack: int, exponent: float | None) -> int:
    """The memory that a program needs beside its arguments, to add and sample in a loop."""
    rollout = stacked(random_stream(4), frame_stack).rollouts(4)[0]
    kept = Replay(size, rollout, 0.9, 2, frame_stack, exponent)

    def cycle(number: int, replay: Replay) -> Replay:
        replay.add(rollout._replace(rewards=rollout.rewards + number))
        key = jax.random.fold_in(jax.random.PRNGKey(0), number)

        def sample() -> tuple[Indices, jax.Array]:
            indices = replay.sample_indices(key, (1, 8))
            return indices, replay.gather(indices).rewards

        nothing = jax.tree.map(lambda x: jnp.full(x.shape, -1, x.dtype), jax.eval_shape(sample))
        replay.set_errors(*jax.lax.cond(replay.ready, sample, lambda: nothing))
        return replay

    program = jax.jit(lambda replay: jax.lax.fori_loop(0, 100, cycle, replay), donate_argnums=0)
    return program.lower(kept).compile().memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize("frame_stack", [1, 3])
@pytest.mark.parametrize("exponent", [None, 0.6])
def test_a_loop_writes_to_the_ring_in_place_without_a_copy_of_any_column(exponent, frame_stack):
    small, large = (temporary_bytes(size, frame_stack, exponent) for size in (1000, 200_000))
    assert large < small + 100_000  # less than one column of one byte for each step


# Memory


@pytest.mark.parametrize("switches", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("size", [12, 1000])
def test_bytes_is_what_the_arrays_take(switches, size):
    stream = stacked(random_stream(8), switches.get("frame_stack", 1))
    kept = Replay(size, stream.rollouts(4)[0], 0.9, **switches)
    arrays = kept.arrays
    large = jax.tree.leaves((arrays.columns, arrays.memories, arrays.begins, arrays.sums))
    assert kept.bytes == sum(array.nbytes for array in large)


def test_a_replay_that_does_not_fit_is_refused_with_numbers_before_anything_is_allocated():
    like = random_stream(4).rollouts(4)[0]
    like = like._replace(observations=np.broadcast_to(np.float32(0), (5, 3, 10**9)))
    with pytest.raises(
        ConfigError, match=r"replay_size 1,000,000 needs \d+\.\d GB and \d+\.\d GB are free; use at most [\d,]+"
    ):
        Replay(10**6, like, 0.9)


def test_a_replay_with_more_rows_than_32_bits_count_is_refused():
    with pytest.raises(ConfigError, match=r"replay_size 1,000,000,000,000,000 is too large; use less than 1,073,741,8"):
        Replay(10**15, random_stream(4).rollouts(4)[0], 0.9)


def test_the_size_proposed_instead_fits(monkeypatch):
    monkeypatch.setattr(replays, "free_memory", lambda: 100_000)
    like = random_stream(4).rollouts(4)[0]
    with pytest.raises(ConfigError) as refusal:
        Replay(1_000_000, like, 0.9)
    proposed = int(str(refusal.value).split("at most ")[1].replace(",", ""))
    assert 70_000 < Replay(proposed, like, 0.9).bytes <= 100_000


def test_where_nothing_tells_what_is_free_nothing_is_refused(monkeypatch):
    monkeypatch.setattr(replays, "free_memory", lambda: None)
    Replay(1000, random_stream(4).rollouts(4)[0], 0.9)


def written(root, files: dict[str, str]):
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


MEMINFO = {"proc/meminfo": "MemTotal: 9000 kB\nMemAvailable:    5000 kB\nSwapFree: 1 kB\n"}
STAT = "anon 5\nactive_file 300\ninactive_file 700\nfile 1200\n"
UNIFIED = {"sys/fs/cgroup/memory.current": "4000\n", "sys/fs/cgroup/memory.stat": STAT}
FIRST = {"sys/fs/cgroup/memory/memory.usage_in_bytes": "4000\n", "sys/fs/cgroup/memory/memory.stat": STAT}


@pytest.mark.parametrize(
    ("files", "free"),
    [
        ({}, None),
        (MEMINFO, 5000 * 1024),
        (MEMINFO | UNIFIED | {"sys/fs/cgroup/memory.max": "max\n"}, 5000 * 1024),
        (MEMINFO | UNIFIED | {"sys/fs/cgroup/memory.max": "6000\n"}, 6000 - 4000 + 1000),
        (MEMINFO | FIRST | {"sys/fs/cgroup/memory/memory.limit_in_bytes": "6000\n"}, 6000 - 4000 + 1000),
        (MEMINFO | FIRST | {"sys/fs/cgroup/memory/memory.limit_in_bytes": f"{2**63 - 4096}\n"}, 5000 * 1024),
    ],
    ids=["not Linux", "no container", "no limit", "limit", "limit, version 1", "no limit, version 1"],
)
def test_free_memory_is_the_machines_or_what_a_containers_limit_leaves_cached_files_aside(files, free, tmp_path):
    assert free_memory(written(tmp_path, files)) == free
