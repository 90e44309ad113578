"""Numbers on the command line are read as people write them."""

import math
import re

import pytest

from birl.cli.options import real_number, short_number, whole_number


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("100000", 100_000),
        ("1e5", 100_000),
        ("1E5", 100_000),
        ("1.5e3", 1_500),
        ("100k", 100_000),
        ("100K", 100_000),
        ("2M", 2_000_000),
        ("0.25M", 250_000),
        ("1B", 1_000_000_000),
        ("1_000_000", 1_000_000),
        ("-3", -3),
        ("7.0", 7),
        ("9007199254740993", 9_007_199_254_740_993),  # above 2^53: a float would round it
    ],
)
def test_a_whole_number_is_read_exactly(text, value):
    assert whole_number(text) == value


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("1.5", "'1.5' is not a whole number; use 2"),
        ("0.0001k", "'0.0001k' is not a whole number; use 0"),
        ("few", "'few' is not a whole number; write it like 100000, 100k, 1e5, 0.1M or 100_000"),
        ("", "'' is not a whole number"),
        ("k", "'k' is not a whole number"),
        ("nan", "'nan' is not a whole number"),
        ("inf", "'inf' is not a whole number"),
        ("1e99999", "'1e99999' is too large"),
        ("1e999999999", "'1e999999999' is not a whole number"),
        ("10m", "'10m' is not a whole number"),
    ],
)
def test_what_is_no_whole_number_is_refused_with_what_to_write(text, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        whole_number(text)


@pytest.mark.parametrize(
    ("text", "value"), [("0.5", 0.5), ("3e-4", 3e-4), ("1k", 1000.0), ("-2.5M", -2.5e6), ("inf", math.inf), ("1", 1.0)]
)
def test_a_real_number_is_what_python_reads_with_units(text, value):
    assert real_number(text) == value


@pytest.mark.parametrize("text", ["", "fast", "1,5", "0x10"])
def test_what_is_no_number_is_refused(text):
    with pytest.raises(ValueError, match="is not a number"):
        real_number(text)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (999, "999"), (50_000, "50k"), (1_500_000, "1.5M"), (1_000_001, "1000001"), (2_000_000_000, "2B")],
)
def test_a_short_number_is_read_as_what_it_was(value, text):
    assert short_number(value) == text
    assert whole_number(text) == value
