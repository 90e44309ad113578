"""Which tests `make test` leaves to `make test-all`: folders, files, functions, parameters."""

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]

LATER = (
    "tests/lab",
    "tests/packaging",
    "tests/asynchronous/test_ray.py",
    "tests/run/test_lane_ray.py",
    "tests/workers/test_ray.py",
    "tests/test_benchmarks.py",
    "tests/test_evidence.py",
    "tests/test_examples.py",
    "tests/test_notebooks.py",
    "tests/test_site.py",
    "tests/test_docs.py::test_calls_within_sentences_could_be_made",
    "tests/test_docs.py::test_code_and_commands_run",
    "tests/test_docs.py::test_the_readmes_show_training_as_it_looks",
    "tests/test_docs.py::test_the_example_of_an_algorithm_trains_resumes_to_the_bit_is_exported_and_tuned",
    "tests/test_docs.py::test_a_policy_rebuilt_in_numpy_as_the_page_says_acts_as_birl_does",
)
AT_ONCE = (  # in those folders, but quick
    "tests/lab/test_compare.py",
    "tests/lab/test_diagnose_rules.py",
    "tests/lab/test_halving.py",
    "tests/lab/test_search_space.py",
)


def is_later(path: Path, function: str) -> bool:
    """Whether `make test` leaves this test to `make test-all`."""
    place = path.relative_to(ROOT).as_posix()
    if place in AT_ONCE:
        return False
    return any(f"{place}::{function}" == later or f"{place}/".startswith(f"{later}/") for later in LATER)


def sooner(chosen: Collection[Any], every: Iterable[Any]) -> list[Any]:
    """All of these parameters; those that are not chosen are left to `make test-all`.

    For products of settings: the chosen have each value, and each pair of values that matters.
    """
    every = list(every)
    assert all(case in every for case in chosen), "chosen are some of them"
    return [_parameters(case, () if case in chosen else pytest.mark.later) for case in every]


def _parameters(case: Any, marks: Any) -> Any:
    return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=marks)
