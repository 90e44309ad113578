"""The replay on the device against the host's, given the same rollouts."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from birl.rollouts.device_replay import DeviceReplay, to_device
from birl.rollouts.device_sum_tree import weights_of
from hypothesis import given, settings
from hypothesis import strategies as st

from birl.config import ConfigError
from birl.rollouts.replay import Indices, Replay
from birl.types import Rollout, Snapshot
from tests.envs.counting import Counting, DictCounting, MaskedCounting
from tests.rollouts.test_replay import (
    STREAMS,
    Stream,
    assert_frequencies,
    assert_same_trees,
    counted,
    random_stream,
    replicated,
    stacked,
    weights_by_row,
)


def both_of(rollouts: list[Rollout], size: int = 1, **switches) -> tuple[Replay, DeviceReplay]:
    """The same rollouts in a replay on the host and in one on the device."""
    size = max(size, rollouts[0].rewards.size)
    host = Replay(size, rollouts[0], 0.9, **switches)
    device = to_device(Replay(size, rollouts[0], 0.9, **switches))

    add = compiled(device, DeviceReplay.add)
    for rollout in rollouts:
        host.add(rollout)
        add(rollout._replace(extras=None))
    return host, device


def compiled(device: DeviceReplay, method: Callable[..., None]) -> Callable[..., None]:
    """The method of this replay as a program."""

    @jax.jit
    def changed(replay: DeviceReplay, *given: Any) -> DeviceReplay:
        method(replay, *given)
        return replay

    def change(*given: Any) -> None:
        device.arrays = changed(device, *given).arrays

    return change


def both_of_stream(stream: Stream, length: int, size: int = 1, **switches) -> tuple[Replay, DeviceReplay]:
    return both_of(stream.rollouts(length), size, **switches)


def assert_same_rows(host: Replay, device: DeviceReplay) -> None:
    """Both hold the same: every array, and every transition with its sums of rewards."""
    back = device.to_host()
    assert_same_trees(
        (back.columns, back.begins, back.memories, back.continues),
        (host.columns, host.begins, host.memories, host.continues),
    )
    assert len(device) == len(host)
    assert bool(device.ready) == host.ready
    assert back.written % host.ring_size == host.written % host.ring_size
    indices = replicated(host)
    mine, theirs = device.gather(indices), host.gather(indices)
    assert_same_trees(mine._replace(rewards=None, discounts=None), theirs._replace(rewards=None, discounts=None))
    np.testing.assert_allclose(mine.rewards, theirs.rewards, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(mine.discounts, theirs.discounts, rtol=1e-6)
    types = [jax.dtypes.canonicalize_dtype(x.dtype) for x in jax.tree.leaves(theirs)]  # JAX has no 64 bits
    assert [x.dtype for x in jax.tree.leaves(mine)] == types


@settings(max_examples=15)
@given(STREAMS, st.integers(1, 5), st.integers(1, 4), st.booleans())
def test_it_gives_the_hosts_transitions_over_any_episodes_rollout_borders_and_the_rings_end(
    stream, length, n_step, small
):
    assert_same_rows(*both_of_stream(stream, length, 1 if small else 10_000, n_step=n_step))


@pytest.mark.parametrize("kind", [Counting, DictCounting, MaskedCounting])
def test_it_gives_the_hosts_transitions_of_collected_rollouts_with_masks_memory_and_dicts(kind):
    host, device = both_of(counted(kind), 40, n_step=2)
    assert host.written > host.ring_size
    assert device.recurrent
    assert_same_rows(host, device)


def test_it_is_ready_when_the_hosts_is():
    rollouts = random_stream(24).rollouts(3)
    nothing_valid = [rollout._replace(valid=np.zeros_like(rollout.valid)) for rollout in rollouts[:3]]
    for number in range(1, len(rollouts)):
        host, device = both_of(rollouts[:number], 30, n_step=4)
        assert bool(device.ready) == host.ready == (number >= 2)
        host, device = both_of([*nothing_valid, *rollouts[3 : 3 + number]], 30)
        assert bool(device.ready) == host.ready


def test_an_empty_replay_gives_something_and_does_not_wait_for_ever():
    device = to_device(Replay(30, random_stream(5).rollouts(5)[0], 0.9))
    assert not device.ready
    assert device.sample(jax.random.PRNGKey(0), (2, 3)).rewards.shape == (2, 3)


def test_rows_are_counted_in_32_bits_however_many_are_written():
    host, device = both_of_stream(random_stream(300), 5, size=40)
    assert host.written == 300
    assert host.ring_size <= int(device.arrays.written) < 2 * host.ring_size
    assert_same_rows(host, device)


# Sampling


def counts_of(indices: Indices, rows: int, num_envs: int = 3) -> np.ndarray:
    """[rows, B] how often each was sampled."""
    counts = np.zeros((rows, num_envs))
    np.add.at(counts, (np.asarray(indices.rows), np.asarray(indices.envs)), 1)
    return counts


@pytest.mark.parametrize("rows", [30, 90])
@pytest.mark.parametrize("n_step", [1, 3])
def test_every_valid_transition_is_sampled_with_equal_chances_and_no_other(rows, n_step):
    host, device = both_of_stream(random_stream(rows), 3, size=90, n_step=n_step)
    assert not host.columns.valid.all()
    sample_indices = jax.jit(lambda replay, key: replay.sample_indices(key, (200, 100)))
    indices = sample_indices(device, np.array([0, 1], np.uint32))
    known = replicated(host)
    newest = host.written - int(device.arrays.written)  # rows are counted from another one
    counts = counts_of(indices._replace(rows=indices.rows + newest), rows)
    assert counts.sum() == 20_000 == counts[known.rows, known.envs].sum()
    assert_frequencies(counts[known.rows, known.envs], known.probabilities)
    assert np.all(indices.probabilities == 1)


def test_other_keys_sample_others_and_the_same_key_the_same():
    _, device = both_of_stream(random_stream(60), 3, size=60)
    first, again, other = (device.sample(np.array([0, key], np.uint32), (50,)) for key in (1, 1, 2))
    assert_same_trees(first, again)
    assert np.any(first.rewards != other.rewards)


@pytest.mark.parametrize("length", [2, 5])
def test_sequences_are_the_hosts_sampled_with_equal_chances(length):
    stream = random_stream(60)
    host, device = both_of_stream(stream, length, size=45)
    assert host.written > host.ring_size
    drawn = device.sample_sequences(np.array([0, 1], np.uint32), (30, 40))
    every = host.sample_sequences(np.random.default_rng(0), (60, 40))  # enough to have seen all of them
    known = {
        every.behaviour[group, 0, number]: jax.tree.map(lambda x, at=(group, number): _one(x, *at), every)
        for group, number in np.ndindex(60, 40)
    }
    found = [drawn.behaviour[group, 0, number].item() for group, number in np.ndindex(30, 40)]
    for (group, number), behaviour in zip(np.ndindex(30, 40), found, strict=True):
        one = jax.tree.map(lambda x, at=(group, number): _one(np.asarray(x), *at), drawn)
        assert_same_trees(one, known[behaviour])
    assert set(found) == set(known)
    assert_frequencies(np.unique(found, return_counts=True)[1], np.ones(len(known)))


def _one(leaf: np.ndarray, group: int, number: int) -> np.ndarray:
    """One sequence of [G, T, N, ...], or its memory of [G, N, ...]; 30, 40, 60 are no time axes."""
    return leaf[group, number] if leaf.shape[1] == 40 else leaf[group, :, number]


# Priorities


def test_priorities_follow_the_hosts_through_errors_new_rollouts_and_the_rings_end():
    stream = random_stream(120)
    rollouts = stream.rollouts(4)
    host, device = both_of(rollouts[:3], 60, n_step=2, priority_exponent=0.6)
    add, set_errors = compiled(device, DeviceReplay.add), compiled(device, DeviceReplay.set_errors)
    rng = np.random.default_rng(0)
    for rollout in rollouts[3:]:
        indices = host.sample_indices(rng, (2, 8))
        errors = rng.normal(size=(2, 8)).astype(np.float32) * 3
        host.set_errors(indices, errors)
        set_errors(indices, errors)
        host.add(rollout)
        add(rollout)
        np.testing.assert_allclose(weights_by_row(device.to_host()), weights_by_row(host), rtol=1e-5)
        assert float(device.arrays.largest) == pytest.approx(host.largest, rel=1e-5)
    assert host.written > 2 * host.ring_size
    np.testing.assert_allclose(device.arrays.sums[1], host.tree.total, rtol=1e-5)


@pytest.mark.parametrize("exponent", [0.0, 0.6, 1.0])
def test_transitions_are_sampled_in_proportion_to_their_errors_to_the_alpha(exponent):
    host, device = both_of_stream(random_stream(60), 3, size=60, priority_exponent=exponent)
    known = replicated(host)
    errors = np.random.default_rng(0).normal(size=known.rows.shape).astype(np.float32) * 3
    device.set_errors(known, errors)
    newest = host.written - int(device.arrays.written)
    indices = device.sample_indices(np.array([0, 1], np.uint32), (300, 200))
    indices = indices._replace(rows=indices.rows + newest)
    counts = counts_of(indices, 60)
    probabilities = np.abs(errors) ** exponent
    likely = probabilities > 0.02
    assert counts.sum() == counts[known.rows, known.envs].sum()
    assert_frequencies(counts[known.rows, known.envs][likely], probabilities[likely])
    by_row = weights_by_row(device.to_host())
    np.testing.assert_allclose(
        indices.probabilities, by_row[np.asarray(indices.rows) % host.ring_size, indices.envs], rtol=1e-6
    )


def test_errors_of_negative_rows_change_nothing():
    _, device = both_of_stream(random_stream(30), 3, priority_exponent=1.0)
    before = device.arrays
    nowhere = Indices(np.full(4, -1, np.int32), np.full(4, -1, np.int32), np.ones(4, np.float32))
    device.set_errors(nowhere, jnp.full(4, 99.0))
    assert_same_trees(device.arrays, before)


def test_without_priorities_errors_change_nothing():
    _, device = both_of_stream(random_stream(30), 3)
    before = device.arrays
    device.set_errors(device.sample_indices(np.array([0, 1], np.uint32), (4,)), jnp.full(4, 99.0))
    assert device.arrays is before


# To the host and back


@pytest.mark.parametrize("rows", [12, 36, 120])
@pytest.mark.parametrize("exponent", [None, 0.6])
def test_a_snapshot_restored_on_the_host_and_moved_to_the_device_is_the_same_bit_for_bit(rows, exponent):
    stream = random_stream(rows)
    rollouts = stream.rollouts(3)
    _, device = both_of(rollouts, 60, priority_exponent=exponent)
    indices = device.sample_indices(np.array([0, 1], np.uint32), (5, 6))
    device.set_errors(indices, np.random.default_rng(0).normal(size=(5, 6)).astype(np.float32))
    snapshot = device.snapshot(Snapshot())
    host = Replay(60, rollouts[0], 0.9, priority_exponent=exponent)
    host.restore(snapshot, np.zeros(3, bool))
    assert_same_trees(to_device(host).arrays, device.arrays)


def test_what_was_in_a_replay_on_the_host_is_in_the_one_on_the_device():
    stream = random_stream(120)
    host, device = both_of_stream(stream, 4, size=60)
    moved = to_device(host)
    assert_same_rows(host, moved)
    more = stream_after(stream)
    for rollout in more.rollouts(4):
        host.add(rollout)
        moved.add(rollout)
        device.add(rollout)
    assert_same_rows(host, moved)
    assert_same_trees(moved.arrays, device.arrays)


def stream_after(stream: Stream) -> Stream:
    """Other rows, to go on with."""
    return random_stream(len(stream.steps.rewards), seed=1)


def test_what_is_changed_on_the_host_is_taken_over():
    _, device = both_of_stream(random_stream(30), 3)
    before = device.arrays
    host = device.to_host(writeable=True)
    host.columns.rewards[:] = 7.0
    assert_same_trees(device.arrays, before)
    device.take_over(host)
    assert np.all(device.arrays.columns.rewards == 7)
    assert_same_trees(device.arrays._replace(columns=()), before._replace(columns=()))


def test_stacked_frames_are_refused_with_what_to_use():
    stream = stacked(random_stream(12), 4)
    host = Replay(60, stream.rollouts(3)[0], 0.9, frame_stack=4)
    with pytest.raises(ConfigError, match=r"frame_stack 4: compiled environments .*; use frame_stack 1"):
        to_device(host)


# Inside a program


def temporary_bytes(size: int, exponent: float | None) -> int:
    """The memory that a program needs beside its arguments, to add and sample in a loop."""
    rollout = random_stream(4).rollouts(4)[0]
    device = to_device(Replay(size, rollout, 0.9, n_step=2, priority_exponent=exponent))

    def cycle(number: int, replay: DeviceReplay) -> DeviceReplay:
        replay.add(rollout._replace(rewards=rollout.rewards + number))
        key = jax.random.fold_in(jax.random.PRNGKey(0), number)

        def sample() -> tuple[Indices, jax.Array]:
            indices = replay.sample_indices(replay.rng(key), (1, 8))
            return indices, replay.gather(indices).rewards

        nothing = jax.tree.map(lambda x: jnp.full(x.shape, -1, x.dtype), jax.eval_shape(sample))
        replay.set_errors(*jax.lax.cond(replay.ready, sample, lambda: nothing))
        return replay

    program = jax.jit(lambda replay: jax.lax.fori_loop(0, 100, cycle, replay), donate_argnums=0)
    return program.lower(device).compile().memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize("exponent", [None, 0.6])
def test_a_loop_writes_to_the_ring_in_place_without_a_copy_of_any_column(exponent):
    small, large = temporary_bytes(1000, exponent), temporary_bytes(200_000, exponent)
    assert large < small + 100_000  # less than one column of one byte for each step


def test_the_priorities_of_a_full_ring_are_those_of_its_valid_rows():
    host, device = both_of_stream(random_stream(120), 4, size=60, priority_exponent=0.6)
    weights = np.asarray(weights_of(device.arrays.sums))[: host.ring_size * host.num_envs]
    known = replicated(host)
    assert np.count_nonzero(weights) == known.rows.size
