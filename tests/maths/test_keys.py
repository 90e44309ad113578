"""Streams of random keys differ from each other and from every split."""

from typing import get_args

import jax
import numpy as np

from birl.maths.keys import Purpose, numbered, stream

KEY = np.array([7, 11], np.uint32)


def rows(keys):
    return {tuple(row) for row in np.asarray(keys).reshape(-1, 2).tolist()}


def test_streams_differ_from_each_other_and_from_every_split():
    streams = set().union(*[rows(stream(KEY, purpose)) for purpose in get_args(Purpose)])
    assert len(streams) == len(get_args(Purpose))
    assert not streams & rows(jax.random.split(KEY, 100_000))
    assert rows(jax.random.fold_in(KEY, 3)) <= rows(jax.random.split(KEY, 4))  # why streams start at 2³¹


def test_number_0_gets_a_copy_of_the_key_and_other_numbers_get_their_own():
    first, *others = [numbered(KEY, number) for number in range(50)]
    assert first.tolist() == KEY.tolist()
    assert not np.shares_memory(first, KEY)
    assert len(set().union(*map(rows, others))) == 49
    assert not set().union(*map(rows, others)) & (rows(KEY) | rows(jax.random.split(KEY, 100)))
