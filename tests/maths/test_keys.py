"""Streams of random keys: apart from each other and from every split."""

from typing import get_args

import jax
import numpy as np

from birl.maths.keys import Purpose, numbered, stream

KEY = np.array([7, 11], np.uint32)


def rows(keys):
    return {tuple(row) for row in np.asarray(keys).reshape(-1, 2).tolist()}


def test_no_split_and_no_number_folded_in_gives_a_stream():
    streams = set().union(*[rows(stream(KEY, purpose)) for purpose in get_args(Purpose)])
    assert len(streams) == len(get_args(Purpose))
    assert not streams & rows(jax.random.split(KEY, 100_000))
    assert rows(jax.random.fold_in(KEY, 3)) <= rows(jax.random.split(KEY, 4))  # why a number of one's own would not do


def test_of_several_with_one_key_the_first_has_a_copy_of_it_and_the_others_keys_of_their_own():
    first, *others = [numbered(KEY, number) for number in range(50)]
    assert first.tolist() == KEY.tolist()
    assert not np.shares_memory(first, KEY)
    assert len(set().union(*map(rows, others))) == 49
    assert not set().union(*map(rows, others)) & (rows(KEY) | rows(jax.random.split(KEY, 100)))
