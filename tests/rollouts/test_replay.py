"""The replay: hand-made streams, an environment that counts, and the papers' sums."""

import json
import re
from dataclasses import dataclass, replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from birl.config import ConfigError
from birl.envs.serial import SerialEnvs
from birl.rollouts import replay as replays
from birl.rollouts.collector import Collector
from birl.rollouts.free_memory import free_memory
from birl.rollouts.replay import LEAST_ERROR, Indices, Replay
from birl.types import Action, Rollout, Snapshot
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
    rollouts = stream.rollouts(length)
    kept = Replay(max(size, rollouts[0].rewards.size), rollouts[0], 0.9, **switches)
    for rollout in rollouts:
        kept.add(rollout)
    return kept


def replicated(kept: Replay) -> Indices:
    """Every transition that may be drawn, found by row and environment."""
    rows, envs = (
        found.ravel() for found in np.meshgrid(np.array(kept.sampleable, int), np.arange(kept.num_envs), indexing="ij")
    )
    valid = kept.columns.valid[rows % kept.ring_size, envs]
    return Indices(rows[valid], envs[valid], np.ones(valid.sum(), np.float32))


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
    indices = replicated(kept)
    steps = stream.steps
    found = kept.gather(indices)
    values = np.random.default_rng(1).normal(size=(len(steps.rewards) + 1, kept.num_envs))
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
    written = kept.written
    assert kept.sampleable.stop == max(0, written - n_step)
    assert (kept.sampleable.start == 0) == (written <= kept.ring_size)


@some
@given(STREAMS, st.integers(1, 4))
def test_no_transition_reaches_across_an_end_and_only_a_termination_has_no_bootstrap(stream, n_step):
    kept = replay_of(stream, 3, n_step=n_step)
    indices = replicated(kept)
    steps = stream.steps
    found = kept.gather(indices)
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
    indices = kept.sample_indices(np.random.default_rng(0), (50, 40))
    assert not stream.steps.valid.all()
    assert stream.steps.valid[indices.rows, indices.envs].all()
    drawn = set(zip(indices.rows.ravel().tolist(), indices.envs.ravel().tolist(), strict=True))
    known = replicated(kept)
    assert drawn == set(zip(known.rows.tolist(), known.envs.tolist(), strict=True))


@pytest.mark.parametrize("rows", [30, 90])
def test_every_transition_is_drawn_with_equal_chances(rows):
    kept = replay_of(random_stream(rows), 3, size=90)
    indices = kept.sample_indices(np.random.default_rng(1), (200, 100))
    assert np.all(indices.probabilities == 1)
    known = replicated(kept)
    counts = np.zeros((rows, 3))
    np.add.at(counts, (indices.rows, indices.envs), 1)
    assert counts.sum() == counts[known.rows, known.envs].sum()
    assert_frequencies(counts[known.rows, known.envs], known.probabilities)


@pytest.mark.parametrize("frame_stack", [1, 4])
@pytest.mark.parametrize("n_step", [1, 5])
@pytest.mark.parametrize("length", [1, 4])
@pytest.mark.parametrize("size", [12, 100])
def test_the_ring_holds_as_many_transitions_as_asked_for_and_few_more(size, length, n_step, frame_stack):
    stream = stacked(stream_of(np.zeros((80, 3), int)), frame_stack)
    kept = replay_of(stream, length, size, n_step=n_step, frame_stack=frame_stack)
    assert size <= 3 * len(kept.sampleable)
    assert len(kept) == 3 * kept.ring_size <= size + 3 * (n_step + frame_stack + 2 * length)


def test_old_rollouts_are_overwritten_by_new_ones():
    stream = random_stream(60)
    rollouts = stream.rollouts(5)
    kept = Replay(15, rollouts[0], 0.9)
    assert (len(kept), len(kept.sampleable)) == (0, 0)
    for number, rollout in enumerate(rollouts, start=1):
        kept.add(rollout)
        newest = range(max(0, 5 * number - kept.ring_size), 5 * number - 1)
        assert kept.sampleable == newest
        assert len(kept) == 3 * min(5 * number, kept.ring_size)
        indices = replicated(kept)
        np.testing.assert_array_equal(kept.gather(indices).rewards, stream.steps.rewards[indices.rows, indices.envs])


def test_what_is_added_is_copied():
    stream = random_stream(20)
    kept = replay_of(stream, 5)
    indices = replicated(kept)
    before = kept.gather(indices)
    stream.steps.rewards[:], stream.steps.observations[:] = -1, -1
    assert_same_trees(kept.gather(indices), before)


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
    kept = Replay(60, rollouts[0], 0.9)
    for rollout in rollouts:
        kept.add(rollout)
    found = kept.gather(kept.sample_indices(np.random.default_rng(0), (2000,)))
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
    kept = Replay(60, rollouts[0], 0.9, n_step=2)
    for rollout in rollouts:
        kept.add(rollout)
    found = kept.gather(replicated(kept))
    names, steps, totals = found.next_observations.T.astype(int)
    terminated = totals >= np.array([5, 100, 3])[names]
    assert np.any(~terminated & (steps >= np.array([100, 4, 3])[names])), "some are truncated"
    np.testing.assert_array_equal(found.next_action_masks[~terminated], np.arange(3) != (steps % 3)[~terminated, None])


def test_every_part_of_a_dict_observation_is_kept_with_its_type():
    rollouts = counted(DictCounting)
    kept = Replay(40, rollouts[0], 0.9)
    for rollout in rollouts:
        kept.add(rollout)
    assert kept.written > kept.ring_size
    whole = jax.tree.map(
        lambda *parts: np.concatenate([*(part[:-1] for part in parts), parts[-1][-1:]]),
        *(rollout.observations for rollout in rollouts),
    )
    indices = replicated(kept)
    found = kept.gather(indices)
    assert isinstance(found.observations, dict)
    assert len(found.observations) >= 4
    assert_same_trees(found.observations, jax.tree.map(lambda x: x[indices.rows, indices.envs], whole))
    assert_same_trees(found.next_observations, jax.tree.map(lambda x: x[indices.rows + 1, indices.envs], whole))
    assert [x.dtype for x in jax.tree.leaves(found.observations)] == [x.dtype for x in jax.tree.leaves(whole)]


# Priorities


def weights_by_row(kept: Replay) -> np.ndarray:
    """[rows, B], rows counted in the ring."""
    return kept.tree.weights[: kept.ring_size * kept.num_envs].reshape(kept.ring_size, kept.num_envs)


@pytest.mark.parametrize("exponent", [0.0, 0.6, 1.0])
def test_transitions_are_drawn_in_proportion_to_their_errors_to_the_alpha(exponent):
    kept = replay_of(random_stream(60), 3, size=60, priority_exponent=exponent)
    indices = replicated(kept)
    errors = np.random.default_rng(0).normal(size=indices.rows.shape) * 3
    kept.set_errors(indices, errors)
    drawn = kept.sample_indices(np.random.default_rng(1), (300, 200))
    counts = np.zeros((60, 3))
    np.add.at(counts, (drawn.rows, drawn.envs), 1)
    probabilities = np.abs(errors) ** exponent
    likely = probabilities > 0.02
    assert counts.sum() == counts[indices.rows, indices.envs].sum()
    assert_frequencies(counts[indices.rows, indices.envs][likely], probabilities[likely])


def test_the_chances_handed_out_are_those_with_which_they_were_drawn():
    kept = replay_of(random_stream(60), 3, size=60, priority_exponent=0.6)
    indices = replicated(kept)
    errors = np.random.default_rng(0).normal(size=indices.rows.shape)
    kept.set_errors(indices, errors)
    true = np.zeros((60, 3))
    true[indices.rows, indices.envs] = (np.abs(errors) + LEAST_ERROR) ** 0.6
    drawn = kept.sample_indices(np.random.default_rng(1), (500,))
    np.testing.assert_allclose(drawn.probabilities, true[drawn.rows, drawn.envs], rtol=1e-6)


def test_a_transition_without_any_error_can_be_drawn_again():
    kept = replay_of(random_stream(30), 3, priority_exponent=0.6)
    indices = replicated(kept)
    kept.set_errors(indices, np.zeros(indices.rows.shape))
    assert np.all(kept.sample_indices(np.random.default_rng(0), (100,)).probabilities > 0)


@some
@given(STREAMS, st.integers(1, 4), st.integers(1, 4), st.integers(1, 4), st.integers(0, 100))
def test_after_any_rollouts_and_errors_exactly_what_may_be_drawn_has_a_weight(
    stream, length, n_step, frame_stack, seed
):
    rollouts = stacked(stream, frame_stack).rollouts(length)
    rng = np.random.default_rng(seed)
    kept = Replay(rollouts[0].rewards.size, rollouts[0], 0.9, n_step, frame_stack, priority_exponent=1.0)
    for rollout in rollouts:
        kept.add(rollout)
        known = replicated(kept)
        expected = np.zeros((kept.ring_size, kept.num_envs), bool)
        expected[known.rows % kept.ring_size, known.envs] = True
        np.testing.assert_array_equal(weights_by_row(kept) > 0, expected)
        if known.rows.size:
            drawn = kept.sample_indices(rng, (4,))
            assert all(row in kept.sampleable for row in drawn.rows)
            kept.set_errors(drawn, rng.exponential(size=4))


def test_new_transitions_get_the_largest_priority_so_far_and_overwritten_ones_lose_theirs():
    stream = stream_of(np.zeros((60, 2), int))
    rollouts = stream.rollouts(2)
    kept = Replay(8, rollouts[0], 0.9, priority_exponent=0.5)
    for rollout in rollouts[:2]:
        kept.add(rollout)
    indices = replicated(kept)
    assert np.all(weights_by_row(kept)[indices.rows, indices.envs] == 1.0)  # 1 before any error is known
    kept.set_errors(indices, np.linspace(0, 9, indices.rows.size))
    largest = (9 + LEAST_ERROR) ** 0.5
    kept.add(rollouts[2])
    new = [row for row in kept.sampleable if row > indices.rows.max()]
    np.testing.assert_allclose(weights_by_row(kept)[new], largest)

    kept.set_errors(replicated(kept), np.zeros(replicated(kept).rows.size))
    for rollout in rollouts[3 : 4 + kept.ring_size // 2]:
        kept.add(rollout)  # now all of them are new
    known = replicated(kept)
    np.testing.assert_allclose(kept.tree.total, largest * known.rows.size)


def test_of_a_transition_drawn_twice_the_last_error_counts():
    kept = replay_of(stream_of(np.zeros((12, 1), int)), 3, priority_exponent=1.0)
    row = kept.sampleable.start
    kept.set_errors(
        Indices(np.array([[row], [row]]), np.zeros((2, 1), int), np.ones((2, 1))), np.array([[5.0], [-2.0]])
    )
    assert weights_by_row(kept)[row % kept.ring_size, 0] == pytest.approx(2.0)


def test_without_priorities_errors_change_nothing():
    kept = replay_of(random_stream(30), 3)
    before = kept.sample_indices(np.random.default_rng(0), (50,))
    kept.set_errors(before, np.full(50, 9.0))
    assert_same_trees(kept.sample_indices(np.random.default_rng(0), (50,)), before)


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
    assert kept.written > kept.ring_size
    drawn = kept.sample_sequences(np.random.default_rng(0), (30, 40))
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
    assert kept_rollouts.tolist() == list(range(-(-kept.sampleable.start // length), len(counts) - 1))
    assert len(kept_rollouts) * length * 3 >= 45
    assert_frequencies(counts[kept_rollouts].ravel(), np.ones(counts[kept_rollouts].size))


def test_the_memory_of_a_sequence_is_the_collectors_at_its_start():
    rollouts = counted(Counting)
    kept = Replay(40, rollouts[0], 0.9)
    for rollout in rollouts:
        kept.add(rollout)
    drawn = kept.sample_sequences(np.random.default_rng(0), (3, 50))
    assert drawn.action_masks is None
    # The memory counts steps since the reset, and in a reset's row one more.
    np.testing.assert_array_equal(np.where(drawn.resets, 0, drawn.memory[..., 0]), drawn.observations[:, 0, :, 1])


# Stacked frames


def stacked(stream: Stream, frame_stack: int, seed: int = 0) -> Stream:
    """The stream with stacks of random frames of 2 x 3, newest last; unchanged for stacks of 1."""
    if frame_stack == 1:
        return stream
    valid = stream.steps.valid
    shape = stream.steps.observations.shape[:2]
    frames = np.random.default_rng(seed).integers(0, 256, (*shape, 2, 3), dtype=np.uint8)
    stacks = np.zeros((*shape, frame_stack, 2, 3), np.uint8)
    for t, i in np.ndindex(*shape):
        begins = t == 0 or not valid[t - 1, i]
        stacks[t, i] = frames[t, i] if begins else np.concatenate([stacks[t - 1, i, 1:], frames[t, i][None]])
    return replace(stream, steps=stream.steps._replace(observations=stacks))


@some
@given(STREAMS, st.integers(1, 4), st.integers(2, 4), st.integers(1, 3))
def test_stacks_are_rebuilt_bit_for_bit_across_episode_starts_rollout_borders_and_the_rings_end(
    stream, length, frame_stack, n_step
):
    stream = stacked(stream, frame_stack)
    kept = replay_of(stream, length, n_step=n_step, frame_stack=frame_stack)
    numbered = replay_of(stream_with_numbers(stream), length, size=kept.ring_size * kept.num_envs, n_step=n_step)
    indices = replicated(kept)
    rows, envs = numbered.gather(indices).next_observations.astype(int).T
    found = kept.gather(indices)
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
    assert 4 * kept.columns.observations.nbytes / kept.ring_size == plain.columns.observations.nbytes / plain.ring_size


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
    if len(first.sampleable):
        drawn = first.sample_indices(np.random.default_rng(5), (10,))
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
    assert (again.written, again.largest, again.sampleable) == (first.written, first.largest, first.sampleable)
    np.testing.assert_array_equal(again.tree.sums, first.tree.sums)
    for rollout in rollouts[before : before + 6]:
        for kept in (first, again):
            kept.add(rollout)
        if len(first.sampleable):
            left, right = (kept.sample_indices(np.random.default_rng(7), (5, 20)) for kept in (first, again))
            assert_same_trees(left, right)
            assert_same_trees(first.gather(left), again.gather(right))
        if first.written > 8:
            assert_same_trees(*(kept.sample_sequences(np.random.default_rng(8), (2, 9)) for kept in (first, again)))


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
        indices = again.sample_indices(np.random.default_rng(0), (2000,))
        drawn = set(zip(indices.rows.tolist(), indices.envs.tolist(), strict=True))
        assert (last, 0) not in drawn
        assert {(last, 1), (last - 1, 0), (last + 1, 0)} <= drawn
        found = again.gather(indices)
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
    indices = replicated(again)
    originals = np.concatenate([before.steps.observations[:8], after.steps.observations])
    found = again.gather(indices)
    np.testing.assert_array_equal(found.observations, originals[indices.rows, 0])
    np.testing.assert_array_equal(found.next_observations, originals[indices.rows + 1, 0])
    assert 7 not in indices.rows


# Memory


@pytest.mark.parametrize("switches", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("size", [12, 1000])
def test_bytes_is_what_the_arrays_take(switches, size):
    stream = stacked(random_stream(8), switches.get("frame_stack", 1))
    kept = Replay(size, stream.rollouts(4)[0], 0.9, **switches)
    arrays = jax.tree.leaves((kept.columns, kept.memories, kept.begins, kept.tree.sums))
    assert kept.bytes == sum(array.nbytes for array in arrays)


def test_a_replay_that_does_not_fit_is_refused_with_numbers_before_anything_is_allocated():
    with pytest.raises(
        ConfigError,
        match=r"replay_size 1,000,000,000,000,000 needs \d+\.\d GB and \d+\.\d GB are free; use at most [\d,]+",
    ):
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
